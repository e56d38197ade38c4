//! The weights next to each checkpoint are PyTorch's: loaded by real torch into CleanRL's networks, they give
//! what ours give.

use crate::harness::{Run, python};
use rankdeck_kernel::seeds::Seeds;
use rankdeck_trainer::checkpoint::{self, Checkpoint};
use rankdeck_trainer::env::{EnvFactory, ObservationType, Spec};
use rankdeck_trainer::policy::ActorCritic;
use rankdeck_trainer::policy::actor_critic::{ForwardOptions, Layout};
use rankdeck_trainer::policy::distribution::Distribution;
use rankdeck_types::experiment::{NetworkKind, Policy};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use tch::{Device, Tensor};

/// Builds the networks of ppo.py or ppo_continuous_action.py, loads the file strictly, prints values and
/// scores of some observations.
const PROGRAM: &str = "
import json, struct, sys
import torch
from torch import nn

def load(path):
    with open(path, 'rb') as file:
        size = struct.unpack('<Q', file.read(8))[0]
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    return {name: torch.frombuffer(data, dtype=torch.float32, count=(e['data_offsets'][1] - e['data_offsets'][0]) // 4, offset=e['data_offsets'][0]).reshape(e['shape'])
            for name, e in header.items() if name != '__metadata__'}

inputs, outputs, continuous, *paths = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == 'true', *sys.argv[4:]

def weights_in(path):
    weights = load(path)
    try:
        from safetensors.torch import load_file
    except ImportError:
        return weights
    theirs = load_file(path)
    for name, tensor in weights.items():
        assert torch.equal(tensor, theirs[name]), name
    return theirs

def network(outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = network(1)
        if continuous:
            self.actor_mean = network(outputs)
            self.actor_logstd = nn.Parameter(torch.zeros(1, outputs))
        else:
            self.actor = network(outputs)

x = torch.arange(5 * inputs, dtype=torch.float32).reshape(5, inputs) / 10 - 0.5
for path in paths:
    agent = Agent()
    agent.load_state_dict(weights_in(path), strict=True)
    scores = agent.actor_mean(x) if continuous else torch.log_softmax(agent.actor(x), -1)
    print(*torch.cat([agent.critic(x), scores], 1).flatten().tolist())
";

fn check(id: &str, spec: &Spec) {
    let experiment = format!(
        "[run]\nname = 'x'\ntotal_steps = 2048\n[env]\nid = '{id}'\nnum_envs = 4\n[learn]\nalgorithm = 'ppo'\n[checkpoint]\nevery = 2\n"
    );
    let mut run = Run::start(&experiment, &[]);
    run.end_with(0);
    let names = ["iter-2", "latest"];
    let weights = names.map(|name| run.file(&format!("checkpoints/{name}.safetensors")));
    let (inputs, outputs) = (spec.observation_len().to_string(), spec.actions.width().to_string());
    let layout = Layout::new(spec, &Policy::default(), false).unwrap();
    let continuous = layout.log_std.is_some().to_string();
    let mut args = ["-c", PROGRAM, &inputs, &outputs, &continuous].map(OsStr::new).to_vec();
    args.extend(weights.iter().map(|path| path.as_os_str()));
    let Some(output) = python("torch", &args) else { return };
    assert_eq!(output.lines().count(), names.len(), "{output}");
    for (name, line) in names.into_iter().zip(output.lines()) {
        let theirs: Vec<f64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let bytes = std::fs::read(run.file(&format!("checkpoints/{name}.ckpt"))).unwrap();
        let arrays = Checkpoint::decode(&bytes).unwrap().arrays;
        let flat: Vec<f32> =
            arrays.iter().filter(|a| a.name.starts_with("model.")).flat_map(|a| &a.values).copied().collect();
        let mut policy = ActorCritic::new(layout.clone(), &Seeds::new(0), Device::Cpu).unwrap();
        policy.copy_from(&flat).unwrap();
        let n = 5 * spec.observation_len();
        let x: Vec<f32> = (0..n).map(|i| i as f32 / 10.0 - 0.5).collect();
        let ours = policy
            .forward(&Tensor::from_slice(&x).view([5, spec.observation_len() as i64]), ForwardOptions::PLAIN)
            .unwrap();
        let scores = match ours.distribution {
            Distribution::Categorical(scores) | Distribution::MultiCategorical { log_all: scores, .. } => {
                scores
            }
            Distribution::Gaussian { mean, .. } => mean,
        };
        let ours = Tensor::cat(&[ours.values.unsqueeze(-1), scores], 1).view([-1]);
        let ours: Vec<f64> = Vec::<f32>::try_from(ours).unwrap().into_iter().map(f64::from).collect();
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }
}

#[test]
fn pytorch_loads_the_weights_by_name() {
    for id in ["CartPole-v1", "Pendulum-v1"] {
        check(id, EnvFactory::open(&rankdeck_types::experiment::Env::new(id, 4)).unwrap().spec());
    }
}

/// The network of CleanRL's ppg_procgen.py, loaded strictly; prints the count of its parameters, then value,
/// log-probabilities and auxiliary value of two images.
const IMPALA: &str = "
import json, struct, sys
import torch
from torch import nn

def load(path):
    with open(path, 'rb') as file:
        size = struct.unpack('<Q', file.read(8))[0]
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    return {name: torch.frombuffer(data, dtype=torch.float32, count=(e['data_offsets'][1] - e['data_offsets'][0]) // 4, offset=e['data_offsets'][0]).reshape(e['shape'])
            for name, e in header.items() if name != '__metadata__'}

class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
    def forward(self, x):
        return self.conv1(torch.relu(self.conv0(torch.relu(x)))) + x

class Sequence(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.res_block0, self.res_block1 = Block(outputs), Block(outputs)
    def forward(self, x):
        return self.res_block1(self.res_block0(nn.functional.max_pool2d(self.conv(x), 3, stride=2, padding=1)))

class Agent(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.network = nn.Sequential(Sequence(3, 16), Sequence(16, 32), Sequence(32, 32), nn.Flatten(), nn.ReLU(), nn.Linear(32 * 8 * 8, 256), nn.ReLU())
        self.actor, self.critic, self.aux_critic = nn.Linear(256, actions), nn.Linear(256, 1), nn.Linear(256, 1)

agent = Agent(15)
agent.load_state_dict(load(sys.argv[1]), strict=True)
print(sum(parameter.numel() for parameter in agent.parameters()))
x = (torch.arange(2 * 3 * 64 * 64) * 7 % 251).float().reshape(2, 3, 64, 64) / 255.0
hidden = agent.network(x)
for number in torch.cat([agent.critic(hidden), torch.log_softmax(agent.actor(hidden), -1), agent.aux_critic(hidden)], 1).flatten().tolist():
    print(number)
";

#[test]
fn pytorch_loads_an_impala_network_by_name() {
    let spec = Spec {
        observation_shape: vec![3, 64, 64],
        observation_type: ObservationType::U8,
        ..Spec::discrete(1, 15)
    };
    let impala = Policy { network: NetworkKind::Impala, hidden: vec![256], ..Policy::default() };
    let layout = Layout::new(&spec, &impala, true).unwrap();
    let policy = ActorCritic::new(layout, &Seeds::new(1), Device::Cpu).unwrap();
    let arrays = policy.all().arrays("").unwrap();
    let bytes = {
        let entries: Vec<_> =
            arrays.iter().map(|array| (array.name.as_str(), checkpoint::TensorEntry::F32(array))).collect();
        checkpoint::encode_safetensors(&entries, &BTreeMap::new()).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("impala.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let Some(output) = python("torch", &["-c".as_ref(), IMPALA.as_ref(), path.as_os_str()]) else { return };
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some(policy.layout().len.to_string().as_str()));
    let theirs: Vec<f64> = lines.map(|line| line.parse().unwrap()).collect();
    let pixels: Vec<u8> = (0..2 * 3 * 64 * 64).map(|i| (i * 7 % 251) as u8).collect();
    let pixels = Tensor::from_slice(&pixels).view([2, 3, 64, 64]);
    let ours = policy.forward(&pixels, ForwardOptions { detached: true, aux: true }).unwrap();
    let Distribution::Categorical(scores) = ours.distribution else { panic!("15 actions") };
    let aux = ours.aux.unwrap().unsqueeze(-1);
    let ours = Tensor::cat(&[ours.values.unsqueeze(-1), scores, aux], 1).view([-1]);
    let ours = Vec::<f32>::try_from(ours).unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(&theirs) {
        assert!((f64::from(*a) - b).abs() < 1e-4, "{a} {b}");
    }
}
