#!/usr/bin/env python3
"""Times of hosts: check, launch, verified stop over SSH; and launch and stop of local ranks vs. torchrun.

Everything runs on this machine: one OpenSSH server on loopback with its default MaxStartups, N entries in hosts.toml with a folder each. Times are from
the start of the command to what is named; medians over --rounds. One JSON object is printed.

    benches/hosts.py --rankdeck target/release/rankdeck --hosts 16 --hosts 64
    benches/hosts.py --rankdeck target/release/rankdeck --torchrun venv/bin/torchrun
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLEEPER = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', time.time(), flush=True); time.sleep(600)"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """An sshd for the current user, in a folder of its own."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        for name in ("host", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "id.pub", folder / "authorized_keys")
        os.makedirs("/run/sshd", exist_ok=True)
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host\nPidFile none\nAuthorizedKeysFile {folder}/authorized_keys\n"
            f"StrictModes no\nUsePAM no\nPermitRootLogin yes\nSetEnv RANKDECK_CACHE={folder}/cache SHLVL=2\n")
        self.process = subprocess.Popen([shutil.which("sshd", path="/usr/sbin:/sbin:" + os.environ["PATH"]), "-D", "-f",
                                         folder / "sshd_config", "-E", folder / "log"])
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        key = (folder / "host.pub").read_text().split()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")
        (folder / "config").write_text(f"Host *\nUserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile none\nIdentityAgent none\n")

    def hosts(self, count):
        text = f'[defaults]\naddress = "127.0.0.1"\nport = {self.port}\nidentity_file = "{self.folder}/id"\n'
        for node in range(count):
            work = self.folder / f"work{node}"
            work.mkdir(exist_ok=True)
            text += f'[[host]]\nname = "h{node}"\nworkdir = "{work}"\n'
        path = self.folder / f"hosts{count}.toml"
        path.write_text(text)
        return path

    def end(self):
        self.process.terminate()
        self.process.wait()


def experiment(folder, command, name="bench"):
    path = folder / f"{name}.toml"
    words = ", ".join(json.dumps(word) for word in command)
    path.write_text(f'[run]\nname = "{name}"\n[launch]\ncommand = [{words}]\n')
    return path


