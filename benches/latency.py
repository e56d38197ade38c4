"""Start-up and stop latency of a run: from `rankdeck run` to the first environment step on all ranks, and from the stop signal to the verified stop.

    python3 benches/latency.py --rounds 10 --hosts hosts.toml --experiment configs/cartpole_ppo.toml

Prints a table with the minimum, median and maximum of each figure, in milliseconds. Uses the release binary.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--hosts", default="hosts.toml")
parser.add_argument("--experiment", default="configs/cartpole_ppo.toml")
parser.add_argument("--binary", default="target/release/rankdeck")
parser.add_argument("--set", action="append", default=["eval.stop_value=1000000", "run.total_steps=100000000"])
args = parser.parse_args()


def once():
    command = [args.binary, "run", args.experiment, "--hosts", args.hosts, "--headless", "--json"]
    for item in args.set:
        command += ["--set", item]
    begin = time.monotonic()
    console = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    times, stop = {}, None
    for line in console.stdout:
        now, event = time.monotonic(), json.loads(line)
        kind = event["kind"]
        if kind == "run_started":
            times.setdefault("launched", now - begin)
        elif kind == "progress" and stop is None and all(rank["env_step"] > 0 for rank in event["per_rank"]):
            times["first env step on all ranks"] = now - begin
            stop = time.monotonic()
            console.send_signal(signal.SIGINT)
        elif kind == "run_finished":
            if stop is None or not event["proved"]:
                sys.exit(f"the run did not end as it should: {line}")
            times["stop signal to verified stop"] = now - stop
    if console.wait() != 130:
        sys.exit(f"exit code {console.returncode}, 130 expected")
    times["stop signal to console exit"] = time.monotonic() - stop
    return times


rows = [once() for _ in range(args.rounds)]
print(f"{args.rounds} rounds, {args.hosts}, {args.experiment}, {os.cpu_count()} cores")
print(f"{'ms':32}{'min':>9}{'median':>9}{'max':>9}")
for name in rows[0]:
    values = [1000 * row[name] for row in rows]
    print(f"{name:32}{min(values):9.0f}{statistics.median(values):9.0f}{max(values):9.0f}")
