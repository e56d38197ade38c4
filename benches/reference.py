"""The trainer compared with its Python references, on this machine, in one run: CPU, wall clock and memory.

    python3 benches/reference.py setup                      # once: a Python with the references' packages, and CleanRL at the pinned commit
    python3 benches/reference.py ppo dqn sac                # steps per CPU-second and per second; rounds interleaved, ours and theirs in turn
    python3 benches/reference.py pong                       # two ranks of four Pongs over Gloo, CleanRL's ppo_atari_multigpu.py
    python3 benches/reference.py dizoo                      # two ranks on CartPole, DI-engine's DQN under its DDP
    python3 benches/reference.py idle                       # memory of a rank that waits
    python3 benches/reference.py scaling                    # two ranks against one, environment-bound
    python3 benches/reference.py allreduce                  # torch.distributed's Gloo against ours, 4 B to 64 MiB

A rate is (long run's steps - short run's) / (long run's time - short run's): start-up does not count. CPU time is user + system of the whole process tree.
Python runs with OMP_NUM_THREADS=1, its best setting for these sizes. Every line ends with the ratio of the medians. Uses the release binary; nothing that is
fetched goes into the repository: it lies in ~/.cache/rankdeck-benches, or in --cache.
"""

import argparse
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

CLEANRL, COMMIT = "https://github.com/vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"
PACKAGES = ["torch==2.11.0", "numpy", "gymnasium[classic-control]==0.29.1", "tyro", "tensorboard", "rich", "opencv-python-headless", "ale-py==0.12.*"]
# DI-engine wants older packages than the others: an environment of its own.
DIZOO = ["DI-engine==0.5.3", "numpy<2", "gymnasium<1", "torch==2.11.0"]
ROOT = pathlib.Path(__file__).resolve().parent.parent

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", nargs="+", choices=["setup", "ppo", "dqn", "sac", "pong", "dizoo", "idle", "scaling", "allreduce"])
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/rankdeck-benches")
parser.add_argument("--python", help="an interpreter that has the packages, instead of one in the cache")
parser.add_argument("--dizoo-python", help="an interpreter that has DI-engine, instead of one in the cache")
parser.add_argument("--worker-python", help="an interpreter for our environment workers that has gymnasium 1.x and ale-py; default: the references'")
parser.add_argument("--cleanrl", default=CLEANRL, help="where to fetch CleanRL from: an address, or a clone on this machine")
parser.add_argument("--trainer", default=str(ROOT / "target/release/rankdeck-trainer"))
parser.add_argument("--collectives", help="the built bench `collectives`, instead of what cargo builds")
parser.add_argument("--together", action="store_true", help="allreduce: both pairs of ranks at the same time, for machines that are busy anyway")
parser.add_argument("--kernel", default="auto", help="policy.kernel of our runs")
args = parser.parse_args()

python = args.python or str(args.cache / "venv/bin/python")
dizoo_python = args.dizoo_python or str(args.cache / "dizoo-venv/bin/python")
sources = args.cache / f"cleanrl-{COMMIT[:12]}"
scratch = pathlib.Path(tempfile.mkdtemp(prefix="rankdeck-bench-"))


def setup():
    args.cache.mkdir(parents=True, exist_ok=True)
    for given, interpreter, packages in [(args.python, python, PACKAGES), (args.dizoo_python, dizoo_python, DIZOO)]:
        if not given and not pathlib.Path(interpreter).exists():
            subprocess.run([sys.executable, "-m", "venv", str(pathlib.Path(interpreter).parent.parent)], check=True)
            subprocess.run([interpreter, "-m", "pip", "install", "-q", *packages], check=True)
    if not (sources / "cleanrl/ppo.py").exists():
        shutil.rmtree(sources, ignore_errors=True)
        subprocess.run(["git", "init", "-q", str(sources)], check=True)
        subprocess.run(["git", "-C", str(sources), "fetch", "-q", "--depth", "1", args.cleanrl, COMMIT], check=True)
        subprocess.run(["git", "-C", str(sources), "checkout", "-q", "FETCH_HEAD"], check=True)
    print(f"CleanRL {COMMIT[:12]} in {sources}, Python {python}, DI-engine's {dizoo_python}")


