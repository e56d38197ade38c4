#!/usr/bin/env python3
"""What the record of a run costs: 32 simulated ranks on 4 hosts, recorded for a while; bytes per hour, how far back the bound of a record reaches,
and time and memory to open the record, to go to its end, and to go to any moment in a terminal (tmux).

    cargo build --release && python3 benches/record.py [--seconds 600] [--ranks 8] [--nnodes 4] [--binary target/release/rankdeck]

`--seconds 86400 --speed 60` records a day in 24 minutes: faketime makes the clocks of the console and its simulated hosts run that many times as fast.
`--folder DIR` keeps the record there; where one is, it is measured again. A rank is killed at the end.
"""
import argparse, os, pathlib, random, resource, statistics, subprocess, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUND = 512 << 20  # `LIMITS` in src/app/record/segments.rs


def sizes(record):
    return {path.name: path.stat().st_size for path in sorted(record.glob("*.*"))}


def clock(at):
    return time.strftime("%H:%M:%S", time.localtime(at))


def record(binary, folder, args):
    """Records a run; CPU seconds that it took."""
    fake = ["faketime", "-f", f"+0 x{args.speed}"] if args.speed != 1 else []
    run = ["simulate", "--nnodes", str(args.nnodes), "--ranks", str(args.ranks), "--gpus", "--record", "--headless", "--quiet", "--until", f"seconds={args.seconds + 60}",
           "--fault", f"kill:{args.ranks}@{args.seconds}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*fake, binary, *run], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"recording took {cpu / args.seconds * 100:.1f}% of a core")


def seek(binary, folder, name, times):
    """Seconds until a terminal shows the record, each of the moments, and the last minute before the end."""
    tmux = ["tmux", "-L", f"rankdeck-record-{os.getpid()}"]

    def screen():
        return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout

    def until(*texts):
        """Until any of them is shown."""
        begun = time.monotonic()
        while not any(text in screen() for text in texts):
            if time.monotonic() - begun > 60:
                raise SystemExit(f"waited in vain for {texts}:\n{screen()}")
            time.sleep(0.005)

    def go(to, *texts):
        subprocess.run([*tmux, "send-keys", "T"], check=True)
        until("go to")
        subprocess.run([*tmux, "send-keys", "-l", "--", to], check=True)
        begun = time.monotonic()
        subprocess.run([*tmux, "send-keys", "Enter"], check=True)
        until(*texts)
        return time.monotonic() - begun

    try:
        begun = time.monotonic()
        subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "60", f"exec {binary} replay {name}"], cwd=folder, check=True, env=dict(os.environ, LC_ALL="C.UTF-8", TERM="xterm-256color"))
        until("RANK")
        opened = time.monotonic() - begun
        subprocess.run([*tmux, "send-keys", "P"], check=True)
        # Clocks differ by fractions of a second.
        took = [go(clock(at), *(f" {clock(at + by)} " for by in (-1, 0, 1))) for at in times]
        go("end", "the end of the record")
        go("-1m", "1m 00s before the end", "59s before the end")
        pid = subprocess.run([*tmux, "list-panes", "-F", "#{pane_pid}"], capture_output=True, text=True, check=True).stdout.strip()
        peak = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines() if line.startswith("VmHWM"))
        return opened, took, int(peak.split()[1]) / 1024, screen()
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--nnodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--speed", type=int, default=1)
    parser.add_argument("--seeks", type=int, default=20)
    parser.add_argument("--folder")
    parser.add_argument("--binary", default=str(ROOT / "target/release/rankdeck"))
    args = parser.parse_args()
    binary = str(pathlib.Path(args.binary).resolve())
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(args.folder or scratch).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if not list(folder.glob("runs/*/console/record")):
            record(binary, folder, args)
        path = next(folder.glob("runs/*/console/record"))
        files = sizes(path)
        events = sum(size for name, size in files.items() if name.endswith(".seg"))
        rate = events / args.seconds
        print(f"{args.nnodes * args.ranks} ranks, {args.seconds} s: {len(files)} files, {events / 1e6:.2f} MB, {rate * 3600 / 1e6:.1f} MB/h; all files {sum(files.values()) / 1e6:.2f} MB")
        if events < BOUND * 0.9:
            print(f"the bound of {BOUND >> 20} MiB reaches back {BOUND / rate / 3600:.1f} h")
        name = path.parent.parent.name
        begun = time.time()
        process = subprocess.Popen([binary, "report", name, "--output", "-"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        print(f"open and go to the end (report): {time.time() - begun:.2f} s, {used.ru_maxrss / 1024:.0f} MiB, status {os.waitstatus_to_exitcode(status)}")
        # Times of day within what is kept: by the files' ages, which go as fast as the clocks did.
        kept = (max(file.stat().st_mtime for file in path.glob("*.seg")) - min(file.stat().st_mtime for file in path.glob("*.seg"))) * args.speed
        name_at = time.strptime(name.rpartition("-")[0].rpartition("-")[2] + name.rpartition("-")[2], "%Y%m%d%H%M%S")
        end = time.mktime(name_at) + args.seconds
        chance = random.Random(1)
        moments = [end - chance.uniform(30, min(kept, args.seconds, 86_000) * 0.95) for _ in range(args.seeks)]
        opened, took, peak, shown = seek(binary, folder, name, moments)
        print(f"replay opens in {opened:.2f} s; {len(took)} moments of the last {kept / 3600:.1f} h: median {statistics.median(took):.3f} s, most {max(took):.3f} s; {peak:.0f} MiB at most")
        print(shown)


if __name__ == "__main__":
    main()
