#!/usr/bin/env python3
"""Puts libtorch 2.11.0 into a folder, from the wheels that PyTorch and NVIDIA publish on PyPI.

    fetch_libtorch.py FOLDER            FOLDER/torch and FOLDER/nvidia; does nothing when they are complete
    fetch_libtorch.py FOLDER aarch64    the same for another architecture, to build for it here
    fetch_libtorch.py --installed       prints the folder of an installed torch 2.11, for machines with GPUs

The trainer uses the libraries and headers only, so one wheel serves any Python, and no Python is needed afterwards. The
tests also import it, where they find the Python that it was made for. The small set is enough to build, and to run on CPUs; on a machine with GPUs use a complete torch (`--installed`), which brings cuDNN, NCCL and the rest.

The stamp is written last, and the folder appears by one rename: what is there is complete. Wheels are checked against the hashes below,
and every unpacked file against the RECORD of its wheel.
"""

import base64
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

TORCH = "2.11.0"
PYTHON = "311"
REQUIREMENTS = [f"torch=={TORCH}", "nvidia-cuda-cupti==13.0.85", "nvidia-cuda-runtime==13.0.96"]
GLIBCS = ["manylinux_2_28", "manylinux_2_25", "manylinux_2_17", "manylinux2014"]
SHA256 = {
    "x86_64": {
        f"torch-{TORCH}-cp311-cp311-manylinux_2_28_x86_64.whl":
            "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
        "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl":
            "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
        "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl":
            "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    },
    "aarch64": {
        f"torch-{TORCH}-cp311-cp311-manylinux_2_28_aarch64.whl":
            "d91aac77f24082809d2c5a93f52a5f085032740a1ebc9252a7b052ef5a4fddc6",
        "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl":
            "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55",
        "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_aarch64.whl":
            "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151",
    },
}
# Of the torch wheel: compilers. The other program in that folder has to be there for `import torch`.
DROPPED = ("torch/bin/protoc",)
GIB = 1 << 30
NEEDED_BYTES = int(1.8 * GIB)
STAMP = "stamp.json"


class Failure(Exception):
    """What failed, and what helps."""

    def __init__(self, error, hint):
        super().__init__(error)
        self.hint = hint


def log(text):
    print(f"libtorch: {text}", file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest


def record_hash(digest):
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")


def parse_record(text):
    """Path to hash, of a wheel's RECORD; lines end in `,sha256=...,SIZE`."""
    entries = {}
    for line in text.splitlines():
        path, _, rest = line.rpartition(",sha256=")
        if path:
            entries[path.strip('"')] = "sha256=" + rest.split(",")[0]
    return entries


def content(arch):
    """The stamp. It lacks the architecture for x86_64, once the only one."""
    return {"libtorch": TORCH, "format": 3, "requirements": REQUIREMENTS} | ({} if arch == "x86_64" else {"arch": arch})


def is_ready(folder, arch):
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return stamp == content(arch) and (folder / "torch/lib/libtorch_cpu.so").is_file()


def adopt(folder, arch):
    """Stamps a folder that was unpacked by other means, when its libraries and modules are what the wheel recorded."""
    record = folder / f"torch-{TORCH}.dist-info/RECORD"
    if not (record.is_file() and (folder / "torch/include/torch").is_dir() and (folder / "nvidia").is_dir()):
        return False
    log(f"checking the libraries and modules that are in {folder}")
    expected = {path: value for path, value in parse_record(record.read_text()).items()
              if path.startswith("torch/") and not path.startswith(DROPPED) and (".so" in path or path.endswith(".py") or path.startswith("torch/bin/"))}
    for path, value in expected.items():
        file = folder / path
        if not file.is_file() or record_hash(sha256(file)) != value:
            log(f"{file} is missing or differs")
            return False
    write_stamp(folder, arch)
    return True


def write_stamp(folder, arch):
    partial = folder / (STAMP + ".partial")
    partial.write_text(json.dumps(content(arch)) + "\n")
    partial.rename(folder / STAMP)


def check_machine(folder, arch):
    if platform.system() != "Linux" or arch not in SHA256:
        raise Failure(f"there is no such libtorch for {platform.system()} on {arch}",
                      "there are some for x86-64 and aarch64 Linux; the console alone needs none: cargo build --release")
    libc, version = platform.libc_ver()
    if libc == "glibc" and tuple(int(part) for part in version.split(".")[:2]) < (2, 28):
        raise Failure(f"this system's glibc {version} is older than 2.28", "use a newer system or container")
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        raise Failure(f"{folder.parent} has {free / GIB:.1f} GiB free, {NEEDED_BYTES / GIB:.1f} GiB are needed",
                      "free some space, or set LIBTORCH_DIR to a folder on another disk")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        raise Failure(f"{sys.executable} has no pip", "apt-get install python3-pip, or python3 -m ensurepip --user")


def download(wheels, arch):
    """The wheels, by pip, so that the user's proxies, mirrors and certificates hold."""
    wheels.mkdir(parents=True, exist_ok=True)
    hashes = SHA256[arch]
    found = [path for path in wheels.glob("*.whl") if path.name in hashes]
    if len(found) == len(hashes) and all(sha256(path).hexdigest() == hashes[path.name] for path in found):
        log("the wheels are here already")
        return
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries", "5",
               "--disable-pip-version-check", "--no-cache-dir", "--dest", str(wheels)]
    tags = [item for name in GLIBCS for item in ("--platform", f"{name}_{arch}")]
    exact = ["--implementation", "cp", "--python-version", PYTHON, "--abi", f"cp{PYTHON}", "--abi", "none", *tags]
    log("downloading 544 MB: " + ", ".join(REQUIREMENTS))
    # A mirror may carry only the wheels of the Python in use; those hold the same libraries.
    for tags_of in (exact, []) if arch == platform.machine() else (exact,):
        if subprocess.run([*command, *tags_of, *REQUIREMENTS], stdout=sys.stderr).returncode == 0:
            return
        log("no wheels that way" + (", trying those of this Python" if tags_of else ""))
    names = ", ".join(hashes)
    raise Failure("pip could not download the wheels (its error is above)",
                  "is this machine online? pip honours HTTPS_PROXY, PIP_INDEX_URL and PIP_CERT; without a network, copy\n"
                  f"{names}\ninto {wheels} and run this again")


def unpack(wheel, tree):
    """The kept files of one wheel, each checked against its RECORD while it is written."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record_name = next((name for name in names if name.endswith(".dist-info/RECORD")), None)
        if record_name is None:
            raise Failure(f"{wheel.name} has no RECORD", f"remove {wheel} and run this again")
        record = parse_record(archive.read(record_name).decode())
        kept = [name for name in names if not name.endswith("/") and not name.startswith(DROPPED)]
        total = sum(archive.getinfo(name).file_size for name in kept)
        done, shown = 0, 0
        for name in kept:
            target = tree / name
            if not target.resolve().is_relative_to(tree.resolve()):
                raise Failure(f"{wheel.name} holds the path {name}", "this is not a wheel of PyTorch; remove it")
            target.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with archive.open(name) as source, open(target, "wb") as file:
                while block := source.read(1 << 20):
                    digest.update(block)
                    file.write(block)
                    done += len(block)
                    if done - shown >= 256 << 20:
                        shown = done
                        log(f"unpacking {wheel.name.split('-')[0]}: {done >> 20} of {total >> 20} MiB")
            if name != record_name and record.get(name) != record_hash(digest):
                raise Failure(f"{name} in {wheel.name} does not match its RECORD", f"remove {wheel} and run this again")


def fetch(folder, arch):
    check_machine(folder, arch)
    partial = folder.parent / (folder.name + ".partial")
    wheels, tree = partial / "wheels", partial / "tree"
    download(wheels, arch)
    names = {requirement.split("==")[0].replace("-", "_") for requirement in REQUIREMENTS}
    found = {path.name.split("-")[0]: path for path in wheels.glob("*.whl")}
    if missing := names - found.keys():
        raise Failure(f"no wheel of {', '.join(sorted(missing))} in {wheels}", "run this again")
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in sorted(names):
        wheel = found[name]
        expected = SHA256[arch].get(wheel.name)
        if expected is None:
            log(f"{wheel.name} is of another Python: checked by its RECORD only")
        elif sha256(wheel).hexdigest() != expected:
            raise Failure(f"{wheel.name} is damaged", f"remove {wheel} and run this again")
        unpack(wheel, tree)
    write_stamp(tree, arch)
    if folder.exists():
        folder.rename(partial / "old")
    tree.rename(folder)
    shutil.rmtree(partial, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    log(f"{TORCH} is ready in {folder} ({size >> 20} MiB)")


def installed():
    """Folder of the torch that this Python would import."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        raise Failure(f"{sys.executable} has no torch", f"pip install torch=={TORCH}, or set LIBTORCH") from None
    if torch.version.split("+")[0] != TORCH:
        raise Failure(f"{sys.executable} has torch {torch.version}, not {TORCH}",
                      f"pip install torch=={TORCH}, or set LIBTORCH to one")
    print(torch.locate_file("torch"))


def main(arguments):
    if arguments == ["--installed"]:
        return installed()
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        raise Failure("expected one folder", "such as: fetch_libtorch.py .libtorch")
    folder = Path(arguments[0]).absolute()
    arch = arguments[1] if len(arguments) == 2 else {"AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    if is_ready(folder, arch):
        return log(f"{TORCH} is ready in {folder}")
    if folder.is_symlink() and not folder.exists():
        raise Failure(f"{folder} is a link to nothing", f"remove it: rm {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / (folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_ready(folder, arch) or adopt(folder, arch):
            return log(f"{TORCH} is ready in {folder}")
        if folder.is_symlink():
            raise Failure(f"{folder} is a link to a folder without a complete libtorch {TORCH}", f"remove it: rm {folder}")
        return fetch(folder, arch)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failure as failure:
        log(f"error: {failure}")
        for line in failure.hint.splitlines():
            log(f"  hint: {line}")
        sys.exit(1)
    except (OSError, zipfile.BadZipFile) as error:
        log(f"error: {error}")
        log("  hint: check free space and permissions; run it again, what is complete is kept")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
