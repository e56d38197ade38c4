#!/usr/bin/env python3
"""What the record of a run costs: 32 simulated ranks on 4 hosts, recorded for a while; bytes per hour, how far back the bound of a record reaches,
and time and memory to open the record and to go to its end.

    cargo build --release && python3 benches/record.py [--seconds 600] [--ranks 8] [--nnodes 4] [--binary target/release/rankdeck]

Going to any moment costs at most one segment, as opening does: the state at its head and the events behind it.
"""
import argparse, os, pathlib, resource, subprocess, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUND = 512 << 20  # `LIMITS` in src/shell/record/segments.rs


def sizes(record):
    return {path.name: path.stat().st_size for path in sorted(record.glob("*.*"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--nnodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--binary", default=str(ROOT / "target/release/rankdeck"))
    args = parser.parse_args()
    binary = str(pathlib.Path(args.binary).resolve())
    with tempfile.TemporaryDirectory() as folder:
        run = ["simulate", "--nnodes", str(args.nnodes), "--ranks", str(args.ranks), "--gpus", "--record", "--headless", "--until", f"seconds={args.seconds}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([binary, *run], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        record = next(pathlib.Path(folder).glob("runs/*/console/record"))
        files = sizes(record)
        events = sum(size for name, size in files.items() if name.endswith(".seg"))
        rate = events / args.seconds
        print(f"{args.nnodes * args.ranks} ranks, {args.seconds} s: {len(files)} files, {events / 1e6:.2f} MB, {rate * 3600 / 1e6:.1f} MB/h, {cpu / args.seconds * 100:.1f} % of a core")
        print(f"the bound of {BOUND >> 20} MiB reaches back {BOUND / rate / 3600:.1f} h")
        name = record.parent.parent.name
        for what in (["report", name, "--output", "-"],):
            begun = time.time()
            process = subprocess.Popen([binary, *what], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            print(f"open and go to the end ({what[0]}): {time.time() - begun:.2f} s, {used.ru_maxrss / 1024:.0f} MiB, status {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
