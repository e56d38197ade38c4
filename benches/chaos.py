#!/usr/bin/env python3
"""Stops under chaos: random sequences over four hosts with SSH servers of their own, and after each the printed end against the truth.

    cargo build --release --bin rankdeck
    python3 benches/chaos.py [--sequences 200] [--seed 1] [--only SEED] [--do "OPERATION [HOST], ..."] [--console PATH] [--json FILE]

Each sequence launches a run of four ranks, does two to five random things to it (exclude a host, restart in one of the ways there are, kill or
add a console, add one with a terminal or a pipe that is not read, cut a cable, lag, lose packets, kill or suspend a rank, an agent, or an agent
with its guard, take away a host's folder of it, stop half of it), and then asks `rankdeck stop`. The seed also chooses the ranks' program (one
that runs itself, one below `bash run.sh`, `| tee`, `timeout` or `python -m launcher`, one below a shell that traps SIGTERM) and whether each host's own name
resolves to 127.0.1.1 on it. The processes of the run are looked up in /proc of the hosts: those with its tag, and those of its programs.
Where a host could not be reached, had lost its folder or had a suspended agent, that is mended and a second stop must end everything.

An end is one of

    verified-true       called verified, and no process is left
    not-verified-true   called NOT VERIFIED: a host could not be asked or has lost the run's folder, its agent is suspended, or a process is left
    needless            called NOT VERIFIED although every host could be asked and nothing is left
    false               reported as verified although a process is left or comes back, or neither reported
    endless             no end within the bound

A run that does not start is counted as `not begun`.

`--do "cut node1, kill_rank node0, wait 10, kill_console, mend"` does these things in every sequence, in the words in which sequences are printed;
a host that does not come back is then excluded, which is left to chance otherwise.

`false` and `endless` make this command fail, and so does a second stop that is not verified: the network is whole then. The seed of every sequence is printed: `--only SEED` repeats it.
Needs root, for namespaces (tests/testbed).
"""
import argparse, collections, contextlib, fcntl, json, os, pathlib, pty, random, re, select, shutil, signal, struct, subprocess, sys, tempfile, termios
import threading, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from lab import bed as lab_bed  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = 4
# Logging in to a host that does not respond, the drain, the kill and the sweep.
STOP_BOUND_S = 180
# Four uploads of the agent at most.
LAUNCH_BOUND_S = 300
EXPERIMENT = """
[run]
name = "chaos"
[launch]
command = {command}
stop_grace_s = 2.0
[watch]
lost_after_s = 3.0
[restart]
max_restarts = 5
backoff_s = 0.5
lost_host = "{lost_host}"
"""
# After a verified stop, nothing may come back.
SETTLED_S = 4
# Where a dialog or a first screen comes late, a machine is busy.
SCREEN_BOUND_S = 30
# What ranks execute, by name. The files are in a folder that all hosts have as /mnt.
PROGRAMS = dict(
    plain=["/bin/sh", "-c", "exec sleep 900"],
    script=["bash", "/mnt/run.sh"],
    module=["env", "PYTHONPATH=/mnt", "python3", "-m", "launcher"],
    trap=["bash", "/mnt/trap.sh"],
    pipe=["bash", "-c", "sleep 900 | tee /dev/null"],
    timeout=["timeout", "--foreground", "1h", "sleep", "900"],
)
FILES = {
    # Without a trap, bash ends at once, and its programs stay; one of them has no environment.
    "run.sh": "#!/bin/bash\nenv -i /bin/sleep 901 &\nsleep 900\necho end\n",
    "launcher.py": "import subprocess, sys\nsys.exit(subprocess.call(['sleep', '900']))\n",
    # SIGTERM does not end it, and one of its programs has left its session.
    "trap.sh": "trap 'echo asked' TERM\nsetsid sleep 902 &\nwhile :; do sleep 900; done\n",
    # What a restart names as a checkpoint.
    "saved.pt": "weights\n",
}
# Command lines of these programs; what looks for them has another one.
OF_A_RUN = "[s]leep 90[0-2]|/mnt/(run|trap)[.]sh|[-]m launcher"


