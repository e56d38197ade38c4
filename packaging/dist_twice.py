#!/usr/bin/env python3
"""dist_twice.py [PROGRAM...]: is the same commit the same bytes? Builds the packages from two checkouts and compares them.

Both checkouts are clones of HEAD in folders of different names and lengths, and each build begins with nothing compiled. They
use one DIST_TARGET, as all builders do, because OpenSSL keeps the path that it is built in. With PROGRAM (rankdeck,
rankdeck-launcher, rankdeck-trainer) only these are built and compared, and no packages are made. Prints a hash a line, and
ends with 1 where two differ; packages that are the same are left in dist/, ready to be tried and released. `make dist-twice`
calls this with DIST_ARCH, DIST_TARGET, DIST_TRIPLE and DIST_LIBTORCH.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ("rankdeck", "rankdeck-launcher", "rankdeck-trainer")


def hashes(folder, files):
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}


def build(checkout, target, triple, programs):
    """The hashes of what a fresh build of HEAD in `checkout` makes."""
    # The compilers in sysroot-* stay.
    for built in (triple, "release"):
        shutil.rmtree(target / built, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    arguments = [f"{name}={os.environ[name]}" for name in ("DIST_ARCH", "DIST_LIBTORCH") if os.environ.get(name)]
    arguments.append(f"DIST_TARGET={target}")
    if programs:
        arguments.append("DIST_PROGRAMS=" + " ".join(f"-p {program}" for program in programs))
    # An outer make's own flags and variables are not for these two.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")}
    what = "dist-programs" if programs else "dist-only"
    done = subprocess.run(["make", "--no-print-directory", "-C", checkout, what, *arguments], env=environment)
    if done.returncode:
        sys.exit(f"dist-twice: `make {what}` in {checkout} ended with {done.returncode}\n  hint: try `make dist` first")
    found = hashes(target / triple / "release", programs or PROGRAMS)
    packages = checkout / "dist"
    if not programs:
        found |= hashes(packages, sorted(path.name for path in packages.iterdir()))
    return found


def main(programs):
    unknown = [program for program in programs if program not in PROGRAMS]
    if unknown:
        sys.exit(f"dist-twice: no program is called {unknown[0]}\n  hint: one or more of {', '.join(PROGRAMS)}")
    missing = [name for name in ("DIST_TARGET", "DIST_TRIPLE") if not os.environ.get(name)]
    if missing:
        sys.exit(f"dist-twice: {missing[0]} is not set\n  hint: `make dist-twice` sets it")
    target, triple = pathlib.Path(os.environ["DIST_TARGET"]).absolute(), os.environ["DIST_TRIPLE"]
    with tempfile.TemporaryDirectory(prefix="rankdeck-twice-") as folder:
        checkouts = [pathlib.Path(folder, name) for name in ("a", "another-folder")]
        first, second = (build(checkout, target, triple, programs) for checkout in checkouts)
        if not programs and first == second:
            shutil.copytree(checkouts[0] / "dist", ROOT / "dist", dirs_exist_ok=True)
    differ = [name for name in sorted(first | second) if first.get(name) != second.get(name)]
    for name in sorted(first | second):
        words = f"DIFFERS {second.get(name, 'missing')}" if name in differ else "the same"
        print(f"{first.get(name, 'missing')}  {name}  {words}")
    if differ:
        sys.exit(f"dist-twice: {len(differ)} of {len(first | second)} differ: {', '.join(differ)}")
    print(f"dist-twice: {len(first)} files are the same, byte by byte")


if __name__ == "__main__":
    main(sys.argv[1:])
