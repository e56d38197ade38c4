#!/usr/bin/env python3
"""Two builds of rankdeck beside each other on this machine, in turn: start and stop, the agent's CPU time, PPO's CPU time,
the shortest runs.

    cargo build --release --workspace --features rankdeck-trainer/inject          # in both checkouts
    python3 benches/two_builds.py --before FOLDER --after . [--rounds 5] [start agent ppo short list]

Each round measures one build and then the other; the next round begins with the other one. A line gives the median of
each build and the median of the ratios (after / before) with its quartiles, so that what slows the machine for minutes
slows both. `start` and `agent` run each checkout's own `latency.py` and `overhead.py`; `ppo` runs each checkout's trainer
alone on CartPole with the same settings and divides CPU time by environment steps, start-up left out. `short` is all
start-up: one iteration of CartPole by four ranks of `--spawn`, and one of Pong by one rank (RANKDECK_TEST_PYTHON names a
Python with gymnasium and ale_py). `list` is what every preflight asks of a host: its runs, in a folder of 100 that have
ended, beside 300 processes.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

PPO = """[run]
name = "two-builds"
seed = 1
total_steps = {steps}
[env]
id = "CartPole-v1"
num_envs = 8
[policy]
hidden = [64, 64]
[collect]
num_steps = 128
[learn]
algorithm = "ppo"
[eval]
every = 0
[checkpoint]
every = 0
"""
STEPS = (50_000, 450_000)
PONG = """[run]
name = "two-builds"
seed = 1
total_steps = 64
[env]
id = "PongNoFrameskip-v4"
num_envs = 2
worker = "python"
python = "{python}"
[policy]
network = "nature"
hidden = [512]
[collect]
num_steps = 32
[learn]
algorithm = "ppo"
[eval]
every = 0
[checkpoint]
every = 0
"""


def output(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} in {folder} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def start(build):
    """Milliseconds of one start and one stop."""
    rows = output([sys.executable, "benches/latency.py", "--rounds", "1"], build).splitlines()[2:]
    return {row[:32].strip() + ", ms": float(row[32:].split()[1]) for row in rows}


def agent(build):
    """Share of a core that the agent of eight ranks takes."""
    text = output([sys.executable, "benches/overhead.py", "agent", "--seconds", "20"], build)
    return {"agent of 8 ranks at 10 Hz, % of a core": float(re.search(r"s: ([\d.]+) % of a core", text)[1])}


def trained(build, text, *words):
    """Seconds of CPU time and of the clock that the trainer takes for an experiment, with all that it starts."""
    with tempfile.TemporaryDirectory(prefix="rankdeck-bench-") as folder:
        path = pathlib.Path(folder) / "experiment.toml"
        path.write_text(text)
        command = [build / "target/release/rankdeck-trainer", "--config", path, "--run-dir", pathlib.Path(folder) / "run", *words]
        begun = time.monotonic()
        child = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        taken = time.monotonic() - begun
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            sys.exit(f"the trainer of {build} ended with {child.returncode}: {said[-2000:].decode()}")
    return usage.ru_utime + usage.ru_stime, taken


def ppo(build):
    """CPU microseconds per environment step of one rank."""
    used = [trained(build, PPO.format(steps=steps))[0] for steps in STEPS]
    return {"PPO CartPole, CPU microseconds per env step": 1e6 * (used[1] - used[0]) / (STEPS[1] - STEPS[0])}


def short(build):
    """Milliseconds of runs of one iteration."""
    python = os.environ.get("RANKDECK_TEST_PYTHON", "python3")
    four = trained(build, PPO.format(steps=4096), "--spawn", "4")
    pong = trained(build, PONG.format(python=python))
    return {
        f"{name}, {what} ms": 1000 * value
        for name, values in (("CartPole, 4 ranks", four), ("Pong, 1 rank", pong))
        for what, value in zip(("CPU", "wall"), values)
    }


def listed(build):
    """Milliseconds of `agent list`."""
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(300)]
    try:
        with tempfile.TemporaryDirectory(prefix="rankdeck-bench-") as folder:
            boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            for number in range(100):
                node = pathlib.Path(folder) / f"runs/ended-{number}/node0"
                node.mkdir(parents=True)
                manifest = {"run": f"ended-{number}", "hostname": os.uname().nodename, "boot_id": boot}
                (node / "manifest.json").write_text(json.dumps(manifest))
            command = [build / "target/release/rankdeck", "agent", "list", "--workdir", folder]
            assert output(command, folder).count("ended-99"), "the list has no such run"
            begun = time.monotonic()
            output(command, folder)
            return {"runs of a host, 100 ended, 300 processes, ms": 1000 * (time.monotonic() - begun)}
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", metavar="start|agent|ppo|short|list", default=["start", "agent", "ppo"])
    parser.add_argument("--before", type=pathlib.Path, required=True)
    parser.add_argument("--after", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    builds = [args.before.resolve(), args.after.resolve()]
    print(f"{args.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'median':48}{'before':>10}{'after':>10}   after / before (quartiles)")
    for measure in [dict(start=start, agent=agent, ppo=ppo, short=short, list=listed)[name] for name in args.what]:
        pairs = {}
        for number in range(args.rounds):
            order = [0, 1] if number % 2 == 0 else [1, 0]
            found = {which: measure(builds[which]) for which in order}
            for name in found[0]:
                pairs.setdefault(name, []).append((found[0][name], found[1].get(name)))
        for name, values in pairs.items():
            values = [pair for pair in values if pair[1] is not None]
            ratios = sorted(after / before for before, after in values)
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            before, after = (statistics.median(column) for column in zip(*values))
            print(f"{name:48}{before:10.3f}{after:10.3f}   {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
