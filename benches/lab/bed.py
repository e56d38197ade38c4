"""Hosts with a network between them, for what goes wrong there: those of tests/testbed, each with its own SSH server.

Without root, the cases are listed as not made.
"""
import json, os, pathlib, shutil, subprocess, time

from .outside import Missing

FIRST = "10.77.0.10"
SCRIPT = str(pathlib.Path(__file__).resolve().parents[2] / "tests/testbed/testbed")


def missing():
    """Why no hosts with a network between them can be made here; empty where they can."""
    if os.geteuid():
        return "network namespaces need root"
    absent = [program for program in ("nft", "sshd", "ip") if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]
    return f"not installed: {', '.join(absent)} (Debian's packages: nftables, openssh-server, iproute2)" if absent else ""


class Bed:
    """Two hosts; gone with `close`."""

    def __init__(self, folder):
        if why := missing():
            raise Missing(why)
        self.script = SCRIPT
        self.folder = pathlib.Path(folder)
        self.environment = dict(os.environ, TESTBED_DIR=str(self.folder / "bed"), TESTBED_MODE="root", TESTBED_OWNER=str(os.getpid()),
                                TESTBED_WORK_SIZE="600m")
        self.folder.mkdir(parents=True, exist_ok=True)
        up = self.call("up", "2", check=False)
        if up.returncode or "(root)" not in up.stdout:
            raise Missing(f"no namespaces here: {up.stderr.strip()}")
        config = (self.folder / "bed/client/config").read_text()
        # With BatchMode, Debian's ssh waits for half an hour before it takes a silent host for gone
        # (ServerAliveInterval 300).
        changed = config.replace("Host node*", "Host node* 10.77.0.*").replace("BatchMode yes", "BatchMode no")
        (self.folder / "config").write_text(changed)

    def call(self, *words, check=True):
        return subprocess.run([self.script, *words], env=self.environment, text=True, capture_output=True, check=check)

    def close(self):
        self.call("down", check=False)

    def clear(self):
        for node in range(2):
            self.call("fault", f"node{node}", "clear", check=False)
            self.call("exec", f"node{node}", "nft", "table inet lab { }; delete table inet lab", check=False)
            self.call("fault", f"node{node}", "sshd", "start", check=False)

    def console(self, console):
        """Words that start the console inside the bed."""
        return [self.script, "exec", "console", console]

    def variables(self):
        return dict(TESTBED_DIR=str(self.folder / "bed"), TESTBED_MODE="root", RANKDECK_SSH_CONFIG=str(self.folder / "config"))

    def hosts(self, nproc):
        libtorch = os.environ.get("LIBTORCH", "")
        more = f"libtorch = {json.dumps(libtorch)}\n" if libtorch else ""
        return f'[defaults]\nworkdir = "work"\nuser = "tb"\n{more}' + "".join(
            f'[[host]]\nname = "node{i}"\naddress = "10.77.0.{10 + i}"\nnproc = {n}\n' for i, n in enumerate(nproc))

    # Each fault takes (run, undo) and gives back when it struck. Ranks are cut from each other, not from the
    # console, where it says so.

    def _rules(self, undo, *chains):
        rules = "table inet lab {\n" + "".join(
            f"chain {way} {{ type filter hook {way} priority 0; {words} drop; }}\n" for way, words in chains) + "}"
        undo.callback(self.call, "exec", "node1", "nft", "table inet lab { }; delete table inet lab", check=False)
        self.call("exec", "node1", "nft", rules)
        return time.time()

    def drop_both(self, run, undo):
        """Between the hosts of the ranks, both ways."""
        return self._rules(undo, ("input", f"ip saddr {FIRST}"), ("output", f"ip daddr {FIRST}"))

    def drop_one_way(self, run, undo):
        """What node0 sends to node1."""
        return self._rules(undo, ("input", f"ip saddr {FIRST}"))

    def drop_output(self, run, undo):
        """What node1 sends to node0, by a rule of its own: nothing leaves it."""
        return self._rules(undo, ("output", f"ip daddr {FIRST}"))

    def link_down(self, run, undo):
        """The whole host, console included."""
        undo.callback(self.call, "fault", "node1", "link", "up", check=False)
        self.call("fault", "node1", "link", "down")
        return time.time()

    def freeze(self, run, undo):
        undo.callback(self.call, "fault", "node1", "thaw", check=False)
        self.call("fault", "node1", "freeze")
        return time.time()

    def short_loss(self, run, undo):
        """One second without any packet between the hosts (N9)."""
        self._rules(undo, ("input", f"ip saddr {FIRST}"), ("output", f"ip daddr {FIRST}"))
        run.pass_time(1.0)
        self.call("exec", "node1", "nft", "delete table inet lab", check=False)
        return None

    def lost_session(self, run, undo):
        """The console's SSH session ends, and it may come back at once (N10)."""
        self.call("fault", "node1", "drop-sessions")
        return None

    def sshd_gone(self, run, undo):
        """The console cannot come back for ten seconds; the ranks keep running (P27): no rank is the culprit."""
        undo.callback(self.call, "fault", "node1", "sshd", "start", check=False)
        self.call("fault", "node1", "sshd", "kill")
        self.call("fault", "node1", "drop-sessions")
        run.pass_time(10)
        self.call("fault", "node1", "sshd", "start")
        return None
