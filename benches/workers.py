#!/usr/bin/env python3
"""What the agent's sampling thread costs on a host whose only rank waits, with so many workers that wait, too.

    python3 benches/workers.py [--console target/release/rankdeck ...] [--workers 16 64] [--seconds 20]

Each worker has 60 open files and five connections to itself. The program has no hook, so that it gives no sign of life
and everything is looked at that could. Several consoles are measured in turn.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from agents import of, wait_until_gone

PROGRAM = """
import multiprocessing, socket, sys, time
def worker(ready):
    files = [open("/dev/null") for _ in range(60)]
    server = socket.create_server(("127.0.0.1", 0))
    ends = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(5)]
    ready.release()
    time.sleep(3600)
ready, count = multiprocessing.Semaphore(0), int(sys.argv[1])
for _ in range(count):
    multiprocessing.Process(target=worker, args=(ready,), daemon=True).start()
for _ in range(count):
    ready.acquire()
print("ready", flush=True)
time.sleep(3600)
"""


def used_ns(agent):
    """CPU time of its sampling thread."""
    for task in pathlib.Path(f"/proc/{agent}/task").iterdir():
        if (task / "comm").read_text().strip() == "sample":
            return int((task / "schedstat").read_text().split()[0])
    sys.exit("the agent has no sampling thread")


def measure(console, workers, seconds):
    """Milliseconds of CPU per second."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "program.py").write_text(PROGRAM)
        command = [sys.executable, str(folder / "program.py"), str(workers)]
        (folder / "e.toml").write_text(f'[run]\nname = "workers"\n[launch]\ncommand = {json.dumps(command)}\n[watch]\npython_hook = false\n')
        (folder / "hosts.toml").write_text(f'[[host]]\nname = "here"\ntransport = "local"\nnproc = 1\nworkdir = "{folder}/work"\n')
        run = subprocess.Popen(
            [console, "run", "e.toml", "--hosts", "hosts.toml", "--headless", "--json"],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ, NO_COLOR="1"),
        )
        try:
            for line in run.stdout:
                with contextlib.suppress(ValueError):
                    if json.loads(line).get("line") == "ready":
                        break
            else:
                sys.exit(f"the run has ended with {run.wait()}")
            # What a start needs is over, and so are the looks at a rank that has just fallen silent.
            time.sleep(8)
            [agent] = of(os.fsencode(folder))
            before, begun = used_ns(agent), time.monotonic()
            time.sleep(seconds)
            return (used_ns(agent) - before) / 1e6 / (time.monotonic() - begun)
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate()
            wait_until_gone(os.fsencode(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--console", nargs="+", default=["target/release/rankdeck"])
    parser.add_argument("--workers", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    for workers in options.workers:
        for console in options.console:
            spent = measure(pathlib.Path(console).resolve(), workers, options.seconds)
            print(f"{console}, {workers} workers: {spent:.2f} ms of CPU per second, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
