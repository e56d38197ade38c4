#!/usr/bin/env python3
"""Every way to restart a script's run: what it asks, which checkpoint the ranks get, and what is left of the earlier ones.

    cargo build --release --bin rankdeck
    python3 benches/restarts.py [--only WAY,...] [--console PATH]

Two hosts with SSH servers and disks of their own (tests/testbed). Each rank of the script writes a checkpoint every three seconds, always
of the same name, as scripts do, and prints what RANKDECK_RESUME gives it. For each way of asking, a new run is launched, restarted in
that way, and compared: the file that each rank got, by its content, with the newest checkpoint before; and whether the content of
every checkpoint that existed when the restart was asked for is still on a host. Needs root, for namespaces.
"""
import argparse
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import chaos  # noqa: E402

HOSTS = 2
BOUND_S = 60
EXPERIMENT = """
[run]
name = "{name}"
[launch]
command = ["python3", "/mnt/train.py", "{name}"]
stop_grace_s = 3.0
[watch]
lost_after_s = 3.0
[restart]
max_restarts = {restarts}
backoff_s = 0.5
lost_host = "stop"
"""
TRAIN = '''
import os, sys, time
rank, resume = os.environ.get("RANK", "0"), os.environ.get("RANKDECK_RESUME")
place = f"/mnt/out/{sys.argv[1]}"
os.makedirs(place, exist_ok=True)
def note(text):
    with open(f"{place}/rank{rank}", "a") as file: file.write(text + "\\n")
# Checkpoints of different runs differ.
step = int(sys.argv[1].strip("way")) * 1200
if resume:
    path = resume if os.path.isfile(resume) else os.path.join(resume, "model.pt")
    step = int(open(path).read().split()[1])
note(f"begin {step} {time.time():.2f} {resume or '-'}")
os.makedirs("checkpoints", exist_ok=True)
while True:
    step += 1
    if rank == "0" and step % 6 == 0:
        with open("checkpoints/model.pt.tmp", "w") as file: file.write(f"step {step} " + "x" * 4096)
        os.replace("checkpoints/model.pt.tmp", "checkpoints/model.pt")
        note(f"saved {step} {time.time():.2f}")
    print(f"step {step} loss {1 / step}", flush=True)
    time.sleep(0.43)
'''


class Bed(chaos.Hosts):
    """Two hosts, and what the ranks of a run have noted on the disk that they share for this purpose only."""

    def notes(self, name, rank):
        path = self.folder / "bed/shared/out" / name / f"rank{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def begins(self, name, rank):
        """(step, path) of each start of a rank."""
        return [(int(words[1]), words[3]) for words in map(str.split, self.notes(name, rank)) if words[0] == "begin"]

    def contents(self):
        """Steps of all checkpoints on both hosts, wherever they are."""
        look = "find /home/tb /mnt -name '*.pt*' -type f 2>/dev/null | xargs -r head -qc 24 | tr -cd 'a-z0-9 '"
        found = set()
        for node in range(HOSTS):
            text = self.call("exec", f"node{node}", "sh", "-c", look, check=False).stdout
            found |= {int(step) for step in re.findall(r"step (\d+) x", text)}
        return found


def until(condition, seconds=BOUND_S):
    deadline = time.time() + seconds
    while not (value := condition()):
        if time.time() > deadline:
            return None
        time.sleep(0.1)
    return value


