#!/usr/bin/env python3
"""Runs healthy programs under the console, some at a time, and counts verdicts: `benches/healthy.py --console target/debug/rankdeck`.

`[restart]` and `watch.on_stuck = "stop"` are set, so that a wrong certain verdict ends the run. A red verdict or an early end fails.
"""
import argparse, ast, collections, concurrent.futures, json, os, pathlib, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from lab import programs, run  # noqa: E402

FILE = pathlib.Path(__file__).resolve().parent / "lab" / "healthy.py"


def cases():
    """Names of all cases and whether they have long pauses; the file itself imports torch."""
    found = {}
    for node in ast.parse(FILE.read_text()).body:
        marks = getattr(node, "decorator_list", [])
        if marks and any(getattr(mark, "id", "") == "case" for mark in marks):
            found[node.name] = False
        elif marks and any(getattr(getattr(mark, "func", None), "id", "") == "case" for mark in marks):
            found[node.name] = True
    return found


def one(console, name, seconds, folder):
    words = json.dumps([programs.python(), "-u", str(FILE), name])
    experiment = f'[run]\nname = "{name.replace("_", "-")}"\n[launch]\ncommand = {words}\nstop_grace_s = 2\n[watch]\non_stuck = "stop"\n'
    trial = run.Run([console], folder / name, experiment, programs.hosts((2, 1)))
    try:
        lived = trial.pass_time(seconds)
    finally:
        end = trial.finish()
    verdicts = [event for _, event in trial.verdicts()]
    reasons = lambda severity: collections.Counter(event["reason"] for event in verdicts if event["severity"] == severity)
    return dict(name=name, seconds=seconds, lived=lived, end=end and end.get("reason"), red=reasons("red"), amber=reasons("amber"),
                texts=[event.get("text") or event.get("sentence") or event for event in verdicts if event["severity"] == "red"][:3], left=trial.leftovers())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--console", required=True)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--long-seconds", type=float, default=600)
    parser.add_argument("--only", default="", help="parts of names, with commas")
    parser.add_argument("--keep")
    parser.add_argument("--json")
    args = parser.parse_args()
    console, folder = os.path.abspath(args.console), pathlib.Path(args.keep or tempfile.mkdtemp(prefix="healthy-"))
    chosen = {name: long for name, long in cases().items() if any(part in name for part in args.only.split(","))}
    # The long ones first, so that none of them is left alone at the end.
    order = sorted(chosen, key=lambda name: not chosen[name])
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(one, console, name, args.long_seconds if chosen[name] else args.seconds, folder) for name in order]
        results = []
        for job in concurrent.futures.as_completed(jobs):
            result = job.result()
            results.append(result)
            print(f'{result["name"]:24} {"lived" if result["lived"] else "ENDED"}  red {dict(result["red"])}  amber {dict(result["amber"])}'
                  f'{"  LEFT " + str(result["left"]) if result["left"] else ""}', flush=True)
    wrong = [result for result in results if result["red"] or not result["lived"] or result["left"]]
    print(f'{len(results)} programs, {sum(bool(result["red"]) for result in results)} with a red verdict, {sum(not result["lived"] for result in results)} ended, '
          f'{sum(bool(result["amber"]) for result in results)} with an amber one; load {os.getloadavg()[0]:.1f}')
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
