"""Plays environments in Gymnasium and prints what happened, one JSON object.

usage: gymnasium_classic.py ID BASE EPISODES ENVS

Environment i has the seed that rankdeck's streams give a training environment: the integer with the 32-bit digits
[0, 0, i, BASE, 0, 2]. Episodes end and begin within a step. Episodes 0, 2, 4 ... are played by a simple rule that knows the task, the
others at random, by `numpy.random.default_rng([BASE, i])`. Per episode: length, how it ended (T terminated, L limit), its return as
hexadecimal bits of an f64, and the first half of the SHA-256 of everything in it: first observation and state, then after every action
the observation (f32), reward (f32) and, unless the episode ended, state (f64).
`tests/data/classic.json` holds a list of such objects, made by record_classic.sh.
"""
import hashlib
import json
import struct
import sys

import gymnasium
import numpy


def rule(env_id, seen, swing):
    """An action that leads somewhere; every operation is one that IEEE 754 rounds exactly."""
    x = [float(value) for value in seen]
    if env_id.startswith("CartPole"):
        return int(x[2] + 0.5 * x[3] + 0.02 * x[0] + 0.1 * x[1] > 0)
    if env_id == "Pendulum-v1":
        return 2.5 if x[2] >= 0 else -2.5
    if env_id == "Acrobot-v1":
        return 2 if x[4] >= 0 else 0
    if env_id == "MountainCar-v0":
        return 2 if x[1] >= 0 else 0
    return (1.0 if x[1] >= 0 else -1.0) * (0.25 + swing)


def main():
    env_id, base, episodes, envs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    result = []
    for index in range(envs):
        env = gymnasium.make(env_id)
        space = env.action_space
        random = numpy.random.default_rng([base, index])
        seen, _ = env.reset(seed=(index << 64) + (base << 96) + (2 << 160))
        for episode in range(episodes):
            state = lambda: numpy.asarray(env.unwrapped.state, dtype=numpy.float64).tobytes()
            digest = hashlib.sha256(seen.tobytes() + state())
            total, length, ended = 0.0, 0, ""
            while not ended:
                number = random.random()
                if episode % 2 == 0:
                    action = rule(env_id, seen, number)
                elif hasattr(space, "n"):
                    action = int(number * space.n)
                else:
                    action = float(space.high[0]) * (2.5 * number - 1.25)
                if not hasattr(space, "n"):
                    action = numpy.array([action], dtype=numpy.float32)
                seen, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
                length += 1
                ended = "T" * terminated + "L" * truncated
                digest.update(seen.tobytes() + struct.pack("<f", reward) + (b"" if ended else state()))
            bits = "%016x" % struct.unpack("<Q", struct.pack("<d", total))[0]
            result.append("%d %s %s %s" % (length, ended, bits, digest.hexdigest()[:32]))
            seen, _ = env.reset()
    versions = "gymnasium %s, numpy %s" % (gymnasium.__version__, numpy.__version__)
    print(json.dumps({"id": env_id, "base": base, "envs": envs, "by": versions, "episodes": result}, indent=0))


main()
