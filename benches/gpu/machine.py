"""The machine as the stages see it: programs, folders, time left, the result so far."""

import glob
import json
import lzma
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

KIT = pathlib.Path(__file__).resolve().parent

CARTPOLE = """[run]
name = "{name}"
seed = 1
total_steps = {steps}
[distributed]
backend = "{backend}"
timeout_s = {timeout}
[env]
id = "CartPole-v1"
num_envs = 4
[policy]
kernel = "{kernel}"
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
[env]
id = "PongNoFrameskip-v4"
num_envs = {envs}
worker = "python"
python = "{python}"
{threads}
[policy]
network = "nature"
hidden = [512]
[collect]
num_steps = 128
[learn]
algorithm = "ppo"
clip_coef = 0.1
anneal_lr = false
[eval]
every = 0
"""


class Machine:
    def __init__(self, options):
        self.options, self.begun = options, time.monotonic()
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpukit-"))
        for folder in ("home", "run", "work"):
            (self.work / folder).mkdir(mode=0o700)
        options.out.mkdir(parents=True, exist_ok=True)
        self.result = {"stages": {}}
        with tarfile.open(fileobj=lzma.open(KIT / "programs.tar.xz")) as packed:
            packed.extractall(self.work)
        self.console, self.trainer = self.work / "rankdeck", self.work / "rankdeck-trainer"
        self.torch = options.torch or self.said(
            [sys.executable, "-c", "import os, torch; print(os.path.dirname(torch.__file__))"], os.environ, 120
        )["out"].strip()
        wheels = glob.glob(str(KIT / "wheels/*.whl"))
        if wheels:
            site = str(self.work / "site")
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", site]
            subprocess.run(install + wheels, check=False)
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

    def save(self):
        self.result["seconds"] = round(time.monotonic() - self.begun, 1)
        new = self.options.out / "result.json.new"
        new.write_text(json.dumps(self.result, indent=1, default=str))
        new.rename(self.options.out / "result.json")

    def left(self):
        return self.options.budget - (time.monotonic() - self.begun)

    def close(self):
        self.save()
        shutil.rmtree(self.work, ignore_errors=True)

    def said(self, command, env=None, limit=25):
        """Exit code and output of a short program; a string goes through a shell."""
        limit = max(1, min(limit, self.left()))
        try:
            done = subprocess.run(
                command, shell=isinstance(command, str), env=env or self.env, cwd=self.work, timeout=limit,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )
            return {"code": done.returncode, "out": done.stdout[-6000:]}
        except subprocess.TimeoutExpired as error:
            return {"code": f"none within {limit:.0f} s", "out": (error.stdout or b"")[-3000:].decode(errors="replace")}
        except OSError as error:
            return {"code": str(error), "out": ""}

    def cartpole(self, name, steps, backend="auto", timeout=60, kernel="auto", check="false"):
        path = self.work / f"{name}.toml"
        path.write_text(CARTPOLE.format(name=name, steps=steps, backend=backend, timeout=timeout, kernel=kernel, check=check))
        return path

    def pong(self, name, steps, envs=8, threads=0):
        path = self.work / f"{name}.toml"
        threads = f"worker_threads = {threads}" if threads else ""
        path.write_text(PONG.format(name=name, steps=steps, envs=envs, python=sys.executable, threads=threads))
        return path

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
        done = self.said([str(self.trainer), "--config", str(experiment), "--run-dir", folder, *group], env or self.rank_env, limit)
        return dict(done, seconds=round(time.monotonic() - begun, 2), folder=folder)

    def start(self, experiment, ranks, env=None):
        return Run(self, experiment, self.hosts(ranks), env or self.env)


class Run:
    """`rankdeck run --headless --json`: its lines, with the time of their arrival."""

    def __init__(self, machine, experiment, hosts, env):
        self.machine, self.lines, self.pids = machine, [], {}
        command = [str(machine.console), "run", str(experiment), "--hosts", str(hosts), "--headless", "--json"]
        self.errors = open(machine.options.out / "rankdeck.err", "a")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=env,
            cwd=machine.work, start_new_session=True,
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

    def steps_per_second(self, leave_out=3):
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
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for pid in self.pids.values():
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
        self.errors.close()
