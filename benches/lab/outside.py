"""Faults that come from outside of the program. Each takes (run, rank, chance, undo), strikes, and gives back when; what it changed is put
back by `undo`, a `contextlib.ExitStack`, before the run is stopped."""
import fcntl, os, pathlib, signal, subprocess, sys, tempfile, time

from .run import children

LOCKED = pathlib.Path(tempfile.gettempdir()) / f"rdlab-{os.getpid()}.lock"
V1 = pathlib.Path("/sys/fs/cgroup")


class Missing(Exception):
    """This machine cannot do it."""


def kill(run, rank, chance, undo):
    os.kill(run.pid(rank), signal.SIGKILL)
    return time.time()


def stop(run, rank, chance, undo):
    pid = run.pid(rank)
    os.kill(pid, signal.SIGSTOP)
    undo.callback(_again, pid)
    return time.time()


def stop_program(run, rank, chance, undo):
    """The program below the shell that the rank is."""
    child = _worker(run, rank)
    os.kill(child, signal.SIGSTOP)
    undo.callback(_again, child)
    return time.time()


def _again(pid):
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def short_stops(run, rank, chance, undo):
    """Half a second, three times (N8)."""
    for _ in range(3):
        pid = run.pid(chance.randrange(4))
        os.kill(pid, signal.SIGSTOP)
        try:
            run.pass_time(0.5)
        finally:
            _again(pid)
        run.pass_time(2 + chance.random())
    return None


def _worker(run, rank):
    deadline = time.time() + 20
    while time.time() < deadline:
        for child in children(run.pid(rank)):
            words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
            if b"python" in words or b"script.py" in words:
                return child
        run.pass_time(0.1)
    raise Missing(f"rank {rank} has no worker process")


def stop_worker(run, rank, chance, undo):
    child = _worker(run, rank)
    os.kill(child, signal.SIGSTOP)
    undo.callback(_again, child)
    return time.time()


def kill_worker(run, rank, chance, undo):
    os.kill(_worker(run, rank), signal.SIGKILL)
    return time.time()


def _group(controller, undo, name):
    base = V1 / controller
    if not (base / "cgroup.procs").exists():
        raise Missing(f"no cgroup hierarchy at {base}")
    folder = base / f"rdlab-{os.getpid()}-{name}"
    folder.mkdir()
    undo.callback(_remove, folder)
    return folder


def _remove(folder):
    deadline = time.time() + 5
    while time.time() < deadline:
        for pid in (folder / "cgroup.procs").read_text().split():
            try:
                (folder.parent / "cgroup.procs").write_text(pid)
            except OSError:
                pass
        try:
            return folder.rmdir()
        except OSError:
            time.sleep(0.05)


def freezer_v1(run, rank, chance, undo):
    folder = _group("freezer", undo, f"f{rank}-{chance.randrange(1 << 30)}")
    (folder / "cgroup.procs").write_text(str(run.pid(rank)))
    (folder / "freezer.state").write_text("FROZEN")
    undo.callback((folder / "freezer.state").write_text, "THAWED")
    return time.time()


def freezer_v2(run, rank, chance, undo):
    """A group below the one that the rank is in already."""
    mount = next((line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines() if line.split()[2] == "cgroup2"), None)
    pid = run.pid(rank)
    own = next((line[3:] for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    if mount is None or own is None:
        raise Missing("no cgroup v2")
    folder = pathlib.Path(mount) / own.lstrip("/") / f"rdlab-{chance.randrange(1 << 30)}"
    try:
        folder.mkdir()
        undo.callback(_remove, folder)
        (folder / "cgroup.procs").write_text(str(pid))
        (folder / "cgroup.freeze").write_text("1")
    except OSError as error:
        raise Missing(f"cgroup v2 is not writable: {error}")
    undo.callback((folder / "cgroup.freeze").write_text, "0")
    return time.time()


def memory_limit(run, rank, chance, undo):
    """A limit of 600 MiB around the rank; the rank itself then takes more (`oom`)."""
    folder = _group("memory", undo, f"m{rank}-{chance.randrange(1 << 30)}")
    (folder / "memory.limit_in_bytes").write_text(str(600 << 20))
    # Nothing is to be moved: what it takes from now on counts.
    (folder / "cgroup.procs").write_text(str(run.pid(rank)))
    return None


def quota(run, rank, chance, undo):
    """One percent of a core, the least that the kernel lets one ask for in periods of 100 ms."""
    folder = _group("cpu", undo, f"q{rank}-{chance.randrange(1 << 30)}")
    (folder / "cpu.cfs_period_us").write_text("100000")
    (folder / "cpu.cfs_quota_us").write_text("1000")
    (folder / "cgroup.procs").write_text(str(run.pid(rank)))
    return time.time()


def frozen_disk(run, rank, chance, undo):
    """A file system of its own below the checkpoints, frozen (fsfreeze): the next write sleeps uninterruptibly."""
    if not run.wait(lambda event: event["kind"] == "run_started", 60):
        raise Missing("the run did not begin")
    target = run.run_dir() / "checkpoints"
    deadline = time.time() + 30
    while not target.is_dir() and time.time() < deadline:
        run.pass_time(0.1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rdlabfs"))
    undo.callback(folder.rmdir)
    image = folder / "image"
    undo.callback(image.unlink, missing_ok=True)
    for command in (["truncate", "-s", "64M", str(image)], ["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(target)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"{command[0]}: {done.stderr.strip()}")
    undo.callback(subprocess.run, ["umount", "-l", str(target)], capture_output=True)
    # At once, while the file system is empty: its first checkpoint meets it.
    subprocess.run(["fsfreeze", "-f", str(target)], check=True)
    undo.callback(subprocess.run, ["fsfreeze", "-u", str(target)], capture_output=True)
    # The wait begins when the rank is there.
    pid, deadline = run.pid(rank), time.time() + 30
    while time.time() < deadline:
        states = [task.read_text(errors="replace").rsplit(")", 1)[1].split()[0] for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
        if "D" in states and states[0] == "D":
            return time.time()
        run.read(0.02)
    raise Missing("no checkpoint came")


def busy_machine(run, rank, chance, undo):
    """Four processes that want all cores for 15 s (N7)."""
    # They end with this process, however it ends.
    busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    spin = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(4)]
    try:
        run.pass_time(15)
    finally:
        for process in spin:
            process.kill()
            process.wait()
    return None


def held_lock(run, rank, chance, undo):
    """Another process holds the lock of a file that all ranks are about to want."""
    file = undo.enter_context(open(LOCKED, "w"))
    fcntl.flock(file, fcntl.LOCK_EX)
    struck = run.wait(lambda event: event["kind"] == "log" and "strikes" in event.get("line", ""), 60)
    if not struck:
        raise Missing("no rank came to the lock")
    return struck[0]


def restart(run, rank, chance, undo):
    """The user restarts the run: another generation begins (N12)."""
    name = next(event["run"] for _, event in run.lines if event.get("run"))
    asked = [*run.argv, "restart", name, "--yes", "--hosts", str(run.folder / "hosts.toml")]
    answer = subprocess.run(asked, cwd=run.folder, capture_output=True, text=True, timeout=60)
    if not run.wait(lambda event: event["kind"] == "run_started" and event["generation"] > 0, 30):
        raise Missing(f"no second generation began: {answer.stderr.strip()}")
    return None