def measured(*commands):
    """Runs (command, environment) pairs at the same time: wall seconds, CPU seconds of the whole trees, and the largest process's peak memory in MiB."""
    logs, children, cpu, memory = [], [], 0.0, 0.0
    begin = time.monotonic()
    for i, (command, env) in enumerate(commands):
        logs.append(open(scratch / f"log-{i}", "w+"))
        env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        children.append(subprocess.Popen(command, cwd=scratch, env=env, stdout=logs[-1], stderr=logs[-1]))
    for child in children:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        cpu, memory = cpu + usage.ru_utime + usage.ru_stime, max(memory, usage.ru_maxrss / 1024)
    wall = time.monotonic() - begin
    for child, log in zip(children, logs):
        log.seek(0)
        text = log.read()
        log.close()
        if child.returncode != 0:
            sys.exit(f"{' '.join(child.args)} ended with {child.returncode}:\n{text[-3000:]}")
    return wall, cpu, memory


def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


# ---- ours ----

PPO = """
[env]
id = "{env}"
num_envs = {envs}
[policy]
hidden = [64, 64]
kernel = "{kernel}"
[collect]
num_steps = 128
[learn]
algorithm = "ppo"
"""
DQN = """
[env]
id = "CartPole-v1"
num_envs = 1
[policy]
hidden = [120, 84]
activation = "relu"
kernel = "{kernel}"
[collect]
num_steps = 10
[learn]
algorithm = "dqn"
learning_rate = 2.5e-4
buffer_size = 10_000
learning_starts = 10_000
batch_size = 128
updates_per_iteration = 1
target_every = 50
epsilon_steps = 250_000
epsilon_end = 0.05
loss = "squared"
"""
SAC = """
[env]
id = "Pendulum-v1"
num_envs = 1
[policy]
hidden = [256, 256]
activation = "relu"
[collect]
num_steps = 1
[learn]
algorithm = "sac"
"""
# CleanRL's ppo_atari_multigpu.py, all defaults but the game and the environments per rank.
PONG = """
[env]
id = "PongNoFrameskip-v4"
num_envs = 8
worker = "python"
python = "{python}"
[policy]
network = "nature"
hidden = [512]
[collect]
num_steps = 128
[learn]
algorithm = "ppo"
clip_coef = 0.1
"""
# DI-engine's cartpole_dqn_ddp: 8 environments, 8 samples, 5 updates with a batch of 64 per rank; sizes here
# are over both.
CARTPOLE_DDP = """
[env]
id = "CartPole-v0"
num_envs = 16
[policy]
hidden = [128, 128, 64]
activation = "relu"
kernel = "{kernel}"
[collect]
num_steps = 1
[learn]
algorithm = "dqn"
learning_rate = 1e-3
gamma = 0.97
buffer_size = 40_000
learning_starts = 0
batch_size = 128
updates_per_iteration = 5
target_every = 100
double = true
dueling = true
n_step = 1
epsilon_start = 0.95
epsilon_end = 0.1
epsilon_steps = 10_000
epsilon_decay = "exponential"
loss = "squared"
"""


def experiment(body, steps, **values):
    text = f"[run]\nname = 'bench'\nseed = 1\ntotal_steps = {steps}\n[eval]\nevery = 0\n[checkpoint]\nevery = 0\nbest = false\n"
    path = scratch / f"experiment-{steps}.toml"
    path.write_text(text + body.format(kernel=args.kernel, **values))
    return str(path)


def ours(body, steps, ranks=1, **values):
    command = [args.trainer, "--config", experiment(body, steps, **values), "--run-dir", str(scratch / "run")]
    return measured((command + (["--spawn", str(ranks)] if ranks > 1 else []), {}))


# ---- theirs ----

