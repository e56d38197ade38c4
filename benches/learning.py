"""What the shipped settings learn: one command per item, with the bar it must reach. Uses the release binary; a run per seed, nothing is averaged away.

    python3 benches/learning.py ppo-cartpole                     # one item, or several, or `all`
    python3 benches/learning.py dqn-cartpole --seeds 1,2,3       # other seeds than the item's own
    python3 benches/learning.py ppo-cartpole --world 2           # another number of ranks, all on this machine
    python3 benches/learning.py dqn-reference --python P         # CleanRL's own dqn.py for comparison (`benches/reference.py setup` fetches it)
    python3 benches/learning.py pqn-reference td3-reference      # the same of pqn.py and td3_continuous_action.py
    python3 benches/learning.py curve RUN_DIR                    # the curve of any run, from its TensorBoard files

Figures are of two kinds. *Training*: the mean return of the last 100 training episodes over all ranks, actions sampled or epsilon-greedy as they were
taken (`charts/return_last_100`; CleanRL's published figures are of this kind); evaluations are off, so that the run lasts its whole budget. *Evaluation*:
the mean of whole episodes with the greedy policy. Of at least four seeds, the interquartile mean is printed with a 95 % bootstrap interval. Stop values are off but where the item is about reaching one. Exit code 1 when a bar is missed.
"""

import argparse
import dataclasses
import os
import pathlib
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLEANRL = "cleanrl-fe8d8a03c41a"


@dataclasses.dataclass
class Item:
    """Settings of a file in configs/, what is changed in them, and what is asked of them."""

    config: str
    # Text, which figure of a run, how to make one number of all seeds' figures, and what it must be at least.
    bars: tuple
    changes: dict = dataclasses.field(default_factory=dict)
    # Training: environment steps at which the last 100 are looked at, the last one being the end. Evaluation:
    # empty.
    marks: tuple = ()
    stops: bool = False
    seeds: tuple = (1, 2, 3)
    worlds: tuple = (1,)
    # Where the file is.
    folder: str = "configs"


ABOVE_195 = (("the last evaluation of 10 episodes, at 51,200 steps, is above 195", "last eval", min, 195.001),)
ABOVE_MINUS_200 = (("the last evaluation of 20 episodes is at least -200", "last eval", min, -200),)
ITEMS = {
    "ppo-cartpole": Item(
        "cartpole_ppo",
        (
            ("last 100 at 500k at least 475 with every seed", "at 500k", min, 475),
            ("last 100 at 500k at least 484 on average", "at 500k", statistics.mean, 484),
            ("last 100 at 200k at least 400 on average", "at 200k", statistics.mean, 400),
            ("last 100 at 200k at least 400 with every seed", "at 200k", min, 400),
        ),
        marks=(200_000, 500_000),
        worlds=(1, 2),
    ),
    "ppo-lstm-cartpole": Item(
        "cartpole_no_velocity_lstm",
        (("last 100 at 500k at least 400 on average", "at 500k", statistics.mean, 400),),
        marks=(200_000, 500_000),
        seeds=tuple(range(1, 11)),
    ),
    "ppo-mingru-cartpole": Item(
        "cartpole_no_velocity_lstm",
        (("last 100 at 500k at least 400 on average", "at 500k", statistics.mean, 400),),
        changes={"policy.memory": "mingru"},
        marks=(200_000, 500_000),
        seeds=tuple(range(1, 11)),
    ),
    # Without memory: what the observations alone allow.
    "ppo-blind-cartpole": Item(
        "cartpole_no_velocity_lstm",
        (),
        changes={"policy.memory": None, "policy.memory_size": None},
        marks=(200_000, 500_000),
    ),
    "dqn-cartpole": Item(
        "cartpole_dqn",
        (("median of last 100 at 500k at least 472", "at 500k", statistics.median, 472),),
        # CleanRL steps one environment.
        changes={"env.num_envs": 1, "collect.num_steps": 10},
        marks=(200_000, 500_000),
        seeds=tuple(range(1, 11)),
    ),
    "pqn-cartpole": Item(
        "cartpole_pqn",
        (("mean of last 100 at 500k at least 400", "at 500k", statistics.mean, 400),),
        marks=(200_000, 500_000),
        seeds=tuple(range(1, 11)),
    ),
    "dqn-dizoo": Item(
        "cartpole_dqn_dizoo",
        (("an evaluation of 5 episodes reaches 195, which ends the run", "last eval", min, 195),),
        stops=True,
        worlds=(1, 2),
    ),
    "ppo-alf": Item("cartpole_ppo_alf", ABOVE_195, worlds=(1, 2)),
    "ppg-alf": Item("cartpole_ppg", ABOVE_195, worlds=(1, 2)),
    "ppo-pendulum": Item("pendulum_ppo", ABOVE_MINUS_200, worlds=(1, 2)),
    "a2c-pendulum": Item("pendulum_a2c", ABOVE_MINUS_200, worlds=(1, 2)),
    "td3-pendulum": Item(
        "pendulum_td3",
        (("the last evaluation of 20 episodes, at 20,000 steps, is at least -160", "last eval", min, -160),),
        seeds=tuple(range(1, 11)),
    ),
    # A random choice among the allowed actions earns 4 of 16. Needs Python with gymnasium.
    "ppo-masked": Item(
        "masked_ppo",
        (("the last evaluation of 8 episodes, at 8,192 steps, is at least 14 of 16", "last eval", min, 14),),
        seeds=tuple(range(1, 11)),
        folder="tests/programs",
    ),
    "sac-pendulum": Item("pendulum_sac", (("the last evaluation of 20 episodes, at 20,000 steps, is at least -160", "last eval", min, -160),)),
}