class Hosts(lab_bed.Bed):
    """Four hosts; gone with `close`."""

    def __init__(self, folder, console):
        if why := lab_bed.missing():
            raise SystemExit(f"chaos: {why}")
        self.script, self.folder, self.binary = lab_bed.SCRIPT, pathlib.Path(folder), console
        self.environment = dict(os.environ, TESTBED_DIR=str(self.folder / "bed"), TESTBED_MODE="root", TESTBED_OWNER=str(os.getpid()),
                                TESTBED_WORK_SIZE="600m")
        up = self.call("up", str(HOSTS), check=False)
        if up.returncode:
            raise SystemExit(f"chaos: no hosts: {up.stderr.strip()}")
        config = (self.folder / "bed/client/config").read_text()
        changed = config.replace("Host node*", "Host node* 10.77.0.*").replace("BatchMode yes", "BatchMode no")
        (self.folder / "config").write_text(changed)
        for name, text in FILES.items():
            (self.folder / "bed/shared" / name).write_text(text)
        self.has_loopback_names = False
        self.write_hosts()

    def write_hosts(self):
        address = (lambda i: f"node{i}") if self.has_loopback_names else (lambda i: f"10.77.0.{10 + i}")
        hosts = "".join(f'[[host]]\nname = "node{i}"\naddress = "{address(i)}"\n' for i in range(HOSTS))
        (self.folder / "hosts.toml").write_text(f'[defaults]\nworkdir = "work"\nuser = "tb"\nnproc = 1\n{hosts}')

    def name(self, loopback):
        """Whether each host's own name is 127.0.1.1 on it, as in Debian's /etc/hosts; hosts.toml then has names."""
        for node in range(HOSTS) if loopback != self.has_loopback_names else ():
            own = "127.0.1.1" if loopback else f"10.77.0.{10 + node}"
            self.call("exec", f"node{node}", "sh", "-c",
                      f"sed 's/^.* node{node}$/{own} node{node}/' /etc/hosts >/tmp/hosts && cat /tmp/hosts >/etc/hosts")
        self.has_loopback_names = loopback
        self.write_hosts()

    def clear(self):
        for node in range(HOSTS):
            self.call("fault", f"node{node}", "clear", check=False)

    def spawn(self, *words, **options):
        command = [self.script, "exec", "console", self.binary, *words, "--hosts", str(self.folder / "hosts.toml")]
        environment = dict(self.environment, TERM="xterm-256color", **self.variables())
        # The hosts have none.
        environment.pop("LIBTORCH", None)
        options = dict(stdin=subprocess.DEVNULL, text=True) | options
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **options)

    def command(self, *words, bound_s):
        """Exit code and output of a command; the code is None when it did not end within the bound."""
        process = self.spawn(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = process.communicate(timeout=bound_s)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            end(process)
            return None, process.communicate()[0]

    def left(self, run):
        """Names of the hosts on which a process of the run is left, with the processes."""
        look = f"""for p in /proc/[0-9]*; do
            if grep -qzx 'RANKDECK_RUN={run}' $p/environ || tr '\\0' ' ' <$p/cmdline | grep -qE '{OF_A_RUN}'; then
                case $(sed 's/.*) //' $p/stat) in Z* | X* | '') ;; *) echo ${{p#/proc/}};; esac
            fi
        done 2>/dev/null"""
        found = {f"node{node}": self.call("exec", f"node{node}", "sh", "-c", look, check=False).stdout.split() for node in range(HOSTS)}
        return {host: pids for host, pids in found.items() if pids}


class NotBegun(Exception):
    """The run did not come up."""


def end(process):
    """Ends a console and whatever started it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Screen:
    """A console with a terminal. Nothing of its output is read but in `until`."""

    def __init__(self, hosts, *words):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        own = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        self.process = hosts.spawn(*words, stdin=slave, stdout=slave, stderr=slave, text=False, preexec_fn=own)
        os.close(slave)

    def send(self, keys):
        # A terminal whose other end is not read accepts no keys, either.
        os.set_blocking(self.master, False)
        with contextlib.suppress(OSError):
            os.write(self.master, keys.encode())
        os.set_blocking(self.master, True)

    def until(self, text, seconds=SCREEN_BOUND_S):
        """Reads until a text is shown; False where it is not. Cells that are blank already are not drawn again."""
        deadline, seen = time.time() + seconds, b""
        expected = "".join(text.split()).encode()
        while expected not in re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\s", b"", seen):
            if time.time() > deadline or not select.select([self.master], [], [], max(0, deadline - time.time()))[0]:
                return False
            try:
                seen += os.read(self.master, 65536)
            except OSError:
                return False
        return True

    def fill(self):
        """Requests redraws until the terminal takes no more."""
        deadline = time.time() + SCREEN_BOUND_S
        while time.time() < deadline and not self.is_stuck():
            self.send("\x0c")
            time.sleep(0.02)

    def is_stuck(self):
        """Whether a thread of the console waits for its terminal to be read."""
        pids = subprocess.run(["pgrep", "-s", str(self.process.pid)], text=True, capture_output=True, check=False).stdout.split()
        for task in (task for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").glob("*/syscall")):
            with contextlib.suppress(OSError):
                if task.read_text().startswith("1 "):
                    return True
        return False

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self.master)
        self.master = -1


class Sequence:
    """One run and what is done to it."""

    def __init__(self, hosts, seed, given):
        self.hosts, self.seed, self.given, self.random = hosts, seed, given, random.Random(seed)
        self.consoles, self.done, self.broken, self.forgotten, self.suspended = [], [], set(), set(), {}
        self.run, self.spawned, self.screens, self.pipes = None, 0, [], []
        self.program = self.random.choice(list(PROGRAMS))
        self.loopback = self.random.random() < 0.5

    def launch(self):
        lost_host = "exclude" if self.given else self.random.choice(["exclude", "stop"])
        self.hosts.name(self.loopback)
        experiment = self.hosts.folder / "chaos.toml"
        experiment.write_text(EXPERIMENT.format(lost_host=lost_host, command=json.dumps(PROGRAMS[self.program])))
        console = self.hosts.spawn("run", str(experiment), "--name", f"chaos{self.seed}", "--headless", "--json",
                                   stdout=subprocess.PIPE, stderr=(self.hosts.folder / "console.log").open("w"))
        self.consoles.append(console)
        threading.Thread(target=self.read, args=(console,), daemon=True).start()
        deadline = time.time() + LAUNCH_BOUND_S
        while self.spawned < HOSTS:
            if time.time() > deadline or console.poll() is not None:
                code = console.poll()
                end(console)
                output = (self.hosts.folder / "console.log").read_text()[-2000:]
                raise NotBegun(f"exit code {code}, {self.spawned} of {HOSTS} ranks: {output}")
            time.sleep(0.05)

    def read(self, console):
        for line in console.stdout:
            with contextlib.suppress(ValueError):
                output = json.loads(line)
                self.run = self.run or output["run"]
                self.spawned += output["kind"] == "rank" and output["state"] == "spawned"

    # What may happen. Commands may refuse; that is not a fault.

    def exclude(self, node):
        self.hosts.command("restart", self.run, "--exclude", node, "--yes", bound_s=30)

    def restart(self, _):
        self.hosts.command("restart", self.run, "--yes", bound_s=30)

    def restart_from_scratch(self, _):
        self.hosts.command("restart", self.run, "--from", "scratch", "--yes", bound_s=30)

    def restart_from_path(self, _):
        self.hosts.command("restart", self.run, "--from", "/mnt/saved.pt", "--yes", bound_s=30)

    def restart_stopped(self, _):
        """A run that has ended is started again."""
        self.hosts.command("stop", self.run, bound_s=STOP_BOUND_S)
        self.hosts.command("restart", self.run, "--yes", bound_s=30)

    def screen(self, *words):
        screen = Screen(self.hosts, *words)
        self.screens.append(screen)
        self.consoles.append(screen.process)
        return screen

    def restart_screen(self, _):
        """`r` on the run screen, from a terminal that is not read after the order."""
        self.ask("r")

    def restart_palette(self, _):
        self.ask(":restart\r")

    def restart_form(self, _):
        """`R` on the run screen: the checkpoint that it proposes, and no changed key."""
        if screen := self.run_screen():
            screen.send("R")
            if screen.until("restart with changes"):
                self.confirm(screen)

    def restart_hosts(self, _):
        """`H` on the run screen: the last host is excluded, or added again."""
        if screen := self.run_screen():
            screen.send("H")
            if screen.until("hosts of the next generation"):
                screen.send("G ")
                self.confirm(screen)

    @staticmethod
    def confirm(screen):
        screen.send("\r")
        if screen.until("restart the run?"):
            screen.send("y")

    def run_screen(self):
        """A run screen that shows the run; None where it does not."""
        screen = self.screen("attach", self.run)
        return screen if screen.until("adopted") else None

    def ask(self, keys):
        if screen := self.run_screen():
            screen.send(keys)
            if screen.until("restart the run?"):
                screen.send("s")

    def restart_line(self, _):
        """`restart` as it is typed in line mode."""
        screen = self.screen("attach", self.run, "--linear")
        # It is refused until every host has answered.
        for _ in range(SCREEN_BOUND_S // 3) if screen.until("(attached)") else ():
            screen.send("restart\n")
            if screen.until("type one of", 3):
                screen.send("scratch\n")
                return

    def restart_home(self, _):
        """`r` on the home screen."""
        screen = self.screen()
        if screen.until("● running"):
            screen.send("r")
            if screen.until("[y/N]"):
                screen.send("y\r")

    def deaf_terminal(self, _):
        """A run screen in a terminal that is not read."""
        if screen := self.run_screen():
            screen.fill()

    def deaf_restart(self, _):
        """A restart that is asked for in a terminal that is not read any more."""
        if screen := self.run_screen():
            screen.fill()
            screen.send("r")
            time.sleep(1)
            screen.send("s")

    def deaf_pipe(self, _):
        """A console whose output goes to a pipe that is not read."""
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.consoles.append(self.hosts.spawn("attach", self.run, "--json", "--logs", stdout=writer, stderr=subprocess.DEVNULL))
        os.close(writer)
        self.pipes.append(reader)

    def kill_console(self, _):
        for console in self.consoles:
            end(console)

    def attach(self, _):
        self.consoles.append(self.hosts.spawn("attach", self.run, "--headless", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def cut(self, node):
        self.hosts.call("fault", node, "link", "down", check=False)
        self.broken.add(node)

    def mend(self, _):
        for node in self.broken:
            self.hosts.call("fault", node, "clear", check=False)
        self.broken.clear()
        for node in self.forgotten:
            self.hosts.call("exec", node, "sh", "-c", "mv /home/tb/work/aside/* /home/tb/work/runs/", check=False)
        self.forgotten.clear()
        for node, pids in self.suspended.items():
            self.hosts.call("exec", node, "kill", "-CONT", *pids, check=False)
        self.suspended.clear()

    def forget(self, node):
        """A host's folder of the run is moved away, as `rm -r`, a wiped scratch disk or another `workdir` do it."""
        self.hosts.call("exec", node, "sh", "-c", f"mkdir -p /home/tb/work/aside && mv /home/tb/work/runs/{self.run} /home/tb/work/aside/", check=False)
        self.forgotten.add(node)

    def agents(self, node, verbs):
        look = f"pgrep -f 'agent ({verbs}) --run {self.run}( |$)'"
        return self.hosts.call("exec", node, "sh", "-c", look, check=False).stdout.split()

    def kill_agent(self, node):
        if pids := self.agents(node, "serve"):
            self.hosts.call("exec", node, "kill", "-9", *pids, check=False)

    def kill_agent_and_guard(self, node):
        if pids := self.agents(node, "serve|guard"):
            self.hosts.call("exec", node, "kill", "-9", *pids, check=False)

    def suspend_agent(self, node):
        if pids := self.agents(node, "serve"):
            self.hosts.call("exec", node, "kill", "-STOP", *pids, check=False)
            self.suspended[node] = pids

    def suspend_rank(self, node):
        if pids := self.hosts.left(self.run).get(node, []):
            self.hosts.call("exec", node, "kill", "-STOP", *pids, check=False)

    def lag(self, node):
        self.hosts.call("fault", node, "lag", "150", check=False)

    def loss(self, node):
        self.hosts.call("fault", node, "lag", "20", "5", "5", check=False)

    def kill_rank(self, node):
        pids = self.hosts.left(self.run).get(node, [])
        if pids:
            self.hosts.call("exec", node, "kill", "-9", *pids, check=False)

    def early_stop(self, _):
        """A stop that is cut short: its console dies after a while."""
        process = self.hosts.spawn("stop", self.run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self.random.uniform(0.3, 8))
        end(process)

    def whole_stop(self, _):
        self.hosts.command("stop", self.run, bound_s=STOP_BOUND_S)

    def wait(self, seconds):
        time.sleep(float(seconds) if self.given else self.random.uniform(0.2, 6))

    RESTARTS = [restart, restart_from_scratch, restart_from_path, restart_stopped, restart_screen, restart_form, restart_hosts, restart_palette,
                restart_line, restart_home, deaf_restart]

    OPS = [*RESTARTS, deaf_terminal, deaf_terminal, deaf_pipe, exclude, exclude, kill_console, kill_console, attach, cut, cut, mend, lag, lag, loss, kill_rank, kill_rank, early_stop, wait,
           kill_agent, kill_agent, kill_agent_and_guard, suspend_agent, suspend_rank, forget, forget]

    # Of these, the host does not matter.
    EVERYWHERE = {*RESTARTS, deaf_terminal, deaf_pipe, kill_console, attach, mend, early_stop, whole_stop, wait}

    def act(self):
        for op, words in self.given:
            self.done.append(" ".join([op.__name__, *words]))
            op(self, words[0] if words else None)
        if self.given:
            return
        for _ in range(self.random.randint(2, 5)):
            op, node = self.random.choice(self.OPS), f"node{self.random.randrange(HOSTS)}"
            self.done.append(op.__name__ + ("" if op in self.EVERYWHERE else f" {node}"))
            op(self, node)
        if self.random.random() < 0.3:
            self.done.append("mend")
            self.mend(None)

    def could_not_answer(self):
        """Hosts that cannot be asked, or have lost the run's folder, or whose agent is suspended."""
        return self.broken | self.forgotten | set(self.suspended)

    def stop(self):
        """Stops the run and compares the reported outcome with the hosts."""
        began = time.time()
        code, output = self.hosts.command("stop", self.run, bound_s=STOP_BOUND_S)
        took, left = time.time() - began, self.hosts.left(self.run)
        denied = "not verified" in output.lower()
        verified = code == 0 and "verified" in output and not denied
        # A console that had planned another generation would begin it now.
        until = time.time() + SETTLED_S
        while verified and not left and time.time() < until:
            left = self.hosts.left(self.run)
        if code is None:
            kind = "endless"
        elif verified:
            kind = "false" if left else "verified-true"
        elif not denied:
            kind = "false"
        else:
            kind = "not-verified-true" if left or self.could_not_answer() else "needless"
        return kind, took, left, output

    def close(self):
        for console in self.consoles:
            end(console)
        for screen in self.screens:
            screen.close()
        for pipe in self.pipes:
            os.close(pipe)
        self.hosts.clear()
        if self.run and self.hosts.left(self.run):
            self.hosts.command("stop", self.run, "--kill", bound_s=STOP_BOUND_S)
        # The next run begins on hosts without processes of this one.
        for node, pids in self.hosts.left(self.run or "").items():
            self.hosts.call("exec", node, "kill", "-9", *pids, check=False)


def operations(text):
    """What `--do` names: operations, each with its words."""
    known = {op.__name__: op for op in (*Sequence.OPS, Sequence.whole_stop)}
    hosts = {f"node{node}" for node in range(HOSTS)}
    given = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, *words = part.split()
        op = known.get(name)
        if op is None:
            raise argparse.ArgumentTypeError(f"no operation `{name}`; there are {', '.join(sorted(known))}")
        if op is Sequence.wait:
            fits = len(words) == 1 and words[0].replace(".", "", 1).isdigit()
        elif op in Sequence.EVERYWHERE:
            fits = not words
        else:
            fits = len(words) == 1 and words[0] in hosts
        if not fits:
            expected = "seconds" if op is Sequence.wait else "nothing" if op in Sequence.EVERYWHERE else "a host, node0 to node3,"
            raise argparse.ArgumentTypeError(f"`{part}`: `{name}` needs {expected} after it")
        given.append((op, words))
    return given


def play(hosts, seed, given):
    sequence = Sequence(hosts, seed, given)
    result = dict(seed=seed, first=None, second=None, could_ask=False)
    try:
        sequence.launch()
        sequence.act()
        result["could_ask"] = not sequence.could_not_answer()
        first, took, left, output = sequence.stop()
        result.update(first=first, took_s=round(took, 1), left=left, output=output)
        if first != "verified-true":
            sequence.mend(None)
            hosts.clear()
            second, took, left, output = sequence.stop()
            result.update(second=second, second_took_s=round(took, 1), second_left=left, second_output=output)
    except NotBegun as why:
        result.update(first="not begun", took_s=0, output=str(why))
    finally:
        result.update(did=sequence.done, program=sequence.program, loopback=sequence.loopback)
        sequence.close()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first sequence; the others follow it")
    parser.add_argument("--only", type=int, help="one sequence, by its seed")
    parser.add_argument("--do", type=operations, default=[], metavar="OPERATIONS", help="what is done in every sequence, instead of random things")
    parser.add_argument("--console", default=str(ROOT / "target/release/rankdeck"), help="rankdeck's binary")
    parser.add_argument("--json", help="a file for all results")
    args = parser.parse_args()
    console = pathlib.Path(args.console).resolve()
    if not console.is_file():
        sys.exit(f"chaos: there is no {console}; `cargo build --release --bin rankdeck`, or `--console PATH`")
    # Hosts and results are kept in order however it ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seeds = [args.only] if args.only is not None else range(args.seed, args.seed + args.sequences)
    folder = tempfile.mkdtemp(prefix="rdchaos")
    results = []
    try:
        # The bed ends with this process: TESTBED_OWNER.
        hosts = Hosts(folder, str(console))
        try:
            for seed in seeds:
                result = play(hosts, seed, args.do)
                results.append(result)
                then = f", then {result['second']} ({result['second_took_s']} s)" if result["second"] else ""
                print(f"seed {seed}: {result['first']} ({result['took_s']} s){then}: {setting(result)}: {', '.join(result['did'])}", flush=True)
                if is_bad(result) or result["first"] == "not begun" or result["could_ask"] and result["first"] != "verified-true":
                    print(json.dumps(result, indent=1), flush=True)
        finally:
            hosts.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(results, indent=1))
    for name in ("first", "second"):
        counts = collections.Counter(result[name] for result in results if result[name])
        print(f"{name} stop: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    sys.exit(any(is_bad(result) for result in results))


def setting(result):
    return result["program"] + (", 127.0.1.1" if result["loopback"] else "")


def is_bad(result):
    return result["first"] in ("false", "endless") or result["second"] not in (None, "verified-true")


if __name__ == "__main__":
    main()
