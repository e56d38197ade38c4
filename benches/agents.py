"""Agents on this machine, which outlive a stop by a moment and write into the folders of their runs."""
import pathlib
import time


def of(folder):
    """Processes that serve runs below a folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"serve" in words and any(word.startswith(bytes(folder)) for word in words):
            found.append(int(entry.name))
    return found


def wait_until_gone(folder, seconds=60):
    """Returns when the folder can be removed."""
    deadline = time.monotonic() + seconds
    while left := of(folder):
        if time.monotonic() > deadline:
            raise TimeoutError(f"agents {left} still serve runs in {folder}")
        time.sleep(0.05)
