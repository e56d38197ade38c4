"""Plays an environment in Gymnasium and prints what happened, one JSON object, floats as hexadecimal bits.

usage: gymnasium_cartpole.py ID SEED ACTIONS     SEED: any integer >= 0. ACTIONS: string of digits, or balance:N or random:N

An episode's end is followed by an unseeded reset within the same step, as in Gymnasium's SAME_STEP autoreset.
`tests/data/cartpole.json` holds a list of such objects, made by record_cartpole.sh.
"""
import json
import random
import struct
import sys

import gymnasium

KEEP = 10  # of balance runs every KEEP-th state is kept, and all near an end


def bits(value):
    return "%016x" % struct.unpack("<Q", struct.pack("<d", float(value)))[0]


def bits32(value):
    return "%08x" % struct.unpack("<I", struct.pack("<f", float(value)))[0]


def main():
    env_id, seed, plan = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    env = gymnasium.make(env_id)
    kind, _, count = plan.partition(":")
    length = int(count) if count else len(plan)
    choose = random.Random(5)
    observation, _ = env.reset(seed=seed)
    result = {"id": env_id, "seed": str(seed), "gymnasium": gymnasium.__version__, "first": [bits(x) for x in env.unwrapped.state]}
    actions, rewards, ends, states = "", "", {}, {}
    for step in range(length):
        x, x_dot, theta, theta_dot = env.unwrapped.state
        if kind == "balance":
            action = int(theta + 0.5 * theta_dot + 0.02 * x + 0.1 * x_dot > 0)
        elif kind == "random":
            action = choose.randrange(2)
        else:
            action = int(plan[step])
        observation, reward, terminated, truncated, _ = env.step(action)
        actions += str(action)
        rewards += str(int(reward))
        done = terminated or truncated
        if kind != "balance" or done or step % KEEP == 0:
            states[step] = [bits(x) for x in env.unwrapped.state] + [bits32(x) for x in observation]
        if done:
            env.reset()
            ends[step] = ["T" * terminated + "L" * truncated] + [bits(x) for x in env.unwrapped.state]
    result.update(actions=actions, rewards=rewards, ends=ends, states=states)
    print(json.dumps(result, separators=(",", ":")))


main()
