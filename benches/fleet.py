#!/usr/bin/env python3
"""What watching many hosts costs: bare `rankdeck` with N hosts over real SSH, on its page of the fleet, in a terminal of 200 x 60.

One OpenSSH server on loopback with its default MaxStartups, N entries in hosts.toml. Printed: seconds until every host shows its gauges, logins that the
server saw, CPU time of the processes on the hosts and of the console in % of a core, and how often a host is polled. Needs tmux.

    cargo build --release && python3 benches/fleet.py [--hosts 16] [--seconds 60] [--binary target/release/rankdeck]
"""
import argparse, json, os, pathlib, shutil, subprocess, tempfile, time

from hosts import Server

ROOT = pathlib.Path(__file__).resolve().parent.parent


def processes(word):
    """Pids of those whose command line has the word."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if word in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def writes(pid):
    """Lines that it has written: one a look."""
    return int(next(line for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines() if line.startswith("syscw")).split()[1])


def cpu(pid):
    """Seconds of CPU time of all of its threads, to the nanosecond."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").glob("*")) / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--binary", default=str(ROOT / "target/release/rankdeck"))
    args = parser.parse_args()
    binary = str(pathlib.Path(args.binary).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rankdeck-fleet-"))
    server = Server(folder)
    tmux = ["tmux", "-L", folder.name]

    def screen():
        return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout

    def shown():
        return sum(1 for line in screen().splitlines() if "%" in line and any(f" h{node} " in f" {line} " for node in range(args.hosts)))

    try:
        hosts = server.hosts(args.hosts)
        env = dict(os.environ, RANKDECK_SSH_CONFIG=str(folder / "config"), RANKDECK_CACHE=str(folder / "cache"), LC_ALL="C.UTF-8", TERM="xterm-256color")
        # The agent's binary is there already: what is measured is not an upload.
        subprocess.run([binary, "--hosts", str(hosts), "ps"], env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        before = (folder / "log").read_text().count("Accepted publickey")
        begun = time.monotonic()
        subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "60", f"exec {binary} --hosts {hosts}"], env=env, cwd=folder, check=True)
        while "fleet" not in screen():
            time.sleep(0.05)
        subprocess.run([*tmux, "send-keys", "3"], check=True)
        while shown() < args.hosts:
            if time.monotonic() - begun > 120:
                raise SystemExit(f"{shown()} of {args.hosts} hosts are shown:\n{screen()}")
            time.sleep(0.05)
        login = time.monotonic() - begun
        logins = (folder / "log").read_text().count("Accepted publickey") - before
        agents, consoles = processes("agent fleet"), [pid for pid in processes(f"{binary} --hosts {hosts}") if pid not in processes("tmux")]
        # A shell of sshd's may hold the same words; it does not compute.
        at = {pid: cpu(pid) for pid in agents + consoles}
        looks = sum(writes(pid) for pid in agents)
        time.sleep(args.seconds)
        looks = sum(writes(pid) for pid in agents) - looks
        used = {pid: cpu(pid) - since for pid, since in at.items()}
        per_host = sum(used[pid] for pid in agents) / args.hosts / args.seconds * 100
        print(json.dumps({
            "hosts": args.hosts, "all_shown_s": round(login, 2), "logins": logins, "agents": len(agents), "seconds_between_looks": round(args.seconds * len(agents) / max(looks, 1), 1), "seconds": args.seconds,
            "host_percent_of_a_core": round(per_host, 3), "console_percent_of_a_core": round(sum(used[pid] for pid in consoles) / args.seconds * 100, 2),
            "still_shown": shown(),
        }))
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, stderr=subprocess.DEVNULL)
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
