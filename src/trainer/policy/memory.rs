//! Memory of a policy: a recurrent layer between the shared layers and the heads of actor and critic.
//!
//! `lstm` is `torch.nn.LSTM` as in CleanRL's ppo_atari_lstm.py (Hochreiter and Schmidhuber 1997). `mingru` is the
//! minGRU of Feng et al. 2024 ("Were RNNs All We Needed?", section 3.1): with `z = sigmoid(linear_z(x))`, the state
//! becomes `(1 - z) * state + z * linear_h(x)`. That is linear in the state, so that a sequence is a scan of
//! `log2(steps)` operations on all steps at once (Hillis and Steele 1986). [`rankdeck_kernel::recurrent`] computes both
//! without libtorch.
//!
//! Invariants:
//! - MEMORY-1: a sequence gives what its steps give one after the other, up to rounding. The state is 0 before an
//!   observation that begins an episode.
//! - MEMORY-2: an environment's state depends on its own observations only.

use super::parameters::InitialValues;
use crate::distributed::memory::upload_slice;
use rankdeck_kernel::mlp::Layer;
use rankdeck_kernel::recurrent::RecurrentCell;
use rankdeck_types::experiment::{MemoryKind, Policy};
use tch::{Device, TchError, Tensor};

/// Width of the memory unless `policy.memory_size` is set, as in CleanRL's ppo_atari_lstm.py.
const SIZE: u32 = 128;

/// Largest bias of minGRU's update gates at the start: the sigmoid of -3 is 1/21.
const GATE_SPREAD: f64 = 3.0;

/// Parameters of a memory.
pub(crate) const PARAMETERS: usize = 4;

/// The recurrent layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    kind: MemoryKind,
    /// Numbers that it takes in per observation.
    pub(crate) inputs: usize,
    /// Numbers that come out per observation.
    pub(crate) size: usize,
}

impl Memory {
    /// The memory of `policy` for `inputs` numbers per observation; `None` without one.
    pub(crate) fn new(policy: &Policy, inputs: usize) -> Option<Memory> {
        let size = policy.memory_size.unwrap_or(SIZE) as usize;
        policy.memory.map(|kind| Memory { kind, inputs, size })
    }

