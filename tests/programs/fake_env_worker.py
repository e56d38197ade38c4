#!/usr/bin/env python3
"""Implements the protocol of src/envs/python/worker.py without any package, for tests of the trainer.

Started in place of the interpreter: `-c PROGRAM MEMORY PROGRAM_FD ID`. Observations count the steps since the reset; the reward is the
action; action 1 ends an episode, except that with the ids fake-die, fake-hang, fake-garbage and fake-error it does so. With fake-slow:PATH
the first environment of a step is through at once and the second waits until PATH exists. fake-deaf reads nothing, fake-differs has other
spaces from the second environment of the rank on, fake-stays ignores the end of its input.
"""
import json
import mmap
import os
import struct
import sys
import time

memory, name = int(sys.argv[3]), sys.argv[5]
requests = open(0, "rb", buffering=0)


def message(tag, value):
    text = json.dumps(value).encode()
    os.write(1, tag + struct.pack("<I", len(text)) + text)


if name == "fake-deaf":
    time.sleep(3600)
at = json.loads(requests.readline())
if name == "fake-silent":
    time.sleep(3600)
while "id" in at:
    envs, first = at["envs"], at["first_env"]
    message(b"S", {"shape": [3 if first and name == "fake-differs" else 2], "type": "f32", "actions": {"n": 2}})
    at = json.loads(requests.readline() or "null")
    if at is None:
        sys.exit(0)
shared = mmap.mmap(memory, at["size"])


def observe(part, env, count):
    struct.pack_into("<2f", shared, at[part] + 8 * env, count, env)


counts = [0] * envs
while True:
    request = requests.read(1)
    if not request:
        if name == "fake-stays":
            time.sleep(3600)
        break
    for env in range(envs):
        if request == b"s" and env == 1 and name.startswith("fake-slow:"):
            while not os.path.exists(name.removeprefix("fake-slow:")):
                time.sleep(0.01)
        if request == b"r":
            counts[env] = 0
        else:
            (action,) = struct.unpack_from("<q", shared, at["actions"] + 8 * env)
            if action and name == "fake-die":
                sys.stderr.write("the last words\n")
                sys.exit(7)
            if action and name == "fake-hang":
                time.sleep(3600)
            if action and name == "fake-garbage":
                os.write(1, b"hello, world")
            if action and name == "fake-error":
                message(b"E", {"error": "it is broken", "hint": "mend it", "usage": False, "traceback": "a\nb"})
            counts[env] += 1
            struct.pack_into("<d", shared, at["rewards"] + 8 * env, float(action))
            shared[at["terminated"] + env] = action
            if action:
                observe("final_observations", env, counts[env])
                counts[env] = 0
        observe("observations", env, counts[env])
        struct.pack_into("<Q", shared, at["moves"], struct.unpack_from("<Q", shared, at["moves"])[0] + 1)
    os.write(1, b"k")
