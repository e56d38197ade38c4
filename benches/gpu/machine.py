"""The machine as the stages see it: programs, folders, time left, the result so far."""

import concurrent.futures
import contextlib
import glob
import json
import lzma
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

KIT = pathlib.Path(__file__).resolve().parent


def stage(seconds):
    """How long a stage takes where nothing is shortened."""
    def keep(function):
        function.seconds = seconds
        return function
    return keep


# A run does not outlive this program, however that ends.
LEASE = """[launch]
on_disconnect = "stop"
lease_s = 5
"""
CARTPOLE = """[run]
name = "{name}"
seed = 1
total_steps = {steps}
{lease}[distributed]
backend = "{backend}"
timeout_s = {timeout}
[env]
id = "CartPole-v1"
num_envs = 4
[policy]
kernel = "{kernel}"
{policy}
[collect]
num_steps = 128
[learn]
algorithm = "ppo"
[eval]
every = 0
[watch]
check_collectives = {check}
"""
PONG = """[run]
name = "{name}"
seed = 1
total_steps = {steps}
{lease}[env]
id = "PongNoFrameskip-v4"
num_envs = {envs}
worker = "python"
python = "{python}"
{threads}
[policy]
network = "nature"
hidden = [{hidden}]
{policy}
[collect]
{collect}
[learn]
algorithm = "ppo"
clip_coef = 0.1
anneal_lr = false
[eval]
every = 0
"""
# One update for each step, as CleanRL's sac_continuous_action.py.
SAC = """[run]
name = "{name}"
seed = 1
total_steps = 100000000
{lease}[env]
id = "Pendulum-v1"
num_envs = 1
[policy]
hidden = [256, 256]
{policy}
[collect]
num_steps = 1
[learn]
algorithm = "sac"
learning_starts = 500
buffer_size = 100000
[eval]
every = 0
"""
# One update for four steps, as CleanRL's dqn_atari.py.
DQN = """[run]
name = "{name}"
seed = 1
total_steps = 100000000
{lease}[env]
id = "PongNoFrameskip-v4"
num_envs = 1
worker = "python"
python = "{python}"
[policy]
network = "nature"
hidden = [{hidden}]
{policy}
[collect]
num_steps = 4
[learn]
algorithm = "dqn"
learning_starts = 500
buffer_size = 10000
batch_size = 32
[eval]
every = 0
"""


class Stopped(BaseException):
    """By a signal."""


def end(child):
    """A process not yet waited for, and its group, at once."""
    if child.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)


def interrupt(console):
    """As a user at a terminal: each further interrupt is a harder stop. A console that is killed leaves its agents
    behind."""
    for _ in range(3):
        if console.poll() is not None:
            return
        console.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            console.wait(15)
    console.kill()
    console.wait()