    /// Its name in names of parameters.
    fn name(&self) -> &'static str {
        match self.kind {
            MemoryKind::Lstm => "lstm",
            MemoryKind::MinGru => "mingru",
        }
    }

    /// Numbers of one environment's state: of an LSTM, its output and its cell.
    pub(crate) fn state_len(&self) -> usize {
        match self.kind {
            MemoryKind::Lstm => 2 * self.size,
            MemoryKind::MinGru => self.size,
        }
    }

    /// Name, shape and start of each parameter, in order: weights orthogonal with gain 1, biases 0, as in CleanRL. The
    /// biases of minGRU's gates are spread, so that its units begin with different time constants, from 1 to 20 steps
    /// (after Tallec and Ollivier 2018, "Can recurrent neural networks warp time?").
    pub(crate) fn parameters(&self) -> [(String, Vec<i64>, InitialValues); PARAMETERS] {
        let (inputs, size) = (self.inputs as i64, self.size as i64);
        let own: [(&str, Vec<i64>); PARAMETERS] = match self.kind {
            MemoryKind::Lstm => [
                ("weight_ih_l0", vec![4 * size, inputs]),
                ("weight_hh_l0", vec![4 * size, size]),
                ("bias_ih_l0", vec![4 * size]),
                ("bias_hh_l0", vec![4 * size]),
            ],
            MemoryKind::MinGru => [
                ("linear_z.weight", vec![size, inputs]),
                ("linear_z.bias", vec![size]),
                ("linear_h.weight", vec![size, inputs]),
                ("linear_h.bias", vec![size]),
            ],
        };
        own.map(|(name, shape)| {
            let start = match (shape.len(), name) {
                (1, "linear_z.bias") => InitialValues::Even(GATE_SPREAD),
                (1, _) => InitialValues::Constant(0.0),
                _ => InitialValues::Orthogonal(1.0),
            };
            (format!("{}.{name}", self.name()), shape, start)
        })
    }

    /// The layer for the native kernels, from the places of its parameters in the flat buffer.
    pub(crate) fn cell(&self, places: [usize; PARAMETERS]) -> RecurrentCell {
        let (inputs, size) = (self.inputs, self.size);
        match (self.kind, places) {
            (MemoryKind::Lstm, [input, recurrent, input_bias, recurrent_bias]) => RecurrentCell::Lstm {
                input: Layer { inputs, outputs: 4 * size, weight: input, bias: input_bias },
                recurrent: Layer { inputs: size, outputs: 4 * size, weight: recurrent, bias: recurrent_bias },
            },
            (MemoryKind::MinGru, [update, update_bias, candidate, candidate_bias]) => RecurrentCell::MinGru {
                update: Layer { inputs, outputs: size, weight: update, bias: update_bias },
                candidate: Layer { inputs, outputs: size, weight: candidate, bias: candidate_bias },
            },
        }
    }

    /// Outputs `[steps * envs, size]` of features `[steps * envs, inputs]`, and the states `[envs, state_len]` after
    /// the last step, with gradients.
    pub(crate) fn forward(
        &self,
        parameters: &[Tensor],
        features: &Tensor,
        sequences: &Sequences,
    ) -> Result<(Tensor, Tensor), TchError> {
        let envs = sequences.state.size().first().copied().unwrap_or(1);
        let steps = features.f_reshape([-1, envs, self.inputs as i64])?;
        let (outputs, state) = match self.kind {
            MemoryKind::Lstm => self.lstm(parameters, &steps, sequences)?,
            MemoryKind::MinGru => min_gru(parameters, &steps, sequences)?,
        };
        Ok((outputs.f_reshape([-1, self.size as i64])?, state))
    }

    /// libtorch's LSTM on the steps between two that begin an episode in any environment.
    fn lstm(
        &self,
        parameters: &[Tensor],
        steps: &Tensor,
        sequences: &Sequences,
    ) -> Result<(Tensor, Tensor), TchError> {
        let size = self.size as i64;
        let packed = match sequences.state.device() {
            Device::Cuda(_) => packed(parameters)?,
            _ => Vec::new(),
        };
        let parameters = if packed.is_empty() { parameters } else { packed.as_slice() };
        let part = |from: i64| sequences.state.f_narrow(1, from, size)?.f_contiguous()?.f_unsqueeze(0);
        let mut state = [part(0)?, part(size)?];
        let count = steps.size().first().copied().unwrap_or(0);
        let starts = sequences.starts.as_ref();
        let ends = starts.map_or(&[][..], |starts| &starts.steps).iter().copied().chain([count]);
        let (mut from, mut outputs) = (0, Vec::new());
        for to in ends {
            if let Some(starts) = starts.filter(|_| from > 0) {
                let kept = starts.kept.f_narrow(0, from, 1)?;
                state = [state[0].f_mul(&kept)?, state[1].f_mul(&kept)?];
            }
            let own = steps.f_narrow(0, from, to - from)?;
            let (output, hidden, cell) = own.f_lstm(&state, parameters, true, 1, 0.0, true, false, false)?;
            outputs.push(output);
            (state, from) = ([hidden, cell], to);
        }
        Ok((Tensor::f_cat(&outputs, 0)?, Tensor::f_cat(&state, -1)?.f_squeeze_dim(0)?))
    }
}

/// The parameters one after the other in memory of their own: cuDNN copies all others at each call, and warns of it each
/// time.
fn packed(parameters: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
    let flat = parameters.iter().map(|own| own.f_view([-1])).collect::<Result<Vec<_>, _>>()?;
    let all = Tensor::f_cat(&flat, 0)?;
    let mut end = 0;
    let view = |own: &Tensor| {
        let len = own.numel() as i64;
        end += len;
        all.f_narrow(0, end - len, len)?.f_view_as(own)
    };
    parameters.iter().map(view).collect()
}

