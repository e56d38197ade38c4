#!/usr/bin/env python3
"""Do 1, 2, 3 and 4 ranks learn the same bits with `distributed.invariant`, what does it cost, and where do runs part?

    cargo build --release --workspace
    python3 benches/invariant.py [--iterations 100] [--rounds 3] [--binary target/release/rankdeck]

Three parts, each with a line of JSON per result:

hash   SHA-256 of all weights after 100 iterations of configs/cartpole_ppo_invariant.toml and of an A2C, by number of
       ranks. Without the mode, the hashes must differ: else the check proves nothing.
cost   environment steps per second of wall time and per second of CPU time, with the mode and without it, in turn.
diff   `rankdeck diff` on a changed weight, a changed seed and a changed learning rate: what it names, and its time.
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import checkpoint_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PPO = (ROOT / "configs/cartpole_ppo_invariant.toml").read_text()
A2C = """
[run]
name = "a2c"
seed = 1
total_steps = 500_000
[distributed]
backend = "tcp"
invariant = true
invariant_blocks = 12
[env]
id = "Pendulum-v1"
num_envs = 12
[collect]
num_steps = 16
normalise_observations = true
[learn]
algorithm = "a2c"
norm_adv = true
norm_adv_over = "world"
"""
WORLDS = (1, 2, 3, 4)


def resolved(text, iterations, mode=True, **changes):
    """The experiment for so many iterations, without evaluations."""
    text = re.sub(r"(?ms)^\[(eval|checkpoint)\].*?(?=^\[|\Z)", "", text)
    envs, steps = (int(re.search(rf"(?m)^{key} = (\d+)", text)[1]) for key in ("num_envs", "num_steps"))
    changes["total_steps"] = iterations * envs * steps
    for key, value in changes.items():
        text = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
    if not mode:
        text = re.sub(r"(?m)^invariant.*\n", "", text)
    return text + f"\n[eval]\nevery = 0\n[checkpoint]\nevery = {max(iterations // 4, 1)}\nbest = false\n"


class Trainer:
    def __init__(self, args):
        self.rankdeck = args.binary
        self.program = args.binary.with_name("rankdeck-trainer")
        torch = os.environ.get("LIBTORCH", ROOT / ".libtorch/torch")
        self.env = {**os.environ, "LD_LIBRARY_PATH": f"{torch}/lib", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def train(self, folder, text, world, resume=None):
        """Wall and CPU seconds of a run."""
        folder.mkdir(exist_ok=True)
        config = folder / "experiment.toml"
        config.write_text(text)
        words = [self.program, "--config", config, "--run-dir", folder, "--spawn", str(world)]
        words += ["--resume", resume] if resume else []
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(words, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.monotonic() - start, cpu

    def diff(self, one, other):
        start = time.monotonic()
        words = [self.rankdeck, "diff", one, other, "--json"]
        done = subprocess.run(words, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(done.stderr)
        return done.returncode, json.loads(done.stdout.splitlines()[-1]), time.monotonic() - start


def weights(folder):
    _, parts = checkpoint_file.read(folder / "checkpoints/latest.ckpt")
    digest = hashlib.sha256()
    for name in sorted(parts):
        if isinstance(parts[name], bytes):
            digest.update(parts[name])
    return digest.hexdigest()


def report(**values):
    print(json.dumps(values), flush=True)


def hashes(trainer, args, folder):
    equal = True
    for name, text in (("ppo", PPO), ("a2c", A2C)):
        for mode in (True, False):
            found = {}
            for world in WORLDS:
                place = folder / f"{name}-{mode}-{world}"
                trainer.train(place, resolved(text, args.iterations, mode), world)
                found[world] = weights(place)
                report(part="hash", algorithm=name, invariant=mode, ranks=world, sha256=found[world])
            same = len(set(found.values())) == 1
            equal &= same == mode
    return equal


def cost(trainer, args, folder):
    iterations = 4 * args.iterations
    for name, text in (("ppo", PPO), ("a2c", A2C)):
        for world in WORLDS[:2]:
            figures = {True: [], False: []}
            for round_ in range(args.rounds):
                for mode in (True, False):
                    place = folder / f"cost-{name}-{world}-{mode}-{round_}"
                    long = trainer.train(place, resolved(text, iterations, mode), world)
                    short = trainer.train(place, resolved(text, 4, mode), world)
                    # What starting takes is the same for both.
                    figures[mode].append([a - b for a, b in zip(long, short)])
            (wall, cpu), (plain_wall, plain_cpu) = (
                [sorted(figure[i] for figure in figures[mode])[args.rounds // 2] for i in (0, 1)] for mode in (True, False))
            report(part="cost", algorithm=name, ranks=world, wall_s=round(wall, 3), cpu_s=round(cpu, 3),
                   plain_wall_s=round(plain_wall, 3), plain_cpu_s=round(plain_cpu, 3),
                   wall_ratio=round(wall / plain_wall, 3), cpu_ratio=round(cpu / plain_cpu, 3))


def plant(path, tensor):
    """Flips the lowest bit of a tensor's first number."""
    data = bytearray(path.read_bytes())
    end = 16 + struct.unpack("<I", data[12:16])[0]
    for name, shape in json.loads(data[16:end])["arrays"]:
        if name == tensor:
            break
        end += 4 * math.prod(shape)
    data[end] ^= 1
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    path.write_bytes(data)