# ale-py registers the ids that CleanRL uses on request only.
ATARI = """
import runpy, sys
from ale_py.registration import register_v0_v4_envs
register_v0_v4_envs()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def theirs(script, steps, *flags, ranks=1):
    if not (sources / "cleanrl").exists():
        sys.exit("run `python3 benches/reference.py setup` first")
    command = [str(sources / "cleanrl" / script), "--no-cuda", "--total-timesteps", str(steps), *flags]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(sources), os.environ.get("PYTHONPATH")]))}
    if ranks == 1:
        return measured(([python, *command], path))
    (scratch / "atari.py").write_text(ATARI)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    each = [{**path, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    return measured(*(([python, str(scratch / "atari.py"), *command], env) for env in each))


def rates(run, short, long):
    """Steps per wall second and per CPU second between a short and a long run, and the long one's peak memory."""
    (wall1, cpu1, _), (wall2, cpu2, memory) = run(short), run(long)
    return (long - short) / (wall2 - wall1), (long - short) / (cpu2 - cpu1), memory


def compare(title, own, own_steps, other, other_steps):
    print(f"\n{title}: {args.rounds} rounds in turn, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    rows = [(rates(own, *own_steps), rates(other, *other_steps)) for _ in range(args.rounds)]
    for i, (name, digits) in enumerate([("steps per second", 0), ("steps per CPU-second", 0), ("peak memory, MiB", 1)]):
        a, b = ([row[side][i] for row in rows] for side in (0, 1))
        middle = [statistics.median(values) for values in (a, b)]
        spread = [f"{m:,.{digits}f} ({min(v):,.{digits}f}..{max(v):,.{digits}f})" for m, v in zip(middle, (a, b))]
        print(f"{name:24} ours {spread[0]:34} Python {spread[1]:34} ratio {middle[0] / middle[1]:.2f}")


def ppo():
    compare(
        "PPO CartPole-v1, CleanRL's ppo.py settings",
        lambda steps: ours(PPO, steps, env="CartPole-v1", envs=4),
        (102_400, 1_024_000),
        lambda steps: theirs("ppo.py", steps),
        (2_048, 20_480),
    )


def dqn():
    # Learning starts after 10,000 steps: both runs are longer.
    compare(
        "DQN CartPole-v1, CleanRL's dqn.py settings",
        lambda steps: ours(DQN, steps),
        (20_000, 120_000),
        lambda steps: theirs("dqn.py", steps),
        (12_000, 32_000),
    )


def sac():
    # Learning starts after 5,000 steps.
    compare(
        "SAC Pendulum-v1, CleanRL's sac_continuous_action.py settings",
        lambda steps: ours(SAC, steps),
        (6_000, 9_000),
        lambda steps: theirs("sac_continuous_action.py", steps, "--env-id", "Pendulum-v1"),
        (5_500, 7_000),
    )


def pong():
    compare(
        "PPO Pong, 2 ranks of 4 environments, CleanRL's ppo_atari_multigpu.py settings over Gloo",
        lambda steps: ours(PONG, steps, ranks=2, python=args.worker_python or python),
        (1_024, 4_096),
        lambda steps: theirs(
            "ppo_atari_multigpu.py", steps, "--env-id", "PongNoFrameskip-v4", "--local-num-envs", "4", "--backend", "gloo", ranks=2
        ),
        (1_024, 3_072),
    )


# DI-engine's cartpole_dqn_ddp_config.py for this many steps, with Gloo on the CPU, where it expects GPUs only:
# what it asks of CUDA does nothing. No evaluations after the first.
DING = """
import sys, torch
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda device: None
torch.cuda.synchronize = lambda: None
torch.Tensor.cuda = lambda self, *rest, **more: self
to = torch.Tensor.to
torch.Tensor.to = lambda self, *rest, **more: self if rest and isinstance(rest[0], int) else to(self, *rest, **more)
from ditk import logging
logging.getLogger().setLevel(logging.ERROR)
from dizoo.classic_control.cartpole.config.cartpole_dqn_ddp_config import main_config, create_config
from ding.entry import serial_pipeline
from ding.utils import DDPContext
import ding.utils.pytorch_ddp_dist_helper as helper
begin = helper.dist_init
helper.dist_init = lambda: begin(backend="gloo")
main_config.exp_name = sys.argv[2]
main_config.env.stop_value = 1e9
main_config.policy.cuda = False
main_config.policy.eval.evaluator.eval_freq = 10**9
if __name__ == "__main__":
    with DDPContext():
        # By updates, of which all ranks make as many (5 per 8 steps of each): its count of steps lets them
        # leave at different times.
        serial_pipeline((main_config, create_config), seed=0, max_train_iter=int(sys.argv[1]) // 2 * 5 // 8)
"""


def ding(steps):
    (scratch / "dizoo_ddp.py").write_text(DING)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(), "WORLD_SIZE": "2"}
    each = [{**address, "RANK": str(rank)} for rank in range(2)]
    return measured(*(([dizoo_python, str(scratch / "dizoo_ddp.py"), str(steps), f"run-{port()}"], env) for env in each))


