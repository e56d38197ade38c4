"""One real run under the console: its lines, its processes, its end."""
import json, os, pathlib, re, select, signal, subprocess, time

STRIKES = re.compile(r"inject: (\S+) strikes .* at ([0-9.]+)")
ITERATION = re.compile(r"^iteration (\d+)")


class Run:
    """A headless console and the ranks below it. `lines` holds its JSON lines as (time read, object)."""

    def __init__(self, argv, folder, experiment, hosts, environment=None, more=()):
        self.argv, self.folder = argv, pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "experiment.toml").write_text(experiment)
        (self.folder / "hosts.toml").write_text(hosts)
        self.lines, self.buffer = [], b""
        self.errors = open(self.folder / "stderr", "wb")
        self.process = subprocess.Popen(
            [*argv, "run", str(self.folder / "experiment.toml"), "--hosts", str(self.folder / "hosts.toml"), "--headless", "--json", *more],
            cwd=self.folder, env=dict(os.environ, **(environment or {})), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors)
        os.set_blocking(self.process.stdout.fileno(), False)

    def read(self, seconds=0.05):
        """Reads for at most this time; False when the console has ended and everything is read."""
        select.select([self.process.stdout], [], [], seconds)
        chunk = self.process.stdout.read()
        if chunk == b"":
            time.sleep(0.01)
            return self.process.poll() is None
        now = time.time()
        self.buffer += chunk or b""
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            try:
                self.lines.append((now, json.loads(line)))
            except json.JSONDecodeError:
                continue
        return True

    def wait(self, fits, seconds, start=0):
        """The first line that fits, as (time, object), from line `start` on; None when none comes in time."""
        deadline, at = time.time() + seconds, start
        while True:
            while at < len(self.lines):
                if fits(self.lines[at][1]):
                    return self.lines[at]
                at += 1
            if time.time() > deadline or not self.read(min(0.1, max(0.0, deadline - time.time()))):
                if at >= len(self.lines):
                    return None

    def wait_iteration(self, step, seconds=90):
        """True once iteration `step` was reported: by the trainer's progress, or by a line of rank 0."""
        def reached(event):
            if event["kind"] == "progress":
                return event["train_iter"] >= step
            found = event["kind"] == "log" and event.get("rank") == 0 and ITERATION.match(event.get("line", ""))
            return bool(found) and int(found[1]) >= step
        return self.wait(reached, seconds) is not None

    def pass_time(self, seconds, over=None):
        """Continues to read for this time, or until the event `over`; False when the console ended before."""
        deadline = time.time() + seconds
        while time.time() < deadline and not (over and over.is_set()):
            if not self.read(min(0.1, max(0.0, deadline - time.time()))):
                return False
        return True

    def verdicts(self, severity=None):
        return [(at, event) for at, event in self.lines if event["kind"] == "verdict" and severity in (None, event["severity"])]

    def pid(self, rank, seconds=30):
        """Process id of a rank, on its own host."""
        found = self.wait(lambda event: event["kind"] == "rank" and event["rank"] == rank and event.get("pid"), seconds)
        return found and found[1]["pid"]

    def pids(self):
        return {event["rank"]: event["pid"] for _, event in self.lines if event["kind"] == "rank" and event.get("pid")}

    def end(self):
        return next((event for _, event in reversed(self.lines) if event["kind"] == "run_finished"), None)

    def run_dir(self):
        found = next((event for _, event in self.lines if event["kind"] == "run_started"), None)
        return found and pathlib.Path(found["run_dir"])

    def finish(self, polite=30):
        """Stops it: asked politely, then hard; gives back `run_finished`, or None."""
        if self.process.stdout.closed:
            return self.end()
        for _ in range(3):
            if self.process.poll() is None and self.end() is None:
                self.signal(signal.SIGINT)
            if self.wait(lambda event: event["kind"] == "run_finished", polite) or self.process.poll() is not None:
                break
        deadline = time.time() + 10
        while self.read() and time.time() < deadline:
            pass
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        return self.end()

    def signal(self, number):
        """To the console; the script that makes hosts passes none on, and the console is its child."""
        below = children(self.process.pid) if len(self.argv) > 1 else []
        for pid in below or [self.process.pid]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def strike(self):
        """When a rank reported its fault: in the lines, or in its log file if it died at once."""
        texts = [event.get("line", "") for _, event in self.lines if event["kind"] == "log"]
        texts += [log.read_text(errors="replace") for log in self.folder.glob("**/gen*/rank*.log")]
        for text in texts:
            found = STRIKES.search(text)
            if found:
                return float(found[2])
        return None

    def leftovers(self):
        """Processes of this machine that still carry a mark of this run."""
        event = next((event for _, event in self.lines if event.get("run")), None)
        if not event:
            return []
        mark, left = f"RANKDECK_RUN={event['run']}".encode(), []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    left.append(int(entry.name))
            except OSError:
                continue
        return left


def children(pid):
    """Direct children of a process."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # A name may be cut within a character.
                words = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if int(words[1]) == pid:
                found.append(int(entry.name))
    return found
