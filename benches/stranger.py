#!/usr/bin/env python3
"""Strangers at a training of two SSH hosts: what 1,000 connections, garbage and slow greetings change.

    make build
    python3 benches/stranger.py [--rounds 5] [--window 6] [--console target/release/rankdeck] [--json FILE]

Two ranks train CartPole on two hosts of the test bed, each with an SSH server of its own. A process on the same network, without the secret,
connects to whatever the ranks listen on: from the launch until the ranks have joined (store and all-reduce listeners), and then, in windows,
to the store. 1,000 connections are open at a time: a third stays silent, a third sends garbage, and a third greets a byte at a time; each that
is hung up on is made again. Beside that, another user of rank 0's host tries the event socket 1,000 times, and the run's own user writes
garbage into it 1,000 times.

Windows are taken in turns: quiet, control, attack. In the control the same process does the same to a listener of its own, which costs this
machine the same work and the run nothing else. Said are steps per second in each, the median over the rounds of attack / quiet and of attack /
control, what the run has counted, and whether the weights are those, bit for bit, of a run that nobody troubled. This command fails when they
are not, when the run ends, or when the listener is out of descriptors. Needs root, for namespaces (tests/testbed), and libtorch (LIBTORCH).
"""
import argparse, contextlib, json, os, pathlib, random, re, select, socket, statistics, subprocess, sys, tempfile, threading, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONNECTIONS = 1000
EXPERIMENT = """
[run]
name = "stranger"
seed = 7
total_steps = 1000000000
[env]
id = "CartPole-v1"
num_envs = 8
[learn]
algorithm = "ppo"
[eval]
every = 0
[checkpoint]
every = 100
keep = 0
"""