class Machine:
    def __init__(self, options):
        self.options, self.begun = options, time.monotonic()
        # How each process that was started is ended.
        self.children = {}
        # The signal by which all this is to end.
        self.stop_signal = None
        self.thread = threading.local()
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpukit-"))
        for folder in ("home", "run", "work"):
            (self.work / folder).mkdir(mode=0o700)
        options.out.mkdir(parents=True, exist_ok=True)
        self.result = self.earlier()

    def prepare(self):
        """Unpacks the kit. It can be stopped in the middle of that."""
        options = self.options
        programs = options.programs or self.work
        if not options.programs:
            with tarfile.open(fileobj=lzma.open(KIT / "programs.tar.xz")) as packed:
                packed.extractall(self.work)
        self.console, self.trainer = programs / "rankdeck", programs / "rankdeck-trainer"
        self.torch = options.torch or self.output(
            [sys.executable, "-c", "import os, torch; print(os.path.dirname(torch.__file__))"], os.environ, 120
        )["out"].strip()
        wheels = glob.glob(str(KIT / "wheels/*.whl"))
        if wheels:
            site = str(self.work / "site")
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", site]
            self.output(install + wheels, os.environ, 120)
        library = ":".join(filter(None, [self.torch + "/lib", os.environ.get("LD_LIBRARY_PATH")]))
        self.env = dict(
            os.environ,
            HOME=str(self.work / "home"),
            XDG_RUNTIME_DIR=str(self.work / "run"),
            PYTHONPATH=":".join(filter(None, [str(self.work / "site"), os.environ.get("PYTHONPATH")])),
            PYTHONUNBUFFERED="1",
            LIBTORCH=self.torch,
            NO_COLOR="1",
        )
        self.rank_env = dict(self.env, LD_LIBRARY_PATH=library)

    def earlier(self):
        """What stages that are not repeated have found."""
        try:
            result = json.loads((self.options.out / "result.json").read_text())
            return result if isinstance(result["stages"], dict) else {"stages": {}}
        except (OSError, ValueError, KeyError, TypeError):
            return {"stages": {}}

    def save(self):
        self.result["seconds"] = round(time.monotonic() - self.begun, 1)
        new = self.options.out / "result.json.new"
        new.write_text(json.dumps(self.result, indent=1, default=str))
        new.rename(self.options.out / "result.json")

    def left(self):
        return self.options.budget - (time.monotonic() - self.begun)

    def close(self):
        self.abandon()
        deadline = time.monotonic() + 20
        while (left := self.own()) and time.monotonic() < deadline:
            self.kill(left)
            time.sleep(0.02)
        self.save()
        shutil.rmtree(self.work, ignore_errors=True)

    def own(self):
        """Processes of all that was started here, by their environment."""
        return [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/environ") if self.is_own(path)]

    def is_own(self, environ):
        try:
            return os.fsencode(self.work) in pathlib.Path(environ).read_bytes()
        except OSError:
            return False

    def kill(self, pids):
        """Those that are still of this kit: a pid may be reused by now."""
        for pid in pids:
            if self.is_own(f"/proc/{pid}/environ"):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self, number, _):
        """A signal. Only the first one is acted on, since all that follows is the end."""
        if self.stop_signal is None:
            self.stop_signal = number
            self.obey()

    def obey(self):
        if self.stop_signal is not None and not getattr(self.thread, "starts", False):
            # Other threads wait for what they have started.
            self.abandon()
            raise Stopped(self.stop_signal)

    def begin(self, command, ending=end, **options):
        """A process in a session of its own. A signal that comes while it starts is acted on as soon as it is known
        here: nothing else would."""
        self.thread.starts = True
        try:
            child = subprocess.Popen(command, start_new_session=True, cwd=self.work, **options)
            self.children[child] = ending
        finally:
            self.thread.starts = False
            self.obey()
        return child

    def forget(self, child):
        self.children.pop(child, None)

    def output(self, command, env=None, limit=25):
        """Exit code and output of a short program; a string goes through a shell."""
        limit = max(1, min(limit * self.patience(), self.left()))
        try:
            child = self.begin(
                command, shell=isinstance(command, str), env=env or self.env,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )
        except OSError as error:
            return {"code": str(error), "out": ""}
        try:
            out, code = child.communicate(timeout=limit)[0], child.returncode
        except subprocess.TimeoutExpired:
            end(child)
            out, code = child.communicate()[0], f"none within {limit:.0f} s"
        finally:
            self.forget(child)
        return {"code": code, "out": out[-6000:]}

    def abandon(self):
        """Ends everything that was started here."""
        for child, ending in list(self.children.items()):
            ending(child)

    def experiment(self, text, name, **values):
        path = self.work / f"{name}.toml"
        path.write_text(text.format(name=name, python=sys.executable, lease=LEASE, **values))
        return path

    def cartpole(self, name, steps, backend="auto", timeout=60, kernel="auto", check="false", policy=""):
        values = {"backend": backend, "timeout": timeout, "kernel": kernel, "check": check, "policy": policy}
        return self.experiment(CARTPOLE, name, steps=steps, **values)

    def share(self, count):
        """A count of something that takes time; small in a rehearsal."""
        return max(1, int(count * min(1, self.options.quick)))

    def patience(self):
        """A rehearsal is on a machine that does other things, too."""
        return 1 if self.options.quick >= 1 else 4

    def steps(self):
        """Of a rollout."""
        return max(8, int(128 * min(1, self.options.quick)))

    def envs(self, count):
        """Even, for halves. Emulators take seconds to start: a rehearsal has few."""
        return 2 * self.share(count / 2)

    def hidden(self):
        """Width of the layer behind the convolutions: CleanRL's, or one whose weights are drawn at once."""
        return 512 if self.options.quick >= 1 else 32

    def pong(self, name, steps, envs=8, threads=0, policy="", collect=""):
        collect = f"num_steps = {self.steps()}\n{collect}"
        threads = f"worker_threads = {threads}" if threads else ""
        sizes = {"steps": steps, "envs": self.envs(envs), "threads": threads, "hidden": self.hidden()}
        return self.experiment(PONG, name, policy=policy, collect=collect, **sizes)

    def sac(self, name, policy):
        return self.experiment(SAC, name, policy=policy)

    def dqn(self, name, policy):
        return self.experiment(DQN, name, policy=policy, hidden=self.hidden())

    def ranks(self, command, count, limit=60):
        """Exit codes and outputs of as many ranks of a program of torch's, on one GPU."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        given = {"WORLD_SIZE": str(count), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        # NCCL takes ranks that share a GPU for two by mistake, unless they are on hosts of their own.
        given["KIT_STEPS"] = str(self.steps())
        env = [dict(self.env, **given, RANK=str(rank), NCCL_HOSTID=f"kit-{rank}") for rank in range(count)]
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda env: self.output(command, env, limit), env))

    def hosts(self, ranks):
        path = self.work / f"hosts{ranks}.toml"
        path.write_text(
            f'[[host]]\nname = "gpu"\ntransport = "local"\ngpus = [0]\nnproc = {ranks}\n'
            f'workdir = "{self.work}/work"\nlibtorch = "{self.torch}"\n'
        )
        return path

    def train(self, experiment, ranks=1, env=None, limit=60):
        """A run without a console, to its end; its folder is `folder`."""
        folder = tempfile.mkdtemp(prefix="run-", dir=self.work)
        group = [] if ranks == 1 else ["--spawn", str(ranks)]
        begun = time.monotonic()
        done = self.output([str(self.trainer), "--config", str(experiment), "--run-dir", folder, *group], env or self.rank_env, limit)
        return dict(done, seconds=round(time.monotonic() - begun, 2), folder=folder)

    def start(self, experiment, ranks, env=None):
        return Run(self, experiment, self.hosts(ranks), env or self.env)


class Run:
    """`rankdeck run --headless --json`: its lines, with the time of their arrival."""

    def __init__(self, machine, experiment, hosts, env):
        self.machine, self.lines, self.pids = machine, [], {}
        command = [str(machine.console), "run", str(experiment), "--hosts", str(hosts), "--headless", "--json"]
        self.errors = open(machine.options.out / "rankdeck.err", "a")
        self.process = machine.begin(
            command, interrupt, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env,
        )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                line = json.loads(line)
            except ValueError:
                continue
            line["arrived"] = time.monotonic()
            if line.get("kind") == "rank" and line.get("pid"):
                self.pids[line["rank"]] = line["pid"]
            self.lines.append(line)

    def of(self, kind):
        return [line for line in list(self.lines) if line.get("kind") == kind]

    def wait(self, holds, seconds):
        deadline = time.monotonic() + min(seconds, max(self.machine.left() - 5, 1))
        while time.monotonic() < deadline:
            if holds():
                return True
            if self.process.poll() is not None:
                time.sleep(0.3)
                return bool(holds())
            time.sleep(0.05)
        return False

    def steps_per_second(self, leave_out):
        progress = self.of("progress")[leave_out:]
        if len(progress) < 2:
            return None
        first, last = progress[0], progress[-1]
        return round((last["env_step"] - first["env_step"]) / (last["time"] - first["time"]), 1)

    def summary(self):
        joined = [line.get("detail") for line in self.of("rank") if line.get("state") == "joined"]
        progress, finished = self.of("progress"), self.of("run_finished")
        return {
            "joined": joined,
            "iterations": progress[-1]["train_iter"] if progress else 0,
            "consistent": all(line.get("consistent", True) for line in progress),
            "finished": finished[-1] if finished else None,
            "complaints": [line["line"] for line in self.of("log") if "rror" in line["line"] or "WARN" in line["line"]][-8:],
        }

    def verdicts(self, since):
        keys = ("rank", "verdict", "reason_code", "reason", "latency_s", "evidence")
        return [
            {key: line.get(key) for key in keys} | {"after_s": round(line["arrived"] - since, 2)} for line in self.of("verdict")
        ]

    def stop(self):
        interrupt(self.process)
        self.machine.forget(self.process)
        self.machine.kill(self.pids.values())
        self.errors.close()