def diffs(trainer, args, folder):
    text = resolved(PPO, args.iterations)
    quarter = args.iterations // 4
    base = folder / "base"
    trainer.train(base, text, 1)
    start = base / f"checkpoints/iter-{quarter}.ckpt"
    right = True

    def found(what, other, expected):
        nonlocal right
        code, line, seconds = trainer.diff(base, other)
        names = expected(line)
        right &= code == 1 and names
        report(part="diff", planted=what, code=code, named=names, seconds=round(seconds, 2),
               **{key: line[key] for key in ("last_equal", "first_different", "tensors", "operation", "settings", "replay")})

    weight = folder / "weight"
    (weight / "checkpoints").mkdir(parents=True)
    for name in ("fingerprints.txt", f"checkpoints/iter-{quarter}.ckpt"):
        (weight / name).write_bytes((base / name).read_bytes())
    changed = weight / f"checkpoints/iter-{quarter}.ckpt"
    plant(changed, "model.actor.2.weight")
    trainer.train(weight, text, 1, changed)
    found("weight", weight, lambda line: line["first_different"] == quarter + 1
          and line["tensors"]["train_iter"] == quarter
          and [tensor["name"] for tensor in line["tensors"]["tensors"]] == ["model.actor.2.weight"])
    seed = folder / "seed"
    trainer.train(seed, resolved(PPO, args.iterations, seed=2), 1)
    found("seed", seed, lambda line: line["first_different"] == 1 and line["operation"]["stage"] == "start"
          and line["settings"][0]["key"] == "run.seed")
    rate = folder / "rate"
    trainer.train(rate, resolved(PPO, args.iterations, learning_rate=0.0011), 3, start)
    found("learning rate", rate, lambda line: line["first_different"] == quarter + 1
          and (line["operation"]["stage"], line["operation"]["update"]) == ("step", 0))
    other = folder / "four"
    trainer.train(other, text, 4)
    code, line, seconds = trainer.diff(base, other)
    report(part="diff", planted="nothing, 1 and 4 ranks", code=code, compared=line["compared_iterations"], seconds=round(seconds, 2))
    return right and code == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/rankdeck")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    trainer = Trainer(args)
    with tempfile.TemporaryDirectory(prefix="invariant-") as folder:
        folder = pathlib.Path(folder)
        equal = hashes(trainer, args, folder)
        named = diffs(trainer, args, folder)
        cost(trainer, args, folder)
    report(part="all", equal=equal, named=named)
    sys.exit(0 if equal and named else 1)


if __name__ == "__main__":
    main()
