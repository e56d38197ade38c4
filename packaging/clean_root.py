#!/usr/bin/env python3
"""clean_root.py DIST [LIBTORCH] [--root ROOT]: installs each package of DIST on a separate, clean Debian and uses it.

debootstrap makes ROOT first unless it exists (bookworm with python3-venv and certificates, 275 MB, about a minute); each
package gets a copy. The .deb is installed by dpkg, the tarball unpacked, the wheel put by pip into a virtual environment.
With LIBTORCH, that environment gets its torch as `pip install torch` would put it there, and two ranks train CartPole until
their first evaluation and to the end. Prints a line for each command, with its seconds. Needs root, for chroot.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = "bookworm", "http://deb.debian.org/debian"
HOSTS = '[defaults]\ntransport = "local"\nworkdir = "/root/work"\n[[host]]\nname = "here"\nnproc = 2\n'
SIMULATED = "simulate --nnodes 1 --ranks 2 --iteration-ms 50 --steps 20480 --json"
# In separate namespaces: processes and mounts end with it.
INSIDE = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" && mount -t tmpfs tmp "$0/tmp" && exec chroot "$0" "$@"'


class Root:
    """A Debian in a folder."""

    def __init__(self, base, folder):
        subprocess.run(["cp", "-a", "--reflink=auto", base, folder], check=True)
        self.folder = folder

    def start(self, words):
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", INSIDE, str(self.folder), *words]
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, line):
        """Runs a line, prints its duration and returns its output."""
        started = time.monotonic()
        process = self.start(["sh", "-c", line])
        output, _ = process.communicate()
        print(f"  {time.monotonic() - started:6.1f} s  {line}", flush=True)
        if process.returncode:
            raise SystemExit(f"clean_root: {line}: status {process.returncode}\n{output}")
        return output


def works(root, console):
    """The console and the trainer's launcher, without a libtorch."""
    assert root.run(f"{console} --version").startswith("rankdeck ")
    assert '"outcome":"succeeded"' in root.run(f"{console} {SIMULATED}")
    assert "CartPole-v1: works" in root.run(f"{console}-trainer --check-env CartPole-v1")


def trained(root, console, experiment):
    """Seconds until the first evaluation and until the end of a run of two ranks."""
    (root.folder / "root/hosts.toml").write_text(HOSTS)
    (root.folder / "root/work").mkdir()
    line = f"cd /root && {console} run {experiment} --hosts hosts.toml --json"
    started, first, end = time.monotonic(), None, {}
    process = root.start(["sh", "-c", line])
    output = []
    for text in process.stdout:
        output.append(text)
        try:
            event = json.loads(text)
        except ValueError:
            continue
        if event["kind"] == "eval":
            first = first or time.monotonic() - started
        if event["kind"] == "run_finished":
            end = event
    if process.wait() or first is None:
        raise SystemExit(f"clean_root: {line}: status {process.returncode}\n" + "".join(output[-20:]))
    print(f"  {first:6.1f} s  until the first evaluation: {line}")
    print(f"  {time.monotonic() - started:6.1f} s  to its end: {end['outcome']}, {end['reason']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=pathlib.Path)
    parser.add_argument("libtorch", type=pathlib.Path, nargs="?")
    parser.add_argument("--root", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clean-root-") as work:
        work = pathlib.Path(work)
        base = options.root or work / "base"
        if not (base / "usr/bin").is_dir():
            started = time.monotonic()
            words = ["debootstrap", "--variant=minbase", "--include=python3-venv,ca-certificates", HERE[0], base, HERE[1]]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            print(f"  {time.monotonic() - started:6.1f} s  debootstrap", flush=True)

        print("deb")
        root = Root(base, work / "deb")
        deb, = options.dist.glob("rankdeck_*_amd64.deb")
        shutil.copy(deb, root.folder / "root/rankdeck.deb")
        root.run("dpkg -i /root/rankdeck.deb")
        works(root, "rankdeck")
        root.run("dpkg --purge rankdeck && ! command -v rankdeck")

        print("tarball")
        root = Root(base, work / "tarball")
        tarball, = options.dist.glob("rankdeck-*x86_64*.tar.gz")
        shutil.copy(tarball, root.folder / "root/rankdeck.tar.gz")
        root.run("tar -xzf /root/rankdeck.tar.gz -C /opt --strip-components=1 --no-same-owner")
        works(root, "/opt/bin/rankdeck")

        print("wheel")
        root = Root(base, work / "wheel")
        wheel, = options.dist.glob("rankdeck-*x86_64.whl")
        shutil.copy(wheel, root.folder / "root" / wheel.name)
        root.run("python3 -m venv /root/venv")
        root.run(f"/root/venv/bin/pip install --quiet --no-index --no-deps /root/{wheel.name}")
        works(root, "/root/venv/bin/rankdeck")
        if options.libtorch:
            packages, = (root.folder / "root/venv/lib").glob("python3*/site-packages")
            for part in ("torch", "torch-*.dist-info", "functorch", "torchgen", "nvidia"):
                for there in options.libtorch.parent.glob(part):
                    subprocess.run(["cp", "-a", "--reflink=auto", there, packages / there.name], check=True)
            trained(root, "/root/venv/bin/rankdeck", "/root/venv/share/doc/rankdeck/configs/cartpole_ppo.toml")
        root.run("/root/venv/bin/pip uninstall --quiet --yes rankdeck && [ ! -e /root/venv/bin/rankdeck ]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