def dizoo():
    compare(
        "DQN CartPole-v0, 2 ranks, DI-engine's cartpole_dqn settings under its DDP",
        lambda steps: ours(CARTPOLE_DDP, steps, ranks=2),
        (1_600, 9_600),
        ding,
        (160, 640),
    )


# ---- memory of a rank that waits ----

WAITING = """
import sys, torch, torch.distributed as dist
network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
wrapped = torch.nn.parallel.DistributedDataParallel(network)
optimiser = torch.optim.Adam(network.parameters())
for _ in range(10):
    optimiser.zero_grad()
    wrapped(torch.zeros(128, 4)).sum().backward()
    optimiser.step()
dist.barrier()
if sys.argv[2] == "0":
    # What a PyTorch without CUDA would not have: pages of the files that only CUDA needs.
    resident, cuda = 0, False
    for line in open("/proc/self/smaps"):
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            name = line.rsplit("/", 1)[-1] if "/" in line else ""
            cuda = "/nvidia/" in line or "cuda" in name or "cudnn" in name or "nccl" in name
        elif head[0] == "Rss:" and cuda:
            resident += int(head[1])
    open(sys.argv[3], "w").write(str(resident / 1024))
"""


def idle():
    """Peak memory of one of two ranks that have joined, made some updates and waited for each other."""
    (scratch / "waiting.py").write_text(WAITING)
    command = [python, str(scratch / "waiting.py"), f"tcp://127.0.0.1:{port()}"]
    peak = measured(*((command + [str(rank), str(scratch / "cuda")], {}) for rank in range(2)))[2]
    cuda = float((scratch / "cuda").read_text())
    own = ours(PPO, 5_120, ranks=2, env="CartPole-v1", envs=4)[2]
    print(
        f"\npeak memory of a rank of two, MiB: ours {own:.1f}, Python with DistributedDataParallel {peak:.1f}, ratio {own / peak:.2f};"
        f"\nof Python's, {cuda:.1f} are pages of CUDA's libraries: {own / (peak - cuda):.2f} of what is left"
    )


