#!/usr/bin/env python3
"""Is a run that was interrupted and resumed by command the run that was not, to the bit?

    cargo build --release --workspace
    python3 benches/resume_exact.py [--times 10] [--only ppo,dqn,sac,ppg] [--binary target/release/rankdeck]

For each algorithm, one run of two local ranks goes through. Another of the same settings is stopped by `rankdeck stop` after a
random iteration, at whatever the ranks do then, and resumed by `rankdeck restart`, again and again, until it is through, too.
Every array, counter and environment of their last checkpoints must be equal; time spent is not compared.
"""
import argparse
import contextlib
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import agents  # noqa: E402
import checkpoint_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = '[defaults]\ntransport = "local"\nworkdir = "{}"\n[[host]]\nname = "node0"\nnproc = 2\n'
REPLAY = "\n[checkpoint]\nreplay = true\nbest = false\n"
OFF = "batch_size = 32\nlearning_starts = 200\nbuffer_size = 4000\nupdates_per_iteration = 4\n"
PROGRAMS = {
    "ppo": ("CartPole-v1", 128, 'algorithm = "ppo"\n[checkpoint]\nbest = false\n'),
    "dqn": ("CartPole-v1", 16, f'algorithm = "dqn"\n{OFF}{REPLAY}'),
    "sac": ("Pendulum-v1", 8, f'algorithm = "sac"\n{OFF}{REPLAY}'),
    "pqn": ("CartPole-v1", 64, 'algorithm = "pqn"\n[checkpoint]\nbest = false\n'),
    "ppg": ("CartPole-v1", 64, f'algorithm = "ppg"\npolicy_iterations = 8\naux_num_minibatches = 8\n{REPLAY}'),
}
# Algorithms whose iterations end before they are reported need this many times as many.
MORE = {"dqn": 16}


def experiment(name, iterations):
    env, steps, learn = PROGRAMS[name]
    return (f'[run]\nname = "exact"\nseed = 5\ntotal_steps = {iterations * steps * 4}\n[env]\nid = "{env}"\nnum_envs = 4\n'
            f'[collect]\nnum_steps = {steps}\n[eval]\nevery = 50\nepisodes = 4\n[policy]\nhidden = [32, 32]\n[learn]\n{learn}')


class Place:
    """A folder in which commands run."""

    def __init__(self, binary, folder, name, iterations):
        self.binary, self.folder = str(binary), pathlib.Path(folder)
        (self.folder / "hosts.toml").write_text(HOSTS.format(folder))
        (self.folder / "exact.toml").write_text(experiment(name, iterations))

    def call(self, *words):
        return subprocess.run([self.binary, *words], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def run(self):
        """The run as `ps` reports it."""
        return json.loads(self.call("ps", "--json", "--all").stdout.splitlines()[0])

    def wait(self):
        while True:
            state = self.run()
            if state["state"] == "finished":
                return state
            time.sleep(0.2)

    def reach(self, iteration):
        """Waits until this many iterations are done, or the run has ended."""
        while (state := self.run())["state"] != "finished" and (state["train_iter"] or 0) < iteration:
            time.sleep(0.02)

    def begin(self):
        done = self.call("run", "exact.toml", "--detach")
        if done.returncode:
            sys.exit(done.stderr)

    def close(self):
        """Leaves no run behind, also when this program is interrupted."""
        self.call("stop", "--kill")
        agents.wait_until_gone(self.folder)

    def checkpoint(self):
        return next(self.folder.glob("runs/*/checkpoints/latest.ckpt"))


def compare(args, name):
    iterations = args.iterations * MORE.get(name, 1)
    with tempfile.TemporaryDirectory(prefix="exact-") as one, tempfile.TemporaryDirectory(prefix="exact-") as other, \
            contextlib.ExitStack() as places:
        whole, parts = (places.enter_context(contextlib.closing(Place(args.binary, folder, name, iterations)))
                        for folder in (one, other))
        whole.begin()
        end = whole.wait()
        if end["outcome"] != "succeeded":
            sys.exit(f"{name}: the whole run ended otherwise: {end}")
        dice, times, at = random.Random(name), 0, []
        parts.begin()
        while times < args.times:
            done = at[-1] if at else 0
            parts.reach(done + dice.uniform(0.1, 0.9) * (iterations - done) / (args.times - times + 1))
            stopped = parts.call("stop")
            state = parts.wait()
            if state["outcome"] == "succeeded":
                break
            if stopped.returncode or state["outcome"] != "stopped" or not state.get("clean", True):
                sys.exit(f"{name}: no clean stop: {stopped.stderr} {state}")
            times += 1
            at.append(state["train_iter"])
            again = parts.call("restart", state["run"], "--yes")
            if again.returncode:
                sys.exit(f"{name}: not resumed: {again.stderr}")
        end = parts.wait()
        if end["outcome"] != "succeeded":
            sys.exit(f"{name}: the resumed run ended otherwise: {end}")
        apart = checkpoint_file.differences(whole.checkpoint(), parts.checkpoint())
        print(f"{name}: stopped and resumed {times} times, after iterations {at}: {'equal' if not apart else apart}", flush=True)
        return not apart and times == args.times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/rankdeck")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(not all([compare(args, name) for name in args.only.split(",")]))


if __name__ == "__main__":
    main()