def plain(data):
    """Text of a screen's output without its control sequences."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|[\x00-\x08\x0b-\x1f]", " ", data)).strip()


class Screen(chaos.Screen):
    """A terminal that keeps what it has read."""
    text = ""

    def until(self, text, seconds=chaos.SCREEN_BOUND_S):
        deadline, expected = time.time() + seconds, "".join(text.split())
        begun = len(self.text)
        while expected not in "".join(plain(self.text[begun:]).split()):
            if time.time() > deadline or not select.select([self.master], [], [], max(0, deadline - time.time()))[0]:
                return False
            try:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                return False
        # What is drawn with it.
        while select.select([self.master], [], [], 0.3)[0]:
            try:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                break
        return True


def asked(text):
    """The question of an output."""
    found = re.findall(r"(?:[^.?]{0,160})\?", text)
    return found[-1].strip()[-160:] if found else text[-160:]


def command(*more, answer=None):
    def way(bed, run):
        if answer is None:
            code, output = bed.command("restart", run, *more, bound_s=BOUND_S)
            return f"exit {code}: " + plain(output)
        screen = Screen(bed, "restart", run, *more)
        ok = screen.until("[y/N]")
        screen.send(answer)
        until(lambda: screen.process.poll() is not None, 20)
        text = plain(screen.text)
        chaos.end(screen.process)
        screen.close()
        return ("" if ok else "NO QUESTION ") + text
    return way


def screen_keys(keys, *confirm):
    def way(bed, run):
        screen = Screen(bed, "attach", run)
        screen.until("adopted")
        screen.send(keys)
        steps = list(confirm) or [("restart the run?", "l")]
        ok = True
        begun = len(screen.text)
        for expected, answer in steps:
            ok = ok and screen.until(expected)
            screen.send(answer)
        screen.until("generation 1", 10)
        text = plain(screen.text[begun:])
        chaos.end(screen.process)
        screen.close()
        return ("" if ok else "NO QUESTION ") + text
    return way


def closed(screen, ok):
    """What a screen has shown, and whether the question came."""
    chaos.end(screen.process)
    screen.close()
    return ("" if ok else "NO QUESTION ") + plain(screen.text)


def line_mode(bed, run):
    screen = Screen(bed, "attach", run, "--linear")
    screen.until("(attached)")
    ok = False
    for _ in range(10):
        screen.send("restart\n")
        if screen.until("type one of", 3):
            ok = True
            screen.send("latest\n")
            break
    screen.until("generation 1", 10)
    return closed(screen, ok)


def home(bed, run):
    del run
    screen = Screen(bed)
    ok = screen.until("● running")
    screen.send("r")
    ok = ok and screen.until("[y/N]")
    screen.send("y\r")
    time.sleep(3)
    return closed(screen, ok)


def policy(bed, run):
    del run
    bed.call("exec", "node1", "sh", "-c", "pkill -9 -f /mnt/train.py", check=False)
    return "no question: policy"


def stopped(bed, run):
    bed.command("stop", run, "--yes", bound_s=BOUND_S)
    code, output = bed.command("restart", run, "--yes", bound_s=BOUND_S)
    return f"exit {code}: " + plain(output)


def relaunch(bed, run):
    """A new run of the same experiment with --continue."""
    bed.command("stop", run, "--yes", bound_s=BOUND_S)
    name = run.rsplit("-", 2)[0]
    console = bed.spawn("run", str(bed.folder / f"{name}.toml"), "--continue", "--detach", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = console.communicate(timeout=BOUND_S)
    except subprocess.TimeoutExpired:
        chaos.end(console)
        output = "no end"
    return f"exit {console.returncode}: " + plain(output)


def away(bed, run):
    """A host is away: the command ends within the bound of a stop."""
    bed.call("fault", "node1", "link", "down", check=False)
    time.sleep(4)
    begun = time.time()
    code, output = bed.command("restart", run, "--yes", bound_s=120)
    took = time.time() - begun
    bed.call("fault", "node1", "clear", check=False)
    return f"exit {code} after {took:.1f} s: " + plain(output)


def interrupted(bed, run):
    """Ctrl-C at the question: the run is left alone."""
    screen = Screen(bed, "restart", run)
    ok = screen.until("[y/N]")
    screen.send("\x03")
    until(lambda: screen.process.poll() is not None, 20)
    text = plain(screen.text)
    code = screen.process.poll()
    chaos.end(screen.process)
    screen.close()
    return f"exit {code}: " + ("" if ok else "NO QUESTION ") + text


# Way, what is expected: the newest checkpoint, nothing (from scratch), or no new generation.
WAYS = {
    "restart, asked": (command(answer="y\r"), "latest"),
    "restart --yes": (command("--yes"), "latest"),
    "restart --from scratch": (command("--from", "scratch", "--yes"), "scratch"),
    "restart --exclude": (command("--exclude", "node1", "--yes"), "latest"),
    "restart --set": (command("--set", "launch.stop_grace_s=4", "--yes"), "latest"),
    "stop, restart": (stopped, "latest"),
    "run --continue": (relaunch, "latest"),
    "screen r": (screen_keys("r"), "latest"),
    "screen r, scratch": (screen_keys("r", ("restart the run?", "s")), "scratch"),
    "palette": (screen_keys(":restart\r"), "latest"),
    "screen R": (screen_keys("R", ("restart with changes", "\r"), ("restart the run?", "y")), "latest"),
    "screen H": (screen_keys("H", ("hosts of the next generation", "G \r"), ("restart the run?", "y")), "latest"),
    "line mode": (line_mode, "latest"),
    "home r": (home, "latest"),
    "policy": (policy, "latest"),
    "host away": (away, "any"),
    "interrupted": (interrupted, "alone"),
}


def play(bed, number, label):
    way, expected = WAYS[label]
    name = f"way{number}"
    (bed.folder / f"{name}.toml").write_text(EXPERIMENT.format(name=name, restarts=3 if label == "policy" else 0))
    console = bed.spawn("run", str(bed.folder / f"{name}.toml"), "--headless", "--json", stdout=(bed.folder / f"{name}.out").open("w"),
                        stderr=subprocess.STDOUT)
    out = lambda: (bed.folder / f"{name}.out").read_text()
    try:
        saved = lambda: [int(line.split()[1]) for line in bed.notes(name, 0) if line.startswith("saved")]
        run = lambda: re.findall(r'"run":"([^"]+)"', out())[0] if '"run":' in out() else None
        if not until(lambda: len(saved()) > 2 and bed.begins(name, 1) and '"checkpoint"' in out(), 2 * BOUND_S):
            return "NOT BEGUN", out()[-300:], ""
        before = saved()[-1]
        text = way(bed, run())
        again = lambda rank: len(bed.begins(name, rank)) > 1
        excluded = label in ("restart --exclude", "screen H")
        begun = until(lambda: again(0) and (again(1) or excluded), 5 if expected == "alone" else 30 if expected == "any" else BOUND_S)
        rows = [bed.begins(name, rank)[1:2] for rank in range(HOSTS)]
        last = [line for line in bed.notes(name, 0)]
        first_end = next((i for i, line in enumerate(last) if i and line.startswith("begin")), len(last))
        newest = max([int(line.split()[1]) for line in last[:first_end] if line.startswith("saved")] or [0])
        kept = bed.contents()
        verdict = "ok"
        if expected == "alone":
            verdict = "ok" if not begun else "RESTARTED"
        elif expected == "any":
            # Restarted without it or refused, within the bound of the command.
            verdict = "ENDLESS" if text.startswith("exit None") else "ok"
        else:
            want = newest if expected == "latest" else number * 1200
            got = [row[0][0] for row in rows if row]
            if not got or any(step != want for step in got):
                verdict = f"WRONG: newest {newest}"
            if expected == "scratch" and newest not in kept:
                verdict = f"LOST {newest}"
        return verdict, f"newest {newest} (asked at {before}); ranks begin at {[row[0][0] if row else '-' for row in rows]}, newest still there: {newest in kept}", text
    finally:
        bed.command("stop", name, "--kill", "--yes", bound_s=BOUND_S)
        chaos.end(console)
        bed.clear()
        bed.call("exec", "node0", "pkill", "-9", "-f", "/mnt/train.py", check=False)
        bed.call("exec", "node1", "pkill", "-9", "-f", "/mnt/train.py", check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--console", default=str(chaos.ROOT / "target/release/rankdeck"), help="rankdeck's binary")
    parser.add_argument("--texts", action="store_true", help="print what each way printed")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chaos.HOSTS = HOSTS
    chaos.FILES = {"train.py": TRAIN}
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rdrestarts"))
    bad = 0
    try:
        bed = Bed(folder, str(pathlib.Path(args.console).resolve()))
        (folder / "bed/shared/out").mkdir(mode=0o777)
        (folder / "bed/shared/out").chmod(0o777)
        try:
            for number, label in enumerate(WAYS):
                if args.only and label not in args.only.split(","):
                    continue
                begun = time.time()
                verdict, what, text = play(bed, number, label)
                bad += verdict != "ok"
                print(f"{label:<24} {verdict:<18} {time.time() - begun:5.1f} s  {what}", flush=True)
                print(f"    {text if args.texts or verdict != 'ok' else asked(text)}", flush=True)
        finally:
            bed.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
