#!/usr/bin/env python3
"""An environment worker without packages, for tests that only count what a GPU is asked for.

Implements the protocol of src/envs/python/worker.py: pictures as an Atari game's, another one each step, and an end after 50 steps.
Started in place of the interpreter: `-c PROGRAM MEMORY PROGRAM_FD ID`.
"""
import json
import mmap
import os
import struct
import sys

SHAPE, EPISODE = [4, 84, 84], 50
SIZE = SHAPE[0] * SHAPE[1] * SHAPE[2]
PICTURES = [bytes([shade]) * SIZE for shade in range(EPISODE + 1)]
requests = open(0, "rb", buffering=0)

spaces = json.dumps({"shape": SHAPE, "type": "u8", "actions": {"n": 6}}).encode()
while "id" in (at := json.loads(requests.readline())):
    os.write(1, b"S" + struct.pack("<I", len(spaces)) + spaces)
shared = mmap.mmap(int(sys.argv[3]), at["size"])
envs = at["envs"]
steps, moves = 0, 0


def show(part):
    shared[at[part]:at[part] + envs * SIZE] = PICTURES[steps] * envs


while request := requests.read(1):
    steps = 0 if request == b"r" else steps + 1
    ends = steps == EPISODE
    shared[at["terminated"]:at["terminated"] + envs] = bytes([ends]) * envs
    if ends:
        show("final_observations")
        steps = 0
    show("observations")
    moves += envs
    struct.pack_into("<Q", shared, at["moves"], moves)
    os.write(1, b"k")
