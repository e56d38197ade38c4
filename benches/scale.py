#!/usr/bin/env python3
"""The screen of many ranks: what it takes of a core and of memory, and how long a key waits for its frame.

    make build
    python3 benches/scale.py [--ranks 32,1024,4096] [--seconds 60] [--keys 200] [--binary target/release/rankdeck]

`rankdeck demo` with eight simulated ranks per host (sixteen at 4,096), two reports of each host per second (one from 256 ranks on, as agents
give them), in a terminal of 200 x 60. The
simulated hosts are threads of the same process: the console's share of a core is that of the main thread, of the one that writes the terminal and of the one
that writes the record, and the memory is that of all. Keys are pressed at random moments of each page in turn: j, k, G and g,
and the numbers of the pages. Measured is the time from the key's byte to the last byte of output before 5 ms of silence.
"""
import argparse
import fcntl
import os
import pathlib
import pty
import random
import select
import signal
import statistics
import struct
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SILENCE = 0.005


def cpu(stat):
    """CPU seconds so far of a process or a thread."""
    fields = pathlib.Path(stat).read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def console(pid):
    """CPU seconds so far of the threads of the console itself: the main one, those that write the terminal and the record."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    named = lambda name: sum(cpu(task / "stat") for task in tasks.iterdir() if (task / "comm").read_text().strip() == name)
    return cpu(tasks / str(pid) / "stat"), named("terminal"), named("record")


def peak(pid):
    """MiB at most."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def read_for(terminal, seconds):
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            os.read(terminal, 1 << 16)


def frame(terminal, key):
    """Milliseconds from a key to the end of its frame; None where nothing was drawn within a second."""
    begun = time.monotonic()
    os.write(terminal, key)
    last = None
    while select.select([terminal], [], [], SILENCE if last else 1)[0]:
        os.read(terminal, 1 << 16)
        last = time.monotonic()
    return None if last is None else (last - begun) * 1000


def measure(binary, ranks, seconds, keys):
    folder = tempfile.mkdtemp(prefix="rdscale")
    nodes = min(256, max(1, ranks // 8))
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        os.chdir(folder)
        env = dict(os.environ, TERM="xterm-256color", COLORTERM="truecolor", HOME=folder)
        env.pop("NO_COLOR", None)
        os.execve(binary, [str(binary), "demo", "--nnodes", str(nodes), "--ranks", str(ranks // nodes)], env)
    try:
        read_for(terminal, 20)
        used = lambda: (*console(pid), cpu(f"/proc/{pid}/stat"))
        before, begun = used(), time.monotonic()
        read_for(terminal, seconds)
        main, terminal_thread, record, process = ((now - was) / (time.monotonic() - begun) * 100 for now, was in zip(used(), before))
        times, unanswered = [], 0
        for number in range(keys):
            if number % 20 == 0:
                frame(terminal, b"1245"[number // 20 % 4:][:1])
            read_for(terminal, random.uniform(0.02, 0.3))
            took = frame(terminal, random.choice([b"j", b"k", b"G", b"g", b"1", b"2", b"4", b"5"]))
            if took is None:
                unanswered += 1
            else:
                times.append(took)
        times.sort()
        p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
        print(
            f"{ranks:5} ranks: {main + terminal_thread + record:5.2f}% of a core ({main:.2f}% the loop, {terminal_thread:.2f}% the terminal, {record:.2f}% the record; {process:.2f}% with the hosts), {peak(pid):4.0f} MiB at most, key to frame p50 {statistics.median(times):.1f} ms,"
            f" p99 {p99:.1f} ms, {len(times)} keys, {unanswered} drew nothing; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="32,1024,4096")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/rankdeck")
    args = parser.parse_args()
    for ranks in map(int, args.ranks.split(",")):
        measure(args.binary.resolve(), ranks, args.seconds, args.keys)


if __name__ == "__main__":
    main()
