#!/usr/bin/env python3
"""Clean stops of shipped configurations: SIGINT to the console at a random moment, again and again.

    cargo build --release --workspace
    python3 benches/clean_stop.py --python PYTHON [--rounds 20] [--only pong_ppo,...] [--within 120] [--training]
                                  [--binary target/release/rankdeck]

Each round begins a run of two local ranks, waits until they have joined, then a random time up to --within seconds, and
interrupts the console. With --training nothing is evaluated, and the time counts from the first iteration that is reported: a
first evaluation on a busy machine takes longer than anybody waits here. Counted is a stop that is proved, of which a
checkpoint is left that can be read to its end and is of the iteration that the run says. PYTHON needs Gymnasium and
ale-py. A line per round, and a table at the end. A round that waits longer than --patience seconds for anything is bad,
says what it waited for, and is killed.
"""
import argparse
import contextlib
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
import agents  # noqa: E402
import checkpoint_file  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ("pong_ppo", "pong_dqn", "spaceinvaders_ppg")
HOSTS = '[defaults]\ntransport = "local"\nworkdir = "{}"\n[[host]]\nname = "node0"\nnproc = {}\n'
RANKS = 2


class Round:
    """One run, and the events of its console with their times."""

    def __init__(self, args, config, folder):
        self.config, self.folder = config, folder
        (folder / "hosts.toml").write_text(HOSTS.format(folder, RANKS))
        command = [str(args.binary), "run", str(ROOT / "configs" / f"{config}.toml"), "--hosts", "hosts.toml", "--json",
                   "--set", f"env.python={json.dumps(args.python)}", *args.more]
        if args.training:
            command += ["--set", "eval.every=0"]
            if "stop_value" in (ROOT / "configs" / f"{config}.toml").read_text():
                command += ["--set", "~eval.stop_value"]
        self.begun = time.monotonic()
        self.stderr = open(folder / "stderr", "w+")
        self.console = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=self.stderr, text=True)
        self.binary = command[0]
        self.changed = threading.Condition()
        self.joined, self.phases, self.iteration, self.saved = set(), [], 0, None
        self.end, self.last_report, self.over = None, self.begun, False
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.console.stdout:
            event = json.loads(line)
            with self.changed:
                self.last_report = time.monotonic()
                if event["kind"] == "rank" and event["state"] == "joined":
                    self.joined.add(event["rank"])
                elif event["kind"] == "checkpoint":
                    self.saved = event["train_iter"]
                elif event["kind"] == "progress":
                    self.iteration = event["train_iter"]
                    self.phases = [rank["phase"] for rank in event["per_rank"]]
                elif event["kind"] == "run_finished":
                    self.end = event
                self.changed.notify_all()
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def wait(self, what, condition, seconds):
        """How long it took; ends the round with what it waited for and the last event."""
        begun = time.monotonic()
        with self.changed:
            if not self.changed.wait_for(lambda: condition() or self.over, seconds) or not condition():
                self.stderr.seek(0)
                silent = time.monotonic() - self.last_report
                raise TimeoutError(f"no {what} after {time.monotonic() - begun:.0f} s: phases {self.phases}, iteration {self.iteration}, "
                                   f"silent for {silent:.0f} s, exit code {self.console.poll()}, {self.stderr.read()[-500:]!r}")
        return time.monotonic() - begun

    def close(self):
        """Leaves no run behind, whatever happened."""
        if self.console.poll() is None:
            self.console.kill()
        self.console.wait()
        subprocess.run([self.binary, "stop", "--kill"], cwd=self.folder, capture_output=True)
        self.stderr.close()
        agents.wait_until_gone(self.folder)


def once(args, config, seed):
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="clean-stop-") as folder:
        folder = pathlib.Path(folder)
        with contextlib.closing(Round(args, config, folder)) as run:
            try:
                joined = run.wait("two joined ranks", lambda: len(run.joined) == RANKS, args.patience)
                if args.training:
                    run.wait("iteration", lambda: run.iteration > 0, args.patience)
                moment = dice.uniform(0, args.within)
                with run.changed:
                    run.changed.wait_for(lambda: run.over, moment)
                # Before the first iteration has ended no phase is reported: the first evaluation.
                where = f"{run.phases[0]} of iteration {run.iteration + 1}" if run.phases else "the first evaluation or iteration"
                iteration = run.iteration
                asked = time.monotonic()
                run.console.send_signal(signal.SIGINT)
                run.wait("end after the interrupt", lambda: run.end, args.patience)
                seconds = time.monotonic() - asked
                run.wait("end of the console", lambda: run.over, args.patience)
                code = run.console.wait(args.patience)
            except (TimeoutError, subprocess.TimeoutExpired) as error:
                return dict(config=config, good=False, seconds=float("inf"), text=str(error))
        end = run.end
        found = sorted(folder.glob("runs/*/checkpoints/latest.ckpt"))
        head = checkpoint_file.read(found[0])[0] if found else {}
        left = head.get("train_iter", -1)
        good = left == run.saved >= iteration and end["proved"] and end["outcome"] == "stopped" and code == end["exit_code"] == 130
        text = (f"joined after {joined:.1f} s, interrupted {moment:.1f} s later in {where}: "
                f"checkpoint of iteration {left}, {end['reason']}, exit code {code}")
        return dict(config=config, good=good, seconds=seconds, text=text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default=",".join(CONFIGS))
    parser.add_argument("--within", type=float, default=120.0)
    parser.add_argument("--training", action="store_true", help="interrupt training rather than evaluations")
    parser.add_argument("--patience", type=float, default=600.0, help="most seconds that the ranks may take to join, and a stop to be proved")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/rankdeck")
    parser.add_argument("--more", nargs="*", default=[], help="more words for `rankdeck run`")
    args = parser.parse_args()
    args.binary = args.binary.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
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