@dataclasses.dataclass
class Reference:
    """A script of CleanRL, and what is read from the episodes that it prints."""

    script: str
    # Whose seeds it takes.
    item: str
    # Environment steps at which the last episodes are looked at, and how many.
    marks: tuple
    last: int = 100
    arguments: tuple = ()


REFERENCES = {
    "dqn-reference": Reference("dqn.py", "dqn-cartpole", (200_000, 500_000)),
    "pqn-reference": Reference("pqn.py", "pqn-cartpole", (200_000, 500_000)),
    # With the budget and the warm-up of configs/pendulum_td3.toml; its actions have exploration noise.
    "td3-reference": Reference(
        "td3_continuous_action.py",
        "td3-pendulum",
        (20_001,),
        last=20,
        arguments=("--env-id", "Pendulum-v1", "--total-timesteps", "20000", "--learning-starts", "1000"),
    ),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", nargs="+", help=f"{', '.join([*ITEMS, 'all', *REFERENCES])}, or `curve RUN_DIR...`")
parser.add_argument("--seeds", type=lambda text: tuple(int(seed) for seed in text.split(",")))
parser.add_argument("--world", type=lambda text: tuple(int(world) for world in text.split(",")))
parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="changes a setting, such as eval.episodes=1000")
parser.add_argument("--keep", type=pathlib.Path, help="where run directories stay; else they are removed")
parser.add_argument("--trainer", default=str(ROOT / "target/release/rankdeck-trainer"))
parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/rankdeck-benches")
parser.add_argument("--python", help="an interpreter that has CleanRL's packages, instead of the one in the cache")
args = parser.parse_args()
scratch = args.keep or pathlib.Path(tempfile.mkdtemp(prefix="rankdeck-learning-"))
scratch.mkdir(parents=True, exist_ok=True)


# ---- settings ----