/// Scans `state = kept * state + given` over the first dimension.
fn min_gru(
    parameters: &[Tensor],
    steps: &Tensor,
    sequences: &Sequences,
) -> Result<(Tensor, Tensor), TchError> {
    let linear = |at: usize| steps.f_linear(&parameters[at], Some(&parameters[at + 1]));
    let update = linear(0)?.f_sigmoid()?;
    let mut given = update.f_mul(&linear(2)?)?;
    let mut kept = update.f_rsub_scalar(1.0)?;
    if let Some(starts) = &sequences.starts {
        kept = kept.f_mul(&starts.kept)?;
    }
    let count = steps.size().first().copied().unwrap_or(0);
    let mut by = 1;
    // After each turn, a step has taken in twice as many steps before it.
    while by < count {
        let rest = count - by;
        let later = kept.f_narrow(0, by, rest)?;
        let carried = later.f_mul(&given.f_narrow(0, 0, rest)?)?;
        let sum = given.f_narrow(0, by, rest)?.f_add(&carried)?;
        let product = later.f_mul(&kept.f_narrow(0, 0, rest)?)?;
        given = Tensor::f_cat(&[given.f_narrow(0, 0, by)?, sum], 0)?;
        kept = Tensor::f_cat(&[kept.f_narrow(0, 0, by)?, product], 0)?;
        by *= 2;
    }
    let outputs = kept.f_mul(&sequences.state)?.f_add(&given)?;
    let last = outputs.f_narrow(0, count - 1, 1)?.f_squeeze_dim(0)?;
    Ok((outputs, last))
}

/// Sequences of several environments; rows of features are `[steps][envs]`.
pub(crate) struct Sequences {
    /// States before the first step, `[envs, state_len]`: already 0 where an episode begins with it.
    state: Tensor,
    /// Absent when no episode begins after the first step.
    starts: Option<EpisodeStarts>,
}

/// Where episodes begin after the first step.
struct EpisodeStarts {
    /// 0 where one does, else 1; `[steps, envs, 1]`.
    kept: Tensor,
    /// The steps in which one does in any environment, ascending.
    steps: Vec<i64>,
}

