"""What is run: experiments and hosts files as text."""
import json, os, pathlib, shlex, subprocess, sys

HERE = pathlib.Path(__file__).resolve().parent
# Scripts for torchrun: the file, and what it imports. With `-plain` behind the name it runs without the hook,
# with `-wrapped` below a shell.
SCRIPTS = {
    "script": ("script.py", "torch"),
    "plain": ("script.py", "torch"),
    "replicas": ("replicas.py", "torch"),
    "cleanrl": ("people/cleanrl.py", "torch, gymnasium, tensorboard"),
    "sb3": ("people/sb3.py", "torch, stable_baselines3"),
    "loader": ("people/loader.py", "torch"),
    "spawned": ("people/spawned.py", "torch"),
    "lightning": ("people/lightning.py", "torch, pytorch_lightning"),
    "other": ("people/other.py", "torch, gymnasium, ale_py"),
}
# Milliseconds of every environment step of the built-in trainer, as an emulator or a physics engine takes: a
# run then leaves most of the machine to others.
PACE = 8

PPO = """[env]
id = "CartPole-v1"
num_envs = {envs}
{worker}
[collect]
num_steps = 16
[learn]
algorithm = "ppo"
"""
PPG = """[env]
id = "CartPole-v1"
num_envs = {envs}
[collect]
num_steps = 16
[policy]
hidden = [100]
[learn]
algorithm = "ppg"
policy_iterations = 4
num_minibatches = 1
aux_epochs = 2
aux_num_minibatches = 4
"""


def python():
    """The interpreter that has PyTorch and Gymnasium."""
    return os.environ.get("RANKDECK_TEST_PYTHON") or os.environ.get("RANKDECK_PYTHON") or sys.executable


def script(program):
    """File, imports and whether the hook is used; None for the built-in trainer."""
    bare = program.removesuffix("-plain").removesuffix("-wrapped")
    return SCRIPTS[bare] + (not program.endswith("plain"),) if bare in SCRIPTS else None


def missing(program):
    """Why a program cannot run here; empty when it can."""
    found = script(program)
    if program.startswith("other") and not pathlib.Path(os.environ.get("LAB_SCRIPT", "")).is_file():
        return "LAB_SCRIPT names no file"
    if found and subprocess.run([python(), "-c", f"import {found[1]}"], capture_output=True).returncode:
        return f"{python()} cannot import {found[1]}"
    return ""


def experiment(name, program, ranks, settings, environment):
    """The experiment as TOML; `environment` goes to the ranks."""
    settings = dict(dict(total_steps=500_000_000, timeout_s=600, eval_every=20, checkpoint_every=10), **settings)
    found = script(program)
    if not found:
        faults = [environment.get("TRAINER_INJECT", ""), f"pace={PACE}@all:0"]
        environment = {**environment, "TRAINER_INJECT": ",".join(filter(None, faults))}
    table = "".join(f"{key} = {json.dumps(str(value))}\n" for key, value in environment.items())
    if found:
        file, _, hooked = found
        if program.startswith("other"):
            passed = [name for name in ("LAB_SCRIPT", "LAB_ARGS", "LAB_PATH") if name in os.environ]
            table += "".join(f"{name} = {json.dumps(os.environ[name])}\n" for name in passed)
        words = [python(), "-u", str(HERE / file)]
        if program.endswith("-wrapped"):
            # The shell waits for the program, as `uv run`, `conda run` and containers do.
            words = ["bash", "-c", f"{shlex.join(words)}; exit $?"]
        command, hook = json.dumps(words), str(hooked).lower()
        return (f'[run]\nname = "{name}"\n[launch]\ncommand = {command}\nstop_grace_s = 2\n[launch.env]\n{table}'
                f"[watch]\npython_hook = {hook}\n")
    worker = f'worker = "python"\npython = {json.dumps(python())}' if program == "worker" else ""
    body = (PPG if program == "ppg" else PPO).format(envs=ranks, worker=worker)
    return (f'[run]\nname = "{name}"\nseed = 1\ntotal_steps = {settings["total_steps"]}\n{body}'
            f'[launch.env]\n{table}[distributed]\ntimeout_s = {settings["timeout_s"]}\n'
            f'[eval]\nevery = {settings["eval_every"]}\nepisodes = 20\n[checkpoint]\nevery = {settings["checkpoint_every"]}\n')


def hosts(nproc, prelude=""):
    """Local hosts, each with this number of ranks."""
    more = f"prelude = {json.dumps(prelude)}\n" if prelude else ""
    return "".join(f'[[host]]\nname = "node{i}"\ntransport = "local"\nnproc = {n}\nworkdir = "n{i}"\n{more}' for i, n in enumerate(nproc))
