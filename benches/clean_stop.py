#!/usr/bin/env python3
"""Clean stops of shipped configurations: SIGINT to the console at a random moment, again and again.

    cargo build --release --workspace
    python3 benches/clean_stop.py --python PYTHON [--rounds 20] [--only pong_ppo,...] [--within 120] [--binary target/release/rankdeck]

Each round begins a run of two local ranks, waits until they have joined, then a random time up to --within seconds, and
interrupts the console. Counted is a stop that is proved, of which a checkpoint is left that can be read to its end and is
of the iteration that the run says. PYTHON needs Gymnasium and ale-py. A line per round, and a table at the end.
"""
import argparse
import json
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import checkpoint_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ("pong_ppo", "pong_dqn", "spaceinvaders_ppg")
HOSTS = '[defaults]\ntransport = "local"\nworkdir = "{}"\n[[host]]\nname = "node0"\nnproc = 2\n'


def once(args, config, seed):
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="clean-stop-") as folder:
        folder = pathlib.Path(folder)
        (folder / "hosts.toml").write_text(HOSTS.format(folder))
        command = [str(args.binary), "run", str(ROOT / "configs" / f"{config}.toml"), "--hosts", "hosts.toml", "--json",
                   "--set", f"env.python={json.dumps(args.python)}", *args.more]
        console = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        asked, phase, iteration, end = [], "", 0, None
        timer = None

        def interrupt():
            asked.append(time.monotonic())
            console.send_signal(signal.SIGINT)

        for line in console.stdout:
            event = json.loads(line)
            if event["kind"] == "progress":
                iteration = event["train_iter"]
                phases = [rank["phase"] for rank in event["per_rank"]]
                phase = phase if asked else phases[0]
                if timer is None and not {"", "init", "rendezvous"} & set(phases):
                    timer = threading.Timer(dice.uniform(0, args.within), interrupt)
                    timer.start()
            elif event["kind"] == "run_finished":
                end = event
                proved = time.monotonic()
        if timer is not None:
            timer.cancel()
        code = console.wait()
        if end is None or not asked:
            return dict(config=config, good=False, seconds=float("nan"), text=f"no end after an interrupt, exit code {code}")
        found = sorted(folder.glob("runs/*/checkpoints/latest.ckpt"))
        head = checkpoint_file.read(found[0])[0] if found else {}
        good = bool(found) and end["proved"] and end["outcome"] == "stopped" and end["exit_code"] == 130
        seconds = proved - asked[0]
        text = f"in {phase} of iteration {iteration + 1}: checkpoint of iteration {head.get('train_iter')}, {end['reason']}, exit code {code}"
        return dict(config=config, good=good, seconds=seconds, text=text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default=",".join(CONFIGS))
    parser.add_argument("--within", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/rankdeck")
    parser.add_argument("--more", nargs="*", default=[], help="more words for `rankdeck run`")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    rows = {}
    for config in args.only.split(","):
        for number in range(args.rounds):
            row = once(args, config, f"{args.seed} {config} {number}")
            rows.setdefault(config, []).append(row)
            print(f"{config} {number}: {'good' if row['good'] else 'BAD'} {row['seconds']:.1f} s {row['text']}", flush=True)
    print(f"{'configuration':24}{'checkpoints':>12}{'median s':>10}{'most s':>10}")
    for config, all_rows in rows.items():
        seconds = [row["seconds"] for row in all_rows]
        good = f"{sum(row['good'] for row in all_rows)} of {len(all_rows)}"
        print(f"{config:24}{good:>12}{statistics.median(seconds):>10.1f}{max(seconds):>10.1f}")
    sys.exit(not all(row["good"] for all_rows in rows.values() for row in all_rows))


if __name__ == "__main__":
    main()