impl Sequences {
    /// A single step from these states.
    pub(crate) fn step(state: Tensor) -> Sequences {
        Sequences { state, starts: None }
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &Tensor {
        &self.state
    }

    #[cfg(test)]
    pub(crate) fn has_resets(&self) -> bool {
        self.starts.is_some()
    }

    /// From these states on; `starts` `[steps][envs]` is true where an observation begins an episode.
    pub(crate) fn new(state: Tensor, starts: &[bool]) -> Result<Sequences, TchError> {
        let envs = state.size().first().map_or(1, |envs| *envs as usize).max(1);
        let rows = starts.chunks(envs).enumerate().skip(1);
        let steps: Vec<i64> =
            rows.filter(|(_, row)| row.contains(&true)).map(|(step, _)| step as i64).collect();
        if steps.is_empty() {
            return Ok(Sequences::step(state));
        }
        let kept: Vec<f32> =
            starts.iter().enumerate().map(|(row, start)| f32::from(u8::from(!start || row < envs))).collect();
        let kept = upload_slice(&kept, state.device())?.f_view([-1, envs as i64, 1])?;
        Ok(Sequences { state, starts: Some(EpisodeStarts { kept, steps }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankdeck_kernel::numpy_random::Generator;
    use rankdeck_kernel::recurrent::Recurrent;
    use rankdeck_kernel::seeds::{Purpose, Seeds};
    use rankdeck_kernel::{Isa, Matrix};
    use tch::Kind;

    const KINDS: [MemoryKind; 2] = [MemoryKind::Lstm, MemoryKind::MinGru];
    const INPUTS: i64 = 2;
    const STEPS: usize = 7;
    const ENVS: usize = 3;
    /// Step and environment of the observations that begin an episode.
    const STARTS: [(usize, usize); 4] = [(0, 2), (2, 1), (5, 0), (5, 2)];

    fn noise(shape: &[i64], random: &mut Generator) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product::<i64>()).map(|_| random.normal() as f32).collect();
        Tensor::from_slice(&values).view(shape)
    }

    /// A memory with random parameters, features and states, the same ones each time.
    fn made(kind: MemoryKind) -> (Memory, Vec<Tensor>, Tensor, Tensor) {
        let policy = Policy { memory: Some(kind), memory_size: Some(3), ..Policy::default() };
        let memory = Memory::new(&policy, INPUTS as usize).unwrap();
        let mut random = Seeds::new(1).generator(Purpose::Model, 0, 0);
        let shapes = memory.parameters().map(|(_, shape, _)| shape);
        let parameters =
            shapes.iter().map(|shape| noise(shape, &mut random).set_requires_grad(true)).collect();
        let features = noise(&[(STEPS * ENVS) as i64, INPUTS], &mut random);
        let state = noise(&[ENVS as i64, memory.state_len() as i64], &mut random);
        // The rollout before has ended with a step after which an episode begins.
        let state = state * kept(0);
        (memory, parameters, features, state)
    }

    fn starts() -> Vec<bool> {
        (0..STEPS * ENVS).map(|row| STARTS.contains(&(row / ENVS, row % ENVS))).collect()
    }

    /// 0 for environments whose episode begins with this step, `[envs, 1]`.
    fn kept(step: usize) -> Tensor {
        let kept: Vec<f32> =
            (0..ENVS).map(|env| f32::from(u8::from(!STARTS.contains(&(step, env))))).collect();
        Tensor::from_slice(&kept).view([ENVS as i64, 1])
    }

    /// Outputs and last state, one step after the other.
    fn stepped(
        features: &Tensor,
        state: Tensor,
        mut one: impl FnMut(&Tensor, Tensor) -> (Tensor, Tensor),
    ) -> (Tensor, Tensor) {
        let (mut state, mut outputs) = (state, Vec::new());
        for step in 0..STEPS {
            let seen = features.narrow(0, (step * ENVS) as i64, ENVS as i64);
            let (output, next) = one(&seen, state * kept(step));
            outputs.push(output);
            state = next;
        }
        (Tensor::cat(&outputs, 0), state)
    }

    /// A step by the definitions of both memories.
    fn defined(kind: MemoryKind, parameters: &[Tensor], seen: &Tensor, state: Tensor) -> (Tensor, Tensor) {
        match kind {
            MemoryKind::Lstm => {
                let halves = state.chunk(2, 1);
                let gates = seen.linear(&parameters[0], Some(&parameters[2]))
                    + halves[0].linear(&parameters[1], Some(&parameters[3]));
                let gates = gates.chunk(4, 1);
                let cell = gates[1].sigmoid() * &halves[1] + gates[0].sigmoid() * gates[2].tanh();
                let output = gates[3].sigmoid() * cell.tanh();
                let state = Tensor::cat(&[output.shallow_clone(), cell], 1);
                (output, state)
            }
            MemoryKind::MinGru => {
                let update = seen.linear(&parameters[0], Some(&parameters[1])).sigmoid();
                let candidate = seen.linear(&parameters[2], Some(&parameters[3]));
                let state = update.rsub_scalar(1.0) * state + update * candidate;
                (state.shallow_clone(), state)
            }
        }
    }

    fn largest(a: &Tensor, b: &Tensor) -> f64 {
        assert_eq!(a.size(), b.size());
        (a - b).abs().max().double_value(&[])
    }

    /// What a loss on all outputs and the last state gives the parameters.
    fn gradients(parameters: &[Tensor], (outputs, state): &(Tensor, Tensor)) -> Vec<Tensor> {
        let weights = Tensor::arange(outputs.numel() as i64, (Kind::Float, outputs.device())) * 0.1;
        ((outputs.flatten(0, -1) * weights).sum(Kind::Float) + state.square().sum(Kind::Float)).backward();
        parameters.iter().map(Tensor::grad).collect()
    }

    #[test]
    fn memory_1_sequence_equals_its_steps() {
        for kind in KINDS {
            let (memory, parameters, features, state) = made(kind);
            let sequences = Sequences::new(state.shallow_clone(), &starts()).unwrap();
            let (outputs, last) = memory.forward(&parameters, &features, &sequences).unwrap();
            let (expected, expected_last) = stepped(&features, state, |seen, state| {
                memory.forward(&parameters, seen, &Sequences::step(state)).unwrap()
            });
            assert!(largest(&outputs, &expected) < 1e-6, "{kind:?}");
            assert!(largest(&last, &expected_last) < 1e-6, "{kind:?}");
        }
    }

    #[test]
    fn sequence_and_gradients_follow_the_definition() {
        for kind in KINDS {
            let (memory, parameters, features, state) = made(kind);
            let sequences = Sequences::new(state.shallow_clone(), &starts()).unwrap();
            let own = memory.forward(&parameters, &features, &sequences).unwrap();
            let own_gradients = gradients(&parameters, &own);
            let (_, parameters, ..) = made(kind);
            let expected = stepped(&features, state, |seen, state| defined(kind, &parameters, seen, state));
            assert!(largest(&own.0, &expected.0) < 1e-6 && largest(&own.1, &expected.1) < 1e-6, "{kind:?}");
            for (own, expected) in own_gradients.iter().zip(gradients(&parameters, &expected)) {
                let size = expected.abs().max().double_value(&[]);
                assert!(size > 0.01 && largest(own, &expected) < 1e-5 * size.max(1.0), "{kind:?} {size}");
            }
        }
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.contiguous().view([-1])).unwrap()
    }

    /// Outputs, last states, gradients of the parameters and those of the features, by the native layer.
    fn native(isa: Isa, kind: MemoryKind, by_output: &[f32]) -> [Vec<f32>; 4] {
        let (memory, parameters, features, state) = made(kind);
        let mut flat = Vec::new();
        let places = std::array::from_fn(|i| {
            flat.extend(numbers(&parameters[i].detach()));
            flat.len() - parameters[i].numel()
        });
        let mut layer = Recurrent::on(isa, memory.cell(places), 1);
        layer.load(&flat);
        let unpadded = |matrix: &Matrix| matrix.iter().flatten().copied().collect::<Vec<f32>>();
        let (mut input, mut gradient) = (Matrix::new(1, INPUTS as usize), Matrix::new(1, memory.size));
        // Step by step, as a policy acts, and all steps at once.
        let (mut states, mut stepped) = (numbers(&state), Vec::new());
        for (seen, resets) in numbers(&features).chunks(ENVS * INPUTS as usize).zip(starts().chunks(ENVS)) {
            input.copy_rows(seen);
            stepped.extend(unpadded(layer.forward(&input, &mut states, resets)));
        }
        let last = states;
        let mut states = numbers(&state);
        input.copy_rows(&numbers(&features));
        let outputs = unpadded(layer.forward(&input, &mut states, &starts()));
        assert_eq!((&stepped, &last), (&outputs, &states), "{kind:?}: the same bits");
        gradient.copy_rows(by_output);
        let (mut by_parameters, mut by_input) = (vec![0.0; flat.len()], Matrix::new(1, INPUTS as usize));
        layer.backward(&input, &gradient, &mut by_parameters, Some(&mut by_input));
        [outputs, states, by_parameters, unpadded(&by_input)]
    }

    /// RECURRENT-1, RECURRENT-2.
    #[test]
    fn recurrent_1_native_layer_follows_the_definition() {
        for kind in KINDS {
            let (memory, parameters, features, state) = made(kind);
            let features = features.set_requires_grad(true);
            let (outputs, last) =
                stepped(&features, state, |seen, state| defined(kind, &parameters, seen, state));
            let by_output: Vec<f32> = (0..STEPS * ENVS * memory.size).map(|i| (i % 7) as f32 - 2.5).collect();
            let weights = Tensor::from_slice(&by_output).view([-1, memory.size as i64]);
            (&outputs * weights).sum(Kind::Float).backward();
            let by_parameters = parameters.iter().flat_map(|parameter| numbers(&parameter.grad())).collect();
            let (outputs, last) = (numbers(&outputs.detach()), numbers(&last.detach()));
            let expected: [Vec<f32>; 4] = [outputs, last, by_parameters, numbers(&features.grad())];
            let all: Vec<_> = Isa::all().into_iter().map(|isa| native(isa, kind, &by_output)).collect();
            for own in &all {
                assert_eq!(own, &all[0], "{kind:?}: the same bits");
                for (own, expected) in own.iter().zip(&expected) {
                    let size = expected.iter().fold(0.1_f32, |most, value| most.max(value.abs()));
                    assert_eq!(own.len(), expected.len());
                    let apart = own.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(apart <= 1e-5 * size, "{kind:?}: {apart} of {size}");
                }
            }
        }
    }

    #[test]
    fn packed_parameters_are_the_same_numbers_with_gradients() {
        let (_, parameters, ..) = made(MemoryKind::Lstm);
        let own = packed(&parameters).unwrap();
        assert_eq!(own.len(), parameters.len());
        let sums: Vec<Tensor> =
            (1..).zip(&own).map(|(i, own)| (own * f64::from(i)).sum(Kind::Float)).collect();
        Tensor::stack(&sums, 0).sum(Kind::Float).backward();
        for ((own, parameter), i) in own.iter().zip(&parameters).zip(1..) {
            assert_eq!(largest(own, parameter), 0.0);
            assert_eq!(largest(&parameter.grad(), &(parameter.ones_like() * f64::from(i))), 0.0);
        }
    }

    #[test]
    fn memory_2_environments_do_not_mix() {
        for kind in KINDS {
            let (memory, parameters, features, state) = made(kind);
            let run = |features: &Tensor| {
                let sequences = Sequences::new(state.shallow_clone(), &starts()).unwrap();
                memory.forward(&parameters, features, &sequences).unwrap().0.view([
                    STEPS as i64,
                    ENVS as i64,
                    -1,
                ])
            };
            let before = run(&features);
            let changed = features.copy();
            let _ = changed.view([STEPS as i64, ENVS as i64, -1]).narrow(1, 1, 1).fill_(9.0);
            let after = run(&changed);
            for env in [0, 2] {
                assert!(largest(&before.narrow(1, env, 1), &after.narrow(1, env, 1)) < 1e-6, "{kind:?}");
            }
            assert!(largest(&before, &after) > 0.01);
        }
    }

    #[test]
    fn parameters_have_the_names_of_torch_modules() {
        let (memory, ..) = made(MemoryKind::Lstm);
        let names = memory.parameters().map(|(name, shape, _)| (name, shape));
        assert_eq!(names[0], ("lstm.weight_ih_l0".to_owned(), vec![12, 2]));
        assert_eq!(names[1], ("lstm.weight_hh_l0".to_owned(), vec![12, 3]));
        assert_eq!(names[3], ("lstm.bias_hh_l0".to_owned(), vec![12]));
        let (memory, ..) = made(MemoryKind::MinGru);
        let names = memory.parameters().map(|(name, shape, _)| (name, shape));
        assert_eq!(names[2], ("mingru.linear_h.weight".to_owned(), vec![3, 2]));
    }
}
