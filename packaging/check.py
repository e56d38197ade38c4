#!/usr/bin/env python3
"""check.py ARCH DIST [LIBTORCH] [--released]: checks the packages of one architecture in DIST.

Tarball, wheel and .deb hold the same programs, which need no newer glibc than the wheel's name promises, and run: natively, or
in qemu for another architecture. With LIBTORCH (of that architecture), the trainer trains CartPole for 8,192 steps and prints
the hash of its weights, which is the same on every processor. With `--released`, programs that dist.py rejects are rejected.
"""

import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

sys.dont_write_bytecode = True
import dist  # noqa: E402, in this folder

EXPERIMENT = """[run]
name = "check"
total_steps = 8192
[env]
id = "CartPole-v1"
num_envs = 8
[collect]
num_steps = 64
[learn]
algorithm = "ppo"
"""
SIMULATED = ("simulate", "--nnodes", "1", "--ranks", "2", "--iteration-ms", "50", "--steps", "20480", "--json")


class Broken(Exception):
    pass


def only(folder, pattern):
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Broken(f"{folder} has {len(found)} files {pattern}, not one")
    return found[0]


def in_tar(data):
    """Path to bytes, of each file in an archive."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {os.path.normpath(member.name): tar.extractfile(member).read() for member in tar if member.isfile()}


def in_deb(data):
    """The same of the files of a .deb, which is an `ar`."""
    at = 8
    while at < len(data):
        name, size = data[at:at + 16].decode().strip(), int(data[at + 48:at + 58])
        if name.startswith("data.tar"):
            return in_tar(data[at + 60:at + 60 + size])
        at += 60 + size + size % 2
    raise Broken("the .deb has no files")


def programs(folder, arch):
    """The programs, which are the same in each package, and the glibc that the wheel's name asks for."""
    debian = dict(dist.MACHINES.values())[arch]
    name = f"rankdeck-{dist.version()}"
    tarball, package = only(folder, f"{name}-{arch}-linux.tar.gz"), only(folder, f"rankdeck_{dist.version()}_{debian}.deb")
    wheel = only(folder, f"{name}-py3-none-manylinux_*_{arch}.whl")
    of_tarball, of_deb = in_tar(tarball.read_bytes()), in_deb(package.read_bytes())
    with zipfile.ZipFile(wheel) as packed:
        of_wheel = {path: packed.read(path) for path in packed.namelist()}
    found = {}
    for path in dist.PROGRAMS:
        found[path] = of_tarball.get(f"{name}/{path}")
        if found[path] is None:
            raise Broken(f"{tarball.name} has no {path}")
        for other, has in ((package, of_deb.get(f"usr/{path}")), (wheel, of_wheel.get(f"{name}.data/{dist.scheme(path)}"))):
            if has != found[path]:
                raise Broken(f"{path} in {other.name} is not that in {tarball.name}")
    floor = tuple(map(int, wheel.name.split("manylinux_")[1].split("_")[:2]))
    report(f"tarball, wheel and .deb hold the same {len(found)} programs: {tarball.stat().st_size / 1e6:.1f} MB packed")
    return found, floor


def report(text):
    print(f"  {text}", flush=True)


def call(by, command, expected, **environment):
    """Runs a program, which must succeed and print what is expected."""
    started = time.monotonic()
    done = subprocess.run([str(word) for word in [*by, *command]], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": environment.pop("HOME", "/tmp"), **environment})
    output = done.stdout + done.stderr
    words = " ".join(pathlib.Path(word).name if word.startswith("/") else word for word in map(str, command))
    if done.returncode != 0 or expected not in output:
        raise Broken(f"`{words}` ended with exit code {done.returncode} and not with {expected!r}:\n{output[-2000:]}")
    report(f"{time.monotonic() - started:4.1f} s  {words}")


def try_out(prefix, arch, libtorch, home):
    """Runs the programs below a prefix."""
    by = dist.runner(arch)
    console, launcher = prefix / "bin/rankdeck", prefix / "bin/rankdeck-trainer"
    report(f"they run by {by[0] if by else 'themselves'}:")
    call(by, [console, "--version"], f"rankdeck {dist.version()}", HOME=home)
    call(by, [console, "--help"], "Exit codes:", HOME=home)
    call(by, [console, *SIMULATED], '"outcome":"succeeded"', HOME=home)
    call(by, [launcher, "--help"], "--setup-env", HOME=home)
    call(by, [launcher, "--check-env", "CartPole-v1"], "CartPole-v1: works", HOME=home)
    if libtorch is None:
        return
    (prefix / "experiment.toml").write_text(EXPERIMENT)
    # A program that starts another one leaves qemu: there, the trainer is started as agents do it.
    trainer = prefix / "libexec/rankdeck/rankdeck-trainer" if by else launcher
    folders = [libtorch / "lib", *sorted(libtorch.parent.glob("nvidia/*/lib"))]
    call(by, [trainer, "--config", prefix / "experiment.toml", "--run-dir", prefix / "run"], "all steps are done", HOME=home,
         LIBTORCH=str(libtorch), LD_LIBRARY_PATH=":".join(map(str, folders)))
    weights = hashlib.sha256((prefix / "run/checkpoints/latest.safetensors").read_bytes()).hexdigest()
    report(f"the weights after 8,192 steps: sha256 {weights}")


def main(arch, folder, libtorch=None, is_released=False):
    print(f"packages for {arch} in {folder}:", flush=True)
    found, floor = programs(pathlib.Path(folder), arch)
    if (needed := dist.glibc(found.values())) > floor:
        raise Broken(f"the programs need glibc {'.'.join(map(str, needed))}, but the wheel's name promises {'.'.join(map(str, floor))}")
    for reason in dist.refused(found) if is_released else ():
        raise Broken(reason)
    report(f"they need glibc {'.'.join(map(str, needed))}" + (" and contain no path of this machine" if is_released else ""))
    with tempfile.TemporaryDirectory(prefix="rankdeck-check-") as place:
        prefix = pathlib.Path(place, "prefix")
        for path, content in found.items():
            (prefix / path).parent.mkdir(parents=True, exist_ok=True)
            (prefix / path).write_bytes(content)
            (prefix / path).chmod(0o755)
        try_out(prefix, arch, libtorch and pathlib.Path(libtorch).resolve(), place)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--released"]
    if len(words) not in (2, 3) or words[0] not in dict(dist.MACHINES.values()):
        sys.exit(__doc__)
    try:
        main(*words, is_released="--released" in sys.argv)
    except Broken as broken:
        sys.exit(f"check: {broken}")