class Console:
    """A headless console whose JSON lines are read with the time of their arrival."""

    def __init__(self, binary, args, folder):
        env = dict(os.environ, RANKDECK_SSH_CONFIG=str(folder / "config"))
        self.began = time.monotonic()
        self.process = subprocess.Popen([binary, *map(str, args), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        cwd=folder, env=env)

    def until(self, fits):
        for line in self.process.stdout:
            value = json.loads(line)
            if fits(value):
                return value, time.monotonic() - self.began
        raise SystemExit(f"the console ended early: {self.process.stderr.read()}")

    def peak_mb(self):
        text = Path(f"/proc/{self.process.pid}/status").read_text(errors="replace")
        return int(next(line for line in text.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def over_ssh(binary, folder, count, rounds):
    server = Server(folder)
    try:
        hosts = server.hosts(count)
        file = experiment(folder, ["python3", "-u", "-c", SLEEPER])
        env = dict(os.environ, RANKDECK_SSH_CONFIG=str(folder / "config"))

        def check():
            began = time.monotonic()
            done = subprocess.run([binary, "check", file, "--hosts", hosts, "--json"], cwd=folder, env=env, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            return time.monotonic() - began

        # All entries are one machine with one cache: what a first contact costs is asked of one of them.
        alone = server.hosts(1)
        began = time.monotonic()
        subprocess.run([binary, "check", file, "--hosts", alone], cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
        first = time.monotonic() - began
        checks = [check() for _ in range(rounds)]
        launches, stops, proofs, peaks = [], [], [], []
        for _ in range(rounds):
            console = Console(binary, ["run", file, "--hosts", hosts], folder)
            up = set()

            def all_up(value):
                if value["kind"] == "log" and value["line"].startswith("up "):
                    up.add(value["rank"])
                return len(up) == count

            _, launched = console.until(all_up)
            launches.append(launched)
            peaks.append(console.peak_mb())
            began = time.monotonic()
            console.process.send_signal(signal.SIGINT)
            finished, _ = console.until(lambda value: value["kind"] == "run_finished")
            stops.append(time.monotonic() - began)
            proofs.append(finished["stop_ms"] / 1000)
            if not finished["proved"] or finished["survivors"]:
                raise SystemExit(f"not proved: {finished}")
            console.process.wait()
            time.sleep(1.1)  # names of runs hold a second
        middle = lambda values: round(statistics.median(values), 3)
        return {"hosts": count, "first_contact_of_one_host_s": round(first, 3), "check_s": middle(checks), "launch_s": middle(launches),
                "stop_s": middle(stops), "stop_to_proof_s": middle(proofs), "console_peak_mb": round(max(peaks), 1)}
    finally:
        server.end()


GANG = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(os.path.join(sys.argv[1], os.environ["RANK"] + "." + str(os.getpid())), "w").close()
time.sleep(600)
"""


def beside_torchrun(binary, torchrun, folder, nproc, rounds):
    """The same gang by both, in turns, on this machine; a rank is up when it has made its file, a gang is gone when its processes are."""
    script = folder / "gang.py"
    script.write_text(GANG)
    (folder / "hosts.toml").write_text(f'[[host]]\nname = "here"\ntransport = "local"\nnproc = {nproc}\n')

    def one(command, end):
        marks = Path(tempfile.mkdtemp(dir=folder))
        began = time.monotonic()
        process = subprocess.Popen([str(word).replace("MARKS", str(marks)) for word in command(marks)], cwd=folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        deadline = began + 120
        while len(list(marks.iterdir())) < nproc:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command(marks)} did not launch")
            time.sleep(0.002)
        launched = time.monotonic() - began
        pids = [int(mark.name.split(".")[1]) for mark in marks.iterdir()]
        began = time.monotonic()
        process.send_signal(end)
        process.wait()
        while any(alive(pid) for pid in pids):
            time.sleep(0.002)
        return launched, time.monotonic() - began

    def ours(marks):
        file = experiment(folder, [sys.executable, str(script), str(marks)], name="gang")
        return [binary, "run", file, "--hosts", folder / "hosts.toml", "--headless"]

    def theirs(marks):
        return [torchrun, "--standalone", "--nproc-per-node", nproc, script, marks]

    times = {"rankdeck": [], "torchrun": []}
    for _ in range(rounds):
        times["rankdeck"].append(one(ours, signal.SIGINT))
        times["torchrun"].append(one(theirs, signal.SIGTERM))
        time.sleep(1.1)
    result = {"ranks": nproc, "rounds": rounds}
    for index, what in enumerate(("launch", "stop")):
        own, other = (statistics.median(values[index] for values in times[name]) for name in ("rankdeck", "torchrun"))
        result |= {f"{what}_s": round(own, 3), f"{what}_torchrun_s": round(other, 3), f"{what}_ratio": round(own / other, 3)}
    return result


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rankdeck", type=Path, default=Path("target/release/rankdeck"))
    parser.add_argument("--hosts", type=int, action="append", default=[], metavar="N")
    parser.add_argument("--torchrun", type=Path)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    binary = args.rankdeck.resolve()
    result = {"cpus": os.cpu_count()}

    def part(name, measure):
        """One part, with the load before and after it: other work on this machine is in every time."""
        before = round(os.getloadavg()[0], 1)
        with tempfile.TemporaryDirectory(prefix="rankdeck-bench-") as folder:
            result[name] = measure(Path(folder)) | {"load1": [before, round(os.getloadavg()[0], 1)]}
        print(json.dumps({name: result[name]}), file=sys.stderr, flush=True)

    for count in args.hosts:
        part(f"ssh_{count}", lambda folder, count=count: over_ssh(binary, folder, count, args.rounds))
    if args.torchrun:
        part("beside_torchrun",
             lambda folder: beside_torchrun(binary, args.torchrun.absolute(), folder, args.nproc, args.rounds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