def settings(item, seed, world):
    """The shipped file with the item's changes, as a file."""
    config = tomllib.loads((ROOT / f"{item.folder}/{item.config}.toml").read_text())
    changes = {"run.seed": seed, **item.changes}
    if item.marks:
        step = config["env"]["num_envs"] * config["collect"]["num_steps"]
        if {"env.num_envs", "collect.num_steps"} <= changes.keys():
            step = changes["env.num_envs"] * changes["collect.num_steps"]
        # A checkpoint makes a report in its iteration.
        changes |= {"eval.every": 0, "checkpoint.every": item.marks[0] // step, "checkpoint.best": False}
    changes |= {name: tomllib.loads(f"value = {value}")["value"] for name, value in (change.split("=", 1) for change in args.set)}
    for name, value in changes.items():
        section, key = name.split(".")
        config.setdefault(section, {})[key] = value
        if value is None:
            del config[section][key]
    if not item.stops:
        config.get("eval", {}).pop("stop_value", None)
    path = scratch / f"{item.config}-{seed}-{world}.toml"
    path.write_text("".join(f"[{name}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in section.items()) for name, section in config.items()))
    return path


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


# ---- TensorBoard files ----


def fields(message):
    """Number and value of each field of a protocol buffer message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        length = {0: 0, 1: 8, 2: None, 5: 4}[key & 7]
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = varint() if length is None else length
        yield key >> 3, message[at : at + length]
        at += length


def scalars(run_dir):
    """tag -> {env_step: value}, of all lives of a run."""
    found = {}
    for path in sorted((run_dir / "tensorboard").glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = dict(fields(data[at + 12 : at + 12 + length]))
            at += 16 + length
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                found.setdefault(value[1].decode(), {})[event.get(2, 0)] = struct.unpack("<f", value[2])[0]
    return found


def at_or_before(points, step):
    """The value of the last point up to `step`, which must be within 2,000 steps of it."""
    steps = [point for point in points if point <= step]
    if not steps or step - max(steps) >= 2_000:
        sys.exit(f"no report near step {step}")
    return points[max(steps)]


# ---- runs ----


def run(item, seed, world):
    name = f"{item.config}-{seed}-{world}"
    folder = scratch / name
    shutil.rmtree(folder, ignore_errors=True)
    command = [args.trainer, "--config", str(settings(item, seed, world)), "--run-dir", str(folder)]
    command += ["--spawn", str(world)] if world > 1 else []
    begin = time.monotonic()
    paths = [str(ROOT / item.folder), os.environ.get("PYTHONPATH")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ended = subprocess.run(command, capture_output=True, text=True, env=env)
    wall = time.monotonic() - begin
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {ended.returncode}:\n{(ended.stdout + ended.stderr)[-3000:]}")
    found = scalars(folder)
    if not args.keep:
        shutil.rmtree(folder)
    return {**figures(item, found), "wall": wall}


def figures(item, found):
    if item.marks:
        points = found["charts/return_last_100"]
        return {f"at {mark // 1000}k": at_or_before(points, mark) for mark in item.marks}
    evals = sorted((step, value) for step, value in found["eval/return_mean"].items() if step > 0)
    return {"last eval": evals[-1][1], "steps": evals[-1][0], "best eval": max(value for _, value in evals)}


def show(name):
    item = ITEMS[name]
    missed = False
    for world in args.world or item.worlds:
        title = ", ".join([name, f"{item.folder}/{item.config}.toml", f"{world} rank{'s' if world > 1 else ''}", *args.set])
        print(f"\n{title}, load {os.getloadavg()[0]:.1f}", flush=True)
        rows = []
        for seed in args.seeds or item.seeds:
            rows.append(run(item, seed, world))
            values = "  ".join(f"{key} {text(key, value)}" for key, value in rows[-1].items())
            print(f"  seed {seed:<3} {values}", flush=True)
        for key in rows[0]:
            if key not in ("wall", "steps"):
                print(f"  {key:9} {spread([row[key] for row in rows])}")
        for text_of_bar, key, together, low in item.bars:
            good = together(row[key] for row in rows) >= low
            missed |= not good
            print(f"  {'reached' if good else 'MISSED '} {text_of_bar}", flush=True)
    return not missed


def text(key, value):
    return {"wall": f"{value:.1f} s", "steps": f"{value:,.0f}"}.get(key, f"{value:.1f}")


def spread(values):
    line = f"mean {statistics.mean(values):.1f}  median {statistics.median(values):.1f}  min {min(values):.1f}  max {max(values):.1f}"
    if len(values) >= 4:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        line += f"  quartiles {low:.1f} {high:.1f}"
        low, middle, high = interquartile_mean(values)
        line += f"  interquartile mean {middle:.1f} ({low:.1f} to {high:.1f})"
    return line


def interquartile_mean(values):
    """The mean of the middle half, between the ends of its 95 % bootstrap interval (Agarwal et al. 2021)."""

    def middle(values):
        cut = len(values) // 4
        return statistics.mean(sorted(values)[cut : len(values) - cut])

    chance = random.Random(0)
    drawn = sorted(middle(chance.choices(values, k=len(values))) for _ in range(2_000))
    return drawn[49], middle(values), drawn[-50]


def reference(name):
    """A script of CleanRL; what a seed printed stays in the cache and is not made again."""
    of = REFERENCES[name]
    python = args.python or str(args.cache / "venv/bin/python")
    sources, outputs = args.cache / CLEANRL, args.cache / name
    script = sources / "cleanrl" / of.script
    if not script.exists():
        sys.exit(f"{script} not found; run `python3 benches/reference.py setup` first")
    outputs.mkdir(exist_ok=True)
    print(f"\n{name}, CleanRL's {of.script}, load {os.getloadavg()[0]:.1f}", flush=True)
    rows = []
    for seed in args.seeds or ITEMS[of.item].seeds:
        output = outputs / f"seed-{seed}.txt"
        if not output.exists():
            command = [python, str(script), "--no-cuda", "--seed", str(seed), *of.arguments]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(sources)}
            with open(f"{output}.part", "w") as part:
                subprocess.run(command, check=True, cwd=scratch, env=env, stdout=part, stderr=subprocess.STDOUT)
            os.rename(f"{output}.part", output)
        found = re.findall(r"global_step=(\d+), episodic_return=\[?(-?[\d.]+)", output.read_text())
        ended = [(int(step), float(value)) for step, value in found]
        row = {}
        for mark in of.marks:
            last = [value for step, value in ended if step < mark][-of.last :]
            row[f"at {mark // 1000}k"] = statistics.mean(last)
        rows.append(row)
        print(f"  seed {seed:<3} " + "  ".join(f"{key} {value:.1f}" for key, value in row.items()), flush=True)
    for key in rows[0]:
        print(f"  {key:9} {spread([row[key] for row in rows])}")


def curve(run_dir):
    found = scalars(run_dir)
    tags = [tag for tag in ("charts/return_last_100", "charts/episodic_return", "eval/return_mean", "charts/SPS") if tag in found]
    tags += sorted(tag for tag in found if tag.startswith("losses/"))
    print(f"\n{run_dir}\n{'env_step':>10} " + " ".join(f"{tag.split('/')[1][:15]:>15}" for tag in tags))
    steps = sorted(set().union(*(found[tag] for tag in tags)))
    chosen = steps if len(steps) <= 25 else [steps[round(i * (len(steps) - 1) / 24)] for i in range(25)]
    for step in chosen:
        # The latest value up to there.
        known = [max((point for point in found[tag] if point <= step), default=None) for tag in tags]
        print(f"{step:>10} " + " ".join(f"{'-' if at is None else f'{found[tag][at]:.4g}':>15}" for tag, at in zip(tags, known)))


try:
    if args.what[0] == "curve":
        for folder in args.what[1:]:
            curve(pathlib.Path(folder))
    else:
        names = list(ITEMS) if args.what == ["all"] else args.what
        unknown = [name for name in names if name not in ITEMS and name not in REFERENCES]
        if unknown:
            parser.error(f"no item {', '.join(unknown)}; there are {', '.join([*ITEMS, *REFERENCES])}, curve")
        if not all([reference(name) is None if name in REFERENCES else show(name) for name in names]):
            sys.exit(1)
finally:
    if not args.keep:
        shutil.rmtree(scratch, ignore_errors=True)
