"""Everything that only a machine with a GPU can show, in order of worth.

    python3 drive.py --out DIR [--budget SECONDS] [--only STAGE,STAGE] [--quick FACTOR]

DIR/result.json is whole after every step, so that it may be stopped at any time; what other stages have found stays in it. A
stage for which no time is left is skipped and says so. --quick shortens every stage, for a rehearsal."""

import argparse
import pathlib
import signal
import sys
import time
import traceback

from machine import Machine, Stopped
import stages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--budget", type=float, default=560)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", type=float, default=1.0)
    parser.add_argument("--programs", type=pathlib.Path, help="folder of console and trainer [default: those of the kit]")
    parser.add_argument("--torch", default="", help="folder of libtorch [default: that of this Python]")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    unknown = only - {name for name, _, _ in stages.STAGES}
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}: " + ", ".join(name for name, _, _ in stages.STAGES))
    machine = Machine(options)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, machine.stop)
    try:
        machine.prepare()
        run(machine, only)
    except Stopped as stopped:
        sys.exit(128 + stopped.args[0])
    finally:
        machine.close()


def run(machine, only):
    for name, seconds, stage in stages.STAGES:
        if only and name not in only:
            continue
        entry = machine.result["stages"][name] = {"state": "running"}
        begun = time.monotonic()
        try:
            machine.save()
            left, needed = machine.left(), seconds * machine.options.quick
            if left < needed * 0.6:
                entry.update(state="skipped", why=f"{left:.0f} s left, {needed:.0f} needed")
                machine.save()
                continue
            entry["found"] = {}
            stage(machine, entry["found"])
            entry["state"] = "done"
        except Exception as error:  # the next stage may still succeed
            entry.update(state="failed", why=repr(error), trace=traceback.format_exc()[-1500:])
        except Stopped:
            entry["state"] = "stopped"
            raise
        entry["seconds"] = round(time.monotonic() - begun, 1)
        machine.save()
        print(f"{name}: {entry['state']} in {entry['seconds']} s {entry.get('why', '')}", flush=True)


if __name__ == "__main__":
    main()