class Caller:
    """One connection that never proves anything."""

    def __init__(self, target, kind):
        self.target, self.kind, self.socket, self.sent = target, kind, None, 0

    def open(self, poll, known):
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(self.target)
        self.sent = 0
        known[self.socket.fileno()] = self
        poll.register(self.socket, select.POLLIN | select.POLLOUT | select.POLLHUP | select.POLLERR)

    def close(self, poll, known):
        known.pop(self.socket.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            poll.unregister(self.socket)
        self.socket.close()

    def act(self):
        """Says its next word; False when the other end is gone."""
        try:
            with contextlib.suppress(BlockingIOError):
                if not self.socket.recv(4096):
                    return False
            if self.kind == "garbage":
                self.socket.send(random.randbytes(256))
            elif self.kind == "slow":
                self.socket.send(b"rankdk/1"[self.sent % 8:self.sent % 8 + 1])
            self.sent += 1
            return self.kind != "garbage" or self.sent < 4
        except BlockingIOError:
            return True
        except OSError:
            return False


def attack(targets, seconds):
    """Keeps CONNECTIONS open against the targets; how many were made."""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    poll, known, made, dead = select.poll(), {}, 0, []
    callers = [Caller(targets[i % len(targets)], ("silent", "garbage", "slow")[i % 3]) for i in range(CONNECTIONS)]
    for caller in callers:
        caller.open(poll, known)
        made += 1
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for fd, _ in poll.poll(50):
            caller = known.get(fd)
            if caller and not caller.act():
                caller.close(poll, known)
                dead.append(caller)
        # A quarter of a second between two looks: a flood of events would measure this process.
        time.sleep(0.25)
        for caller in dead:
            caller.open(poll, known)
            made += 1
        dead.clear()
    return made


def control(seconds):
    """The same against a listener that hangs up as a store does: after a while, or at once on garbage."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    over = threading.Event()

    def serve():
        held = []
        listener.settimeout(0.05)
        while not over.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                held.append(listener.accept()[0])
            while len(held) > 130:
                held.pop(0).close()

    thread = threading.Thread(target=serve)
    thread.start()
    made = attack([listener.getsockname()], seconds)
    over.set()
    thread.join()
    return made


def role(words):
    """This program inside the bed."""
    if words[0] == "control":
        print(control(float(words[1])))
    elif words[0] == "attack":
        targets = [(address, int(port)) for address, port in (word.rsplit(":", 1) for word in words[2:])]
        print(attack(targets, float(words[1])))
    elif words[0] == "events":
        refused = written = 0
        for _ in range(CONNECTIONS):
            stream = socket.socket(socket.AF_UNIX)
            try:
                stream.connect(words[1])
                stream.sendall(random.randbytes(64) + b"\n")
                written += 1
            except PermissionError:
                refused += 1
            except OSError:
                pass
            stream.close()
        print(json.dumps({"refused": refused, "written": written}))


class Training:
    """A run of two ranks, and what its console says."""

    def __init__(self, bed, folder, console, *more):
        self.bed, self.steps, self.run, self.joined, self.lines = bed, [], None, 0, []
        self.words, self.hosts = [bed.script, "exec", "console", str(console)], str(folder / "hosts.toml")
        command = [*self.words, "run", str(folder / "stranger.toml"), "--hosts", self.hosts, "--headless", "--json", *more]
        environment = {**bed.environment, **bed.variables()}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=(folder / "console.log").open("w"))
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                self.lines.append(said)
                self.run = self.run or said.get("run")
                self.joined += said["kind"] == "rank" and said["state"] == "joined"
                if said["kind"] == "progress":
                    self.steps.append((time.monotonic(), said["env_step"]))

    def until(self, what, holds, seconds=120):
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"stranger: no {what}: {self.lines[-3:]}")
            time.sleep(0.02)

    def rate(self, since, until):
        """Steps per second between the first and the last report of a window."""
        inside = [(at, step) for at, step in self.steps if since <= at <= until]
        if len(inside) < 2:
            raise SystemExit(f"stranger: {len(inside)} reports in a window of {until - since:.0f} s")
        (begun, first), (ended, last) = inside[0], inside[-1]
        return (last - first) / (ended - begun)

    def stop(self):
        """By another console; the first one's exit code."""
        environment = {**self.bed.environment, **self.bed.variables()}
        subprocess.run([*self.words, "stop", self.run, "--hosts", self.hosts], env=environment, capture_output=True, check=True)
        return self.process.wait(60)


def on(bed, node, line):
    return bed.call("exec", f"node{node}", "sh", "-c", line, check=False).stdout.strip()


def listeners(bed):
    """Addresses of TCP sockets on both hosts at which somebody listens, but sshd."""
    found = []
    for node in range(2):
        for line in on(bed, node, "cat /proc/net/tcp").splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == "0A" and int(port, 16) != 22:
                ip = ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
                found.append(f"{f'10.77.0.{10 + node}' if ip == '0.0.0.0' else ip}:{int(port, 16)}")
    return [place for place in found if not place.startswith("127.")]


def inside(bed, *words):
    command = [bed.script, "exec", "console", sys.executable, __file__, "--role", *words]
    return subprocess.Popen(command, env=bed.environment, text=True, stdout=subprocess.PIPE)


def strangers(bed, run):
    """What rank 0 has counted: the sum that its latest line tells."""
    text = on(bed, 0, f"cat ~tb/work/runs/{run}/node0/gen0/rank0.log ~tb/work/runs/{run}/*/rank0.log 2>/dev/null")
    counts = [int(number) for number in re.findall(r"refused (\d+) connections? that did not come from this run", text)]
    return max(counts, default=0), text


def measure(bed, folder, args):
    training = Training(bed, folder, args.console)
    training.until("launch", lambda: training.run and training.lines and any(said["kind"] == "rank" for said in training.lines))
    # At whatever listens while the ranks meet.
    while training.joined < 2:
        if places := listeners(bed):
            inside(bed, "attack", "1", *places).wait()
        training.until("end of the wait", lambda: True)
    training.until("progress", lambda: len(training.steps) > 3)
    store = listeners(bed)
    if not store:
        raise SystemExit("stranger: nothing listens during the training")
    rounds, made = [], 0
    for _ in range(args.rounds):
        rates = {}
        for kind in ("quiet", "control", "attack"):
            words = {"quiet": None, "control": ["control", str(args.window + 1)], "attack": ["attack", str(args.window + 1), *store]}[kind]
            process = inside(bed, *words) if words else None
            time.sleep(1)
            since = time.monotonic()
            time.sleep(args.window)
            rates[kind] = training.rate(since, time.monotonic())
            if process:
                count = int(process.communicate()[0] or 0)
                made += count if kind == "attack" else 0
        rounds.append(rates)
        print("  ".join(f"{kind} {rate:,.0f}/s" for kind, rate in rates.items()), flush=True)
    pid = on(bed, 0, "pgrep -f 'rankdeck-traine[r]' | head -1")
    events = on(bed, 0, f"tr '\\0' '\\n' </proc/{pid}/environ | sed -n 's/^RANKDECK_EVENTS=//p'")
    other = json.loads(on(bed, 0, f"setpriv --reuid=65534 --regid=65534 --clear-groups python3 /mnt/stranger.py --role events {events}") or "{}")
    own = json.loads(on(bed, 0, f"setpriv --reuid=61000 --regid=61000 --clear-groups python3 /mnt/stranger.py --role events {events}") or "{}")
    before = len(training.steps)
    training.until("progress after that", lambda: len(training.steps) > before + 2)
    code = training.stop()
    counted, log = strangers(bed, training.run)
    newest = on(bed, 0, f"ls ~tb/work/runs/{training.run}/checkpoints | sed -n 's/^iter-\\([0-9]*\\).ckpt$/\\1/p' | sort -n | tail -1")
    return dict(code=code, rounds=rounds, made=made, counted=counted, other=other, own=own, run=training.run, newest=int(newest),
                descriptors="Too many open files" in log)


def weights(bed, run, iteration):
    return on(bed, 0, f"sha256sum < ~tb/work/runs/{run}/checkpoints/iter-{iteration}.safetensors").split(" ")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=6)
    parser.add_argument("--console", type=pathlib.Path, default=ROOT / "target/release/rankdeck")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        return role(args.role)
    sys.path.insert(0, str(ROOT / "benches"))
    from lab import bed as lab_bed
    libtorch = pathlib.Path(os.environ.get("LIBTORCH", ROOT / ".libtorch/torch")).resolve()
    # Hosts have it under another name, and a folder of this machine's.
    os.environ.update(TESTBED_BIND=str(libtorch.parent), LIBTORCH=f"/mnt/bound/{libtorch.name}")
    with tempfile.TemporaryDirectory(prefix="rdstranger") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        bed = lab_bed.Bed(folder)
        try:
            (folder / "bed/shared/stranger.py").write_text(pathlib.Path(__file__).read_text())
            (folder / "hosts.toml").write_text(bed.hosts([1, 1]))
            (folder / "stranger.toml").write_text(EXPERIMENT)
            found = measure(bed, folder, args)
            iteration = found["newest"]
            alone = Training(bed, folder, args.console, "--until", f"iters={iteration}")
            alone.process.wait(600)
            same = weights(bed, found["run"], iteration) == weights(bed, alone.run, iteration) != ""
        finally:
            bed.close()
    median = lambda kind, of: statistics.median(rates[kind] / rates[of] for rates in found["rounds"])  # noqa: E731
    result = {**found, "attack_over_quiet": median("attack", "quiet"), "control_over_quiet": median("control", "quiet"),
              "attack_over_control": median("attack", "control"), "same_weights": same, "load": os.getloadavg()[0]}
    print(f"{found['made']:,} connections, {found['counted']:,} counted by the run; attack / quiet {result['attack_over_quiet']:.2f}, "
          f"control / quiet {result['control_over_quiet']:.2f}, attack / control {result['attack_over_control']:.2f}")
    print(f"event socket: another user refused {found['other'].get('refused')} of {CONNECTIONS} times; own user's garbage taken {found['own'].get('written')} times")
    print(f"iteration {iteration:,}: weights {'equal, bit for bit' if same else 'DIFFER'}; exit code {found['code']}; load {result['load']:.1f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    sys.exit(not (same and found["code"] == 130 and found["counted"] > 0 and not found["descriptors"] and found["other"].get("refused") == CONNECTIONS))


if __name__ == "__main__":
    main()
