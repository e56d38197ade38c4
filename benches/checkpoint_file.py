"""Checkpoints of the built-in trainer, as src/trainer/checkpoint.rs lays them out: whole or not, and in which part two differ."""
import hashlib
import json
import math
import struct


def read(path):
    """The header and the bytes of each part; an error when the file is not whole."""
    data = path.read_bytes()
    if data[:8] != b"RANKDECK" or hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise ValueError(f"{path} is not whole")
    end = 16 + struct.unpack("<I", data[12:16])[0]
    header = json.loads(data[16:end])
    parts = {}
    for name, shape in header["arrays"]:
        parts[name], end = data[end:end + 4 * math.prod(shape)], end + 4 * math.prod(shape)
    for name, count in header["words"]:
        parts[name], end = data[end:end + 8 * count], end + 8 * count
    each = header["words_per_rank"]
    for rank in range(header["world_size"]):
        words = list(struct.unpack(f"<{each}Q", data[end:end + 8 * each]))
        # The fourth counter is time spent, which no run repeats.
        words[3] = 0
        parts[f"rank {rank}"], end = words, end + 8 * each
    return header, parts


def differences(one, other):
    """Names of what differs between two files, apart from what was trained where."""
    (head, parts), (other_head, other_parts) = read(one), read(other)
    heads = [key for key in head.keys() | other_head.keys() if key != "about" and head.get(key) != other_head.get(key)]
    return heads + [name for name in parts.keys() | other_parts.keys() if parts.get(name) != other_parts.get(name)]