def scaling():
    """Acrobot in Python workers, one epoch over each rollout: nearly all of the work is stepping environments, so a rank and its worker fill one core."""
    body = PPO.replace("[policy]", 'worker = "python"\npython = "{python}"\n[policy]') + "update_epochs = 1\nnum_minibatches = 1\n"
    values = {"env": "Acrobot-v1", "envs": 64, "python": args.worker_python or python}
    run = lambda ranks: lambda steps: ours(body, steps, ranks, **values)
    rows = [[rates(run(ranks), 8_192, 65_536) for ranks in (1, 2)] for _ in range(args.rounds)]
    print(f"\nscaling, Acrobot-v1 in Python workers, 64 environments, {args.rounds} rounds in turn, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for i, name in enumerate(["steps per second", "steps per CPU-second"]):
        one, two = (statistics.median(row[side][i] for row in rows) for side in (0, 1))
        best = max(row[1][i] / row[0][i] for row in rows)
        print(f"{name:24} 1 rank {one:,.0f}, 2 ranks {two:,.0f}, ratio {two / one:.2f}, best pair {best:.2f}")


# ---- collectives ----

SIZES = [str(size) for size in (4, 64, 1 << 10, 4 << 10, 36_620, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)]
GLOO = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
for size in map(int, sys.argv[3:]):
    tensor = torch.ones(size // 4)
    rounds = min(max((256 << 20) // max(size, 1 << 18), 12), 1000)
    times = []
    for i in range(rounds + 3):
        if i == 3:
            before = time.process_time()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        tensor.div_(2)
        times.append(time.perf_counter() - begin)
    each = (time.process_time() - before) / rounds
    if sys.argv[2] == "0":
        times = sorted(times[3:])
        print(f"all_reduce {size} {times[len(times) // 20] * 1e6:.1f} {times[len(times) // 2] * 1e6:.1f} {each * 1e6:.1f}", flush=True)
"""


def allreduce():
    """One all-reduce with the division by 2, in turn; ours from `cargo bench --bench collectives`. On a busy machine the 5th percentiles say most."""
    bench = args.collectives
    if not bench:
        command = ["cargo", "bench", "-p", "rankdeck-trainer", "--bench", "collectives", "--no-run"]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        found = re.search(r"\((target/[^)]*collectives-[^)]*)\)", built.stderr)
        if not found:
            sys.exit(f"cannot build the bench:\n{built.stderr[-3000:]}")
        bench = str(ROOT / found[1])
    (scratch / "gloo.py").write_text(GLOO)
    seen = {"ours": {}, "theirs": {}}

    def note(who, pattern, text):
        for size, *numbers in re.findall(pattern, text):
            seen[who].setdefault(int(size), []).append([float(number) for number in numbers])

    sizes = ["4", "1024", "36620", "65536", "1048576", "16777216"] if args.together else SIZES
    pipe = {"stdout": subprocess.PIPE, "text": True}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "BENCH_SIZES": ",".join(sizes)}
    for _ in range(args.rounds):
        own = subprocess.Popen([bench, "2"], env=env, **pipe)
        text = None if args.together else own.communicate()[0]
        command = [python, str(scratch / "gloo.py"), f"tcp://127.0.0.1:{port()}"]
        other = subprocess.Popen(command + ["1"] + sizes, env=env)
        first = subprocess.Popen(command + ["0"] + sizes, env=env, **pipe)
        note("theirs", r"all_reduce (\d+) ([\d.]+) ([\d.]+) ([\d.]+)", first.communicate()[0])
        other.wait()
        # The last table, sealed against plain, is another comparison.
        text = (text or own.communicate()[0]).split(" against ")[0]
        note("ours", r"all_reduce f32 avg +(\d+) +([\d.]+) +([\d.]+) +[\d.]+ +([\d.]+)", text)
        if own.returncode or first.returncode or other.returncode:
            sys.exit("a rank failed")
    print(f"\nall-reduce of f32 over 2 ranks, ours (encrypted) and torch.distributed over Gloo, {args.rounds} rounds {'at the same time' if args.together else 'in turn'}, load {os.getloadavg()[0]:.1f}; least of the rounds: 5th percentile, median, CPU time, us")
    print(f"{'bytes':>10}" + "".join(f"{who + ' ' + what:>13}{'' if who == 'ours' else '   ratio'}" for what in ("p5", "median", "CPU") for who in ("ours", "torch")))
    for size in map(int, sizes):
        ours, theirs = ([min(values) for values in zip(*seen[who][size])] for who in ("ours", "theirs"))
        print(f"{size:>10}" + "".join(f"{a:>13.1f}{b:>13.1f}{a / b:>8.2f}" for a, b in zip(ours, theirs)))


try:
    for name in args.what:
        globals()[name]()
finally:
    shutil.rmtree(scratch, ignore_errors=True)
