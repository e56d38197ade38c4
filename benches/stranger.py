#!/usr/bin/env python3
"""A stranger on the host: what another user of a shared machine can try against a run, each attempt once.

    sudo python3 benches/stranger.py [--binary target/debug/rankdeck] [--only NAME,...]

Creates two users, a victim with a run of a script and an attacker, and removes both at the end. Each line is an attempt,
whether something of the victim was read or changed by it, and what rankdeck printed. The exit status is the number of
attempts that had an effect. Needs root, useradd and setpriv; nothing leaves this machine.
"""
import argparse
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VICTIM, ATTACKER = "rdvictim", "rdattacker"
SECRET = "plainsecret123456"
EXPERIMENT = """
[run]
name = "sleeper"
[launch]
command = ["python3", "sleeper.py"]
[launch.env]
MY_TOKEN = "%s"
""" % SECRET
SLEEPER = "import time\nprint('begun', flush=True)\nwhile True:\n    time.sleep(0.2)\n"
HOSTS = '[defaults]\ntransport = "local"\nworkdir = "%s"\n[[host]]\nname = "node0"\nnproc = 1\n'


def run_as(user, command, cwd, timeout=60, variables=None, **more):
    """Runs `command` as `user`, with nothing of root's environment; returns the completed process."""
    home = pwd.getpwnam(user).pw_dir
    environment = {"HOME": home, "USER": user, "LOGNAME": user, "PATH": os.environ["PATH"], "TERM": "xterm", **(variables or {})}
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *map(str, command)]
    try:
        return subprocess.run(command, cwd=cwd, env=environment, timeout=timeout, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        out = out.decode(errors="replace") if isinstance(out, bytes) else out
        return subprocess.CompletedProcess(command, "no end", out, None)


def as_attacker(code, cwd="/", timeout=30):
    """Runs Python `code` as the attacker; returns what it printed."""
    return run_as(ATTACKER, ["python3", "-c", code], cwd, timeout).stdout.strip()


class Bed:
    """The victim's folder, and a live run of a script in it."""

    def __init__(self, binary):
        self.binary = binary
        self.home = pathlib.Path(pwd.getpwnam(VICTIM).pw_dir)
        self.number = 0

    def rankdeck(self, *arguments, cwd, **more):
        return run_as(VICTIM, [self.binary, *arguments], cwd, **more)

    def folder(self, name, workdir=None):
        """A folder of the victim with an experiment, hosts.toml and the script."""
        folder = self.home / name
        folder.mkdir()
        (folder / "sleeper.py").write_text(SLEEPER)
        (folder / "s.toml").write_text(EXPERIMENT.replace("sleeper.py", str(folder / "sleeper.py")))
        (folder / "hosts.toml").write_text(HOSTS % (workdir or folder))
        own(folder, VICTIM)
        return folder

    def launch(self, folder):
        """Launches a detached run; returns its name, or None with what was printed."""
        answer = self.rankdeck("run", "s.toml", "--detach", cwd=folder)
        listed = self.rankdeck("ps", "--json", cwd=folder).stdout
        names = re.findall(r'"run": ?"([^"]+)"', listed)
        return (names[0] if names and answer.returncode == 0 else None), answer

    def stop(self, folder, name):
        return self.rankdeck("stop", name, "--yes", cwd=folder)


def own(path, user):
    """Gives `path` and what is below it to `user`."""
    entry = pwd.getpwnam(user)
    for item in (path, *path.rglob("*")):
        os.chown(item, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def first(text, pattern="error|hint|warning|NOT VERIFIED|verified|refus"):
    """The first line of `text` that matches, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [line for line in lines if re.search(pattern, line)]
    return (found or lines or ["(nothing)"])[0][:150]


def squatted_runs(bed, space):
    """The attacker made `runs` in a sticky directory that everybody can write, before the victim launches there."""
    shared = space / "squatted"
    shared.mkdir()
    shared.chmod(0o1777)
    as_attacker(f"import os; os.umask(0); os.mkdir({str(shared / 'runs')!r}, 0o777)")
    folder = bed.folder("squatted", shared)
    name, answer = bed.launch(folder)
    live = list((shared / "runs").iterdir())
    if name:
        bed.stop(folder, name)
    return bool(name or live), first(answer.stdout)


def squatted_later(bed, space):
    """The attacker can rename entries above the runs, and puts an agent of its own in the place of the victim's."""
    shared = space / "renamed"
    shared.mkdir()
    shared.chmod(0o777)
    folder = bed.folder("renamed", shared)
    name, answer = bed.launch(folder)
    if not name:
        return False, first(answer.stdout)
    received = space / "received"
    received.mkdir()
    received.chmod(0o777)
    code = f"""
import json, os, shutil, socket, threading
os.umask(0)
shared, name = {str(shared)!r}, {name!r}
os.rename(shared + "/runs", shared + "/aside")
os.makedirs(shared + "/runs/" + name + "/node0")
try: manifest = json.load(open(shared + "/aside/" + name + "/node0/manifest.json"))
except Exception: manifest = {{"version": 1, "run": name, "agent_pid": 1}}
path = {str(received)!r} + "/s.sock"
manifest["socket"] = path
json.dump(manifest, open(shared + "/runs/" + name + "/node0/manifest.json", "w"))
server = socket.socket(socket.AF_UNIX); server.bind(path); server.listen(4); server.settimeout(15)
try:
    while True:
        peer, _ = server.accept(); peer.settimeout(3)
        data = peer.recv(65536)
        open({str(received)!r} + "/data", "ab").write(data)
except Exception: pass
"""
    thread = threading.Thread(target=as_attacker, args=(code, "/", 40))
    thread.start()
    time.sleep(1)
    answer = bed.rankdeck("restart", name, "--yes", cwd=folder, timeout=20, variables={"AWS_SECRET_ACCESS_KEY": SECRET})
    stopped = bed.rankdeck("stop", name, "--yes", cwd=folder, timeout=20)
    thread.join()
    got = (received / "data").read_bytes() if (received / "data").exists() else b""
    subprocess.run(["pkill", "-KILL", "-u", VICTIM])
    bad = SECRET.encode() in got or b"launch" in got or ("verified, no process" in stopped.stdout)
    return bad, f"restart: {first(answer.stdout)}; stop: {first(stopped.stdout)}"


def forged_manifest(bed, space):
    """A manifest that names a lock file of the victim as its socket, in a place that the attacker can write."""
    del space
    folder = bed.folder("forged")
    project = bed.home / "proj"
    project.mkdir()
    for name in ("Cargo.lock", "Cargo.sock", "Cargo.ev", "Cargo.below"):
        (project / name).write_text("kept")
    own(project, VICTIM)
    node = folder / "runs" / "old-20260101-000000" / "node0"
    node.mkdir(parents=True)
    manifest = {"version": 1, "run": "old-20260101-000000", "agent_pid": 0, "socket": str(project / "Cargo.sock"), "ranks": []}
    (node / "manifest.json").write_text(json.dumps(manifest))
    own(folder / "runs", ATTACKER)
    (folder / "runs").chmod(0o777)
    before = sorted(path.name for path in project.iterdir())
    answer = bed.rankdeck("stop", "old-20260101-000000", "--yes", cwd=folder)
    return sorted(path.name for path in project.iterdir()) != before, first(answer.stdout)


def linked_log(bed, space):
    """Files of a run directory that are links to files of the victim: nothing is appended to them."""
    del space
    folder = bed.folder("linked")
    name, answer = bed.launch(folder)
    if not name:
        return True, "no run: " + first(answer.stdout)
    bed.stop(folder, name)
    profile = bed.home / ".bashrc"
    profile.write_text("# mine\n")
    own(profile, VICTIM)
    node = folder / "runs" / name / "node0"
    for item in list(node.iterdir()):
        if item.is_file() and item.suffix in (".log", ".jsonl"):
            item.unlink()
            item.symlink_to(profile)
    own(folder / "runs", VICTIM)
    text = ""
    for command in (["attach", name, "--headless"], ["logs", name], ["restart", name, "--yes", "--detach"], ["stop", name, "--yes"]):
        text += bed.rankdeck(*command, cwd=folder, timeout=20).stdout
    subprocess.run(["pkill", "-KILL", "-u", VICTIM])
    return profile.read_text() != "# mine\n", first(text)


def linked_textfile(bed, space):
    """A guessable name beside `--textfile`, linked to a file of the victim, in a directory of a group."""
    shared = space / "prom"
    shared.mkdir()
    shared.chmod(0o777)
    keep = bed.home / "keep.txt"
    keep.write_text("kept")
    own(keep, VICTIM)
    for suffix in (".tmp", ".part", "~", ".new"):
        as_attacker(f"import os; os.symlink({str(keep)!r}, {str(shared / 'run.prom')!r} + {suffix!r})")
    as_attacker(f"import os; os.symlink({str(keep)!r}, {str(shared / '.run.prom.tmp')!r})")
    folder = bed.folder("textfile")
    name, _ = bed.launch(folder)
    answer = bed.rankdeck("export-metrics", name, "--textfile", shared / "run.prom", cwd=folder, timeout=8)
    bed.stop(folder, name)
    return keep.read_text() != "kept", first(answer.stdout)


def pipes(bed, space):
    """Pipes and endless files under the names that bare commands read: each command ends."""
    del space
    folder = bed.folder("pipes")
    os.mkfifo(folder / "x.toml")
    (folder / "zero.toml").symlink_to("/dev/zero")
    for run in ("a-1", "b-1", "c-1"):
        (folder / "runs" / run / "node0").mkdir(parents=True)
        (folder / "runs" / run / "record").mkdir()
    os.mkfifo(folder / "runs/a-1/node0/manifest.json")
    (folder / "runs/b-1/node0/manifest.json").symlink_to("/dev/zero")
    os.mkfifo(folder / "runs/c-1/record/000001.seg")
    own(folder, VICTIM)
    late = []
    for command in (["ps"], ["replay", "c-1", "--headless"], ["report", "c-1"], ["check", "x.toml"], ["check", "zero.toml"],
                    ["logs", "b-1"], ["compare", "a-1", "b-1"], ["rm", "a-1", "--yes"]):
        answer = bed.rankdeck(*command, cwd=folder, timeout=15)
        if answer.returncode == "no end":
            late.append(" ".join(command))
    return bool(late), "no end: " + ", ".join(late) if late else "each of 8 commands ended"


def hidden_values(bed, space):
    """A secret of `launch.env` in what leaves the console."""
    del space
    folder = bed.folder("hidden")
    name, _ = bed.launch(folder)
    commands = [["report", name, "--output", "r.html"], ["report", name, "--output", "r.md"], ["mlflow", name, "--output", "ml"],
                ["check", "s.toml"], ["ps", "--json"], ["status", name, "--json"], ["logs", name]]
    out = "".join(bed.rankdeck(*command, cwd=folder, timeout=30).stdout for command in commands)
    bed.stop(folder, name)
    shown = [path.name for path in folder.rglob("*") if path.is_file() and "runs" not in path.parts
             and path.name not in ("s.toml",) and SECRET.encode() in path.read_bytes()]
    shown += ["output of a command"] if SECRET in out else []
    made = [name for name in ("r.html", "r.md") if (folder / name).exists()]
    return bool(shown) or len(made) < 2, f"shown in {shown or 'nothing'} of {made} and {len(commands)} outputs"


def git_programs(bed, space):
    """Programs that the settings of a repository name: none runs, and the changes are recorded."""
    folder = bed.folder("git")
    evil = space / "evil.sh"
    evil.write_text(f"#!/bin/sh\nid -un >> {space}/ran\nexit 0\n")
    evil.chmod(0o755)
    (space / "ran").unlink(missing_ok=True)
    script = ("git init -q . && git config user.email a@b && git config user.name a && git add -A && git commit -qm one && "
              f"git config diff.external {evil} && git config core.fsmonitor {evil} && git config color.ui always && "
              f"git config filter.x.clean {evil} && git config core.hooksPath {space} && echo '# more' >> sleeper.py")
    run_as(VICTIM, ["sh", "-c", script], folder)
    (space / "ran").unlink(missing_ok=True)
    text = bed.rankdeck("check", "s.toml", cwd=folder).stdout
    name, _ = bed.launch(folder)
    changes = list(folder.rglob("changes.diff"))
    patched = any(b"+# more" in path.read_bytes() for path in changes)
    bed.stop(folder, name)
    return (space / "ran").exists() or not patched, f"changes recorded: {patched}; {first(text)}"


def escapes(bed, space):
    """Escape sequences and line breaks of an experiment and a branch in the output of check."""
    del space
    folder = bed.folder("escapes")
    (folder / "e.toml").write_text('[run]\nname = "e"\n[launch]\ncommand = ["python3", "c\\u001b]0;PWNED\\u0007\\u001b[31m\\u009b31m\\u202e", "x\\n  hosts    fake line"]\n')
    run_as(VICTIM, ["sh", "-c", "git init -q . && git config user.email a@b && git config user.name a && git add -A && git commit -qm one && git checkout -q -b \"$(printf 'ev\\342\\200\\256il')\""], folder)
    text = bed.rankdeck("check", "e.toml", cwd=folder).stdout
    raw = [hex(ord(c)) for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or ord(c) in (0x202E, 0x200B)]
    fake = any(line.startswith("  hosts    fake") for line in text.splitlines())
    return bool(raw) or fake, f"control characters {raw or 'none'}, imitated line {fake}"


def other_user(bed, space):
    """Reads, connections and signals of another user against a live run."""
    del space
    bed.home.chmod(0o755)
    folder = bed.folder("live")
    name, _ = bed.launch(folder)
    folder.chmod(0o755)
    pids = [int(pid) for pid in subprocess.run(["pgrep", "-u", VICTIM], text=True, stdout=subprocess.PIPE).stdout.split()]
    sockets = [line.split()[-1] for line in pathlib.Path("/proc/net/unix").read_text().splitlines() if "rankdeck" in line and line.split()[-1].startswith("/")]
    code = f"""
import os, socket, glob
bad = []
for root, _, files in os.walk({str(folder / 'runs')!r}):
    for f in files:
        try: open(root + "/" + f, "rb").read(1); bad.append("read " + f)
        except OSError: pass
for pid in {pids}:
    for f in ("environ", "mem", "maps", "io"):
        try:
            if open(f"/proc/{{pid}}/{{f}}", "rb").read(1): bad.append(f"read {{f}}")
        except OSError: pass
    try: os.kill(pid, 0); bad.append("signal")
    except OSError: pass
for path in {sockets}:
    try:
        s = socket.socket(socket.AF_UNIX); s.connect(path); bad.append("connect " + path)
    except OSError: pass
print(bad)
"""
    text = as_attacker(code)
    ends = [run_as(ATTACKER, [bed.binary, *command], folder, timeout=20) for command in (["stop", name, "--yes"], ["attach", name, "--headless"], ["logs", name])]
    alive = all(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)
    stop = bed.stop(folder, name)
    bad = text != "[]" or not alive or any(end.returncode == 0 for end in ends)
    return bad, f"{text}, {len(pids)} processes alive: {alive}, {len(sockets)} sockets; stop by its user: {first(stop.stdout)}"


def squatted_sockets(bed, space):
    """The directory of the sockets is the attacker's, before the launch."""
    del space
    uid = pwd.getpwnam(VICTIM).pw_uid
    place = pathlib.Path(f"/tmp/rankdeck-{uid}")
    if place.exists():
        shutil.rmtree(place)
    as_attacker(f"import os; os.umask(0); os.mkdir({str(place)!r}, 0o777)")
    folder = bed.folder("sockets")
    name, answer = bed.launch(folder)
    stop = bed.stop(folder, name) if name else answer
    used = list(place.iterdir())
    shutil.rmtree(place)
    return bool(used) or stop.returncode != 0, f"entries there: {len(used)}; {first(stop.stdout)}"


def long_names(bed, space):
    """File names of 250 bytes and of bytes that are no UTF-8: fetch copies the rest and names these."""
    del space
    folder = bed.folder("names")
    (folder / "sleeper.py").write_text(
        "import os\nopen('n' * 250, 'w').write('long')\nopen(b'no\\xff\\xfeutf8', 'w').write('bytes')\n"
        "open('zz_last', 'w').write('last')\nprint('begun', flush=True)\n")
    own(folder, VICTIM)
    name, answer = bed.launch(folder)
    time.sleep(3)
    fetched = bed.rankdeck("fetch", name, cwd=folder)
    got = {path.name for path in folder.rglob("*") if "zz_last" in path.name or path.name.startswith("nnn")}
    return "zz_last" not in got, f"{first(answer.stdout)}; fetch {fetched.returncode}: {first(fetched.stdout)}"


ATTEMPTS = [squatted_runs, squatted_later, forged_manifest, linked_log, linked_textfile, pipes, hidden_values, git_programs,
            escapes, other_user, squatted_sockets, long_names]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/debug/rankdeck")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("stranger.py creates two users: run it as root")
    chosen = [attempt for attempt in ATTEMPTS if not args.only or attempt.__name__ in args.only.split(",")]
    effects = 0
    space = pathlib.Path(tempfile.mkdtemp(prefix="stranger-"))
    space.chmod(0o755)
    binary = space / "rankdeck"
    shutil.copy(args.binary, binary)
    try:
        for user in (VICTIM, ATTACKER):
            subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", user], check=True)
        bed = Bed(binary)
        for attempt in chosen:
            begun = time.monotonic()
            try:
                effect, text = attempt(bed, space)
            except Exception as error:  # the attempt itself failed: counted, and the next one is tried
                effect, text = True, f"{type(error).__name__}: {error}"
            effects += effect
            print(f"{attempt.__name__:<18} {'EFFECT' if effect else 'none  '} {time.monotonic() - begun:5.1f} s  {text}", flush=True)
            subprocess.run(["pkill", "-KILL", "-u", f"{VICTIM},{ATTACKER}"])
    finally:
        for user in (VICTIM, ATTACKER):
            subprocess.run(["pkill", "-KILL", "-u", user])
            for _ in range(50):
                if subprocess.run(["userdel", "--remove", user], stderr=subprocess.DEVNULL).returncode != 8:
                    break
                time.sleep(0.1)
        shutil.rmtree(space, ignore_errors=True)
    print(f"{len(chosen)} attempts, {effects} with an effect")
    return min(effects, 255)


if __name__ == "__main__":
    sys.exit(main())
