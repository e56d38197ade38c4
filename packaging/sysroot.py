#!/usr/bin/env python3
"""sysroot.py ARCH FOLDER: makes compilers whose programs run on every Linux since glibc 2.28; ARCH is x86_64 or aarch64.

FOLDER gets glibc's headers and link libraries of version 2.28, and `cc` and `c++` that use them: the system's GCC, whose C++
library libtorch shares. Newer glibc symbols cannot be linked. Zig carries these files for every version of glibc; it comes from
PyPI, pinned by its hash, and is removed afterwards. libstdc++ and libgcc are stubs of the system's own, limited to
manylinux_2_28. Newer symbols come from libstdc++.a, as in Red Hat's devtoolset.

Prints the environment that cargo needs. Does nothing if FOLDER is complete.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ZIG = "ziglang==0.17.1"
ZIG_HASHES = (
    "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",  # x86-64
    "b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e",  # aarch64
)
# What the policy of manylinux_2_28 allows: all of RHEL 8, Debian 10, Ubuntu 18.10 and newer have it.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0), "GOMP": (4, 5), "OMP": (4, 5)}
HEADERS = {
    "x86_64": ("any-linux-any", "x86-linux-any", "generic-glibc", "x86-linux-gnu"),
    "aarch64": ("any-linux-any", "aarch64-linux-any", "generic-glibc", "aarch64-linux-gnu"),
}
# By soname; the linker looks for the names without numbers.
LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libresolv.so.2", "libld.so.2")
SCRIPTS = {
    "libc.so": "GROUP ( libc.so.6 libc_nonshared.a AS_NEEDED ( libld.so.2 ) )",
    "libgcc_s.so": "GROUP ( libgcc_s.so.1 -lgcc )",
    "libgomp.so": "INPUT ( libgomp.so.1 )",
    "libstdc++.so": "INPUT ( libstdc++.so.6 libstdc++_newer.a )",
}


class Failure(Exception):
    pass


def is_old_enough(symbol_version):
    """Whether a version of a symbol, such as GLIBCXX_3.4.21, is within NEWEST."""
    family, _, number = symbol_version.rpartition("_")
    limit = NEWEST.get(family)
    return limit is None or not re.fullmatch(r"[\d.]+", number) or tuple(map(int, number.split("."))) <= limit


def run(*command, **more):
    try:
        return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **more).stdout
    except FileNotFoundError:
        raise Failure(f"{command[0]} is missing") from None
    except subprocess.CalledProcessError as error:
        raise Failure(f"{' '.join(map(str, command[:4]))} ... failed ({error.returncode})") from None


def prefix(arch):
    """What the names of GCC and binutils begin with."""
    return "" if arch == os.uname().machine else f"{arch}-linux-gnu-"


def tools(arch):
    """The prefix of the system's compilers for an architecture, which are there."""
    before = prefix(arch)
    for name in ("gcc", "g++", "readelf", "ar", "strip"):
        if shutil.which(before + name) is None:
            package = "-".join(["g++", before[:-1].replace("_", "-")]).rstrip("-")
            raise Failure(f"{before}{name} is missing (on Debian: apt-get install {package})")
    return before


def zig(folder):
    """The program of Zig, unpacked into a folder."""
    requirements = folder / "zig.txt"
    requirements.write_text(ZIG + "".join(f" \\\n  --hash=sha256:{digest}" for digest in ZIG_HASHES) + "\n")
    print(f"sysroot: fetching {ZIG} from PyPI (100 MB)", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-deps",
               "--no-compile", "--only-binary=:all:", "--require-hashes", "--target", str(folder / "zig"), "-r", str(requirements)]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        raise Failure(f"pip could not fetch {ZIG} (its error is above); it honours HTTPS_PROXY, PIP_INDEX_URL, PIP_FIND_LINKS and PIP_CERT")
    return folder / "zig/ziglang/zig"


def glibc(arch, before, program, work, out):
    """Headers, start files and link libraries of glibc, from Zig."""
    include = out / "usr/include"
    for name in HEADERS[arch]:
        shutil.copytree(program.parent / "lib/libc/include" / name, include, dirs_exist_ok=True)
    # libstdc++ would take it for a sign of glibc 2.32.
    (include / "sys/single_threaded.h").unlink()
    (work / "main.c").write_text("int main(void) { return 0; }\n")
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(work / "cache"), "ZIG_LOCAL_CACHE_DIR": str(work / "cache")}
    version = ".".join(map(str, NEWEST["GLIBC"]))
    # A program and a position independent one have different start files.
    for options in ((), ("-fPIE", "-pie")):
        run(program, "cc", "-target", f"{arch}-linux-gnu.{version}", "-O2", "-fno-sanitize=all", *options,
            "-o", work / "main", work / "main.c", env={**os.environ, **caches})
    for name in (*LIBRARIES, "libc_nonshared.a", "crt1.o", "Scrt1.o"):
        found = sorted((work / "cache").glob(f"o/*/{name}"))
        if len(found) != 1:
            raise Failure(f"{ZIG} made {len(found)} files named {name}, not one")
        shutil.copy(found[0], out / "usr/lib" / name)
        link = name.partition(".so")[0] + ".so"
        if ".so." in name and link not in SCRIPTS:
            (out / "usr/lib" / link).symlink_to(name)
    (out / "usr/lib/libc.so").write_text(SCRIPTS["libc.so"] + "\n")
    # Without the temporary folder's name, which debug information holds and a linker's build id is made of.
    archive, members = out / "usr/lib/libc_nonshared.a", work / "members"
    objects = [pathlib.Path(name) for name in run(before + "ar", "t", archive).split()]
    if len({one.name for one in objects}) != len(objects):
        raise Failure(f"{archive.name} has two members of one name")
    members.mkdir()
    for one in objects:
        shutil.copy(one, members / one.name)
    archive.unlink()
    named = [members / one.name for one in objects]
    for path in (*(out / "usr/lib" / name for name in (*LIBRARIES, "crt1.o", "Scrt1.o")), *named):
        run(before + "strip", "--strip-debug", path)
    run(before + "ar", "qcD", archive, *named)
    (work / "empty.c").write_text("")
    for name in ("crti.o", "crtn.o"):
        # GCC names them; nothing has used what is in them since `.init_array`.
        run(before + "gcc", "-c", "-o", out / "usr/lib" / name, work / "empty.c")


def symbols(readelf, library):
    """What a library offers within NEWEST, each at its newest version: name, version, type, size."""
    found = {}
    for line in run(readelf, "--wide", "--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit() or fields[6] in ("UND", "ABS") or "@" not in fields[7]:
            continue
        name, _, version = fields[7].replace("@@", "@").partition("@")
        numbers = tuple(map(int, re.findall(r"\d+", version)))
        if is_old_enough(version) and numbers >= found.get(name, ((), None))[0]:
            found[name] = (numbers, (name, version, fields[3], int(fields[2], 0)))
    return [symbol for _, (_, symbol) in sorted(found.items())]


def stub(before, name, work, out):
    """A library with the symbols of the system's, none newer than NEWEST."""
    library = run(before + "g++", f"-print-file-name={name}").strip()
    if not os.path.isabs(library):
        raise Failure(f"{before}g++ has no {name}")
    offered = symbols(before + "readelf", library)
    text = []
    for number, (symbol, version, kind, size) in enumerate(offered):
        section, kind, size = {
            "OBJECT": (".data", "STT_OBJECT", size),
            "TLS": ('.section .tbss,"awT"', "STT_TLS", size),
        }.get(kind, (".text", "STT_FUNC", 8))
        text += [section, ".balign 32" if kind == "STT_OBJECT" else ".balign 8", f".globl s{number}", f".type s{number}, {kind}",
                 f".size s{number}, {size}", f".symver s{number}, {symbol}@@{version}, remove", f"s{number}: .skip {max(size, 1)}"]
    source, script = work / f"{name}.s", work / f"{name}.map"
    source.write_text("\n".join([*text, '.section .note.GNU-stack,""', ""]))
    script.write_text("".join(f"{version} {{ }};\n" for version in sorted({version for _, version, _, _ in offered})))
    run(before + "gcc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script,{script}", "-o", out / name, source)


def gcc(before, work, out):
    """GCC's libraries: stubs that end at NEWEST, and behind them, to be linked statically, all that is newer."""
    for name in ("libgcc_s.so.1", "libstdc++.so.6", "libgomp.so.1"):
        stub(before, name, work, out)
    newer = out / "libstdc++_newer.a"
    shutil.copy(run(before + "g++", "-print-file-name=libstdc++.a").strip(), newer)
    # It asks glibc 2.32 whether there are threads; there may be.
    (work / "threads.c").write_text('__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;\n')
    run(before + "gcc", "-c", "-fPIC", "-o", work / "threads.o", work / "threads.c")
    run(before + "ar", "qD", newer, work / "threads.o")
    for name in ("libgcc_s.so", "libstdc++.so", "libgomp.so"):
        (out / name).write_text(SCRIPTS[name] + "\n")


def compilers(before, folder, out):
    """`cc` and `c++` that look nowhere else; $RANKDECK_REMAP has pairs of paths for what they say about files."""
    (out / "bin").mkdir()
    minor = NEWEST["GLIBC"][1]
    for name, real in (("cc", "gcc"), ("c++", "g++")):
        path = out / "bin" / name
        path.write_text(f'#!/bin/sh\nfor map in $RANKDECK_REMAP; do set -- "-ffile-prefix-map=$map" "$@"; done\n'
                        f'exec {before}{real} --sysroot={folder} -B{folder}/usr/lib -L{folder}/usr/lib -D__GLIBC_MINOR__={minor} "$@"\n')
        path.chmod(0o755)


def try_out(before, work, folder):
    """Some systems' GCC finds its own C++ headers below the system's root only."""
    (work / "try.cpp").write_text("#include <string>\n#include <thread>\n"
                                  "int main() { std::thread([] {}).join(); return std::string(1, 'a').size() != 1; }\n")
    run(folder / "bin/c++", "-std=c++17", "-pthread", "-o", work / "try", work / "try.cpp")
    versions = set(re.findall(r"@([A-Z]+_[\d.]+)", run(before + "readelf", "--wide", "--dyn-syms", work / "try").replace("@@", "@")))
    if newer := sorted(version for version in versions if not is_old_enough(version)):
        raise Failure(f"a program that was linked for {sorted(NEWEST.items())} needs {', '.join(newer)}")


def stamp(before):
    """What a sysroot depends on."""
    own = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    return f"{own} {run(before + 'g++', '--version').splitlines()[0]}\n"


def make(arch, folder):
    before = tools(arch)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as place:
        work, out = pathlib.Path(place), pathlib.Path(place, "out")
        (out / "usr/lib").mkdir(parents=True)
        glibc(arch, before, zig(work), work, out)
        gcc(before, work, out / "usr/lib")
        compilers(before, folder, out)
        shutil.rmtree(folder, ignore_errors=True)
        out.rename(folder)
        try_out(before, work, folder)
    (folder / "stamp").write_text(stamp(before))


def environment(arch, folder):
    target = f"{arch}-unknown-linux-gnu"
    under = target.replace("-", "_")
    before = tools(arch)
    return {
        f"CARGO_TARGET_{under.upper()}_LINKER": f"{folder}/bin/cc",
        f"CC_{under}": f"{folder}/bin/cc",
        f"CXX_{under}": f"{folder}/bin/c++",
        f"AR_{under}": f"{before}ar",
    }


def main(arch, folder):
    folder = pathlib.Path(folder).absolute()
    if arch not in HEADERS:
        raise Failure(f"no such architecture: {arch} (there are {' and '.join(HEADERS)})")
    if re.search(r"\s", str(folder)):
        raise Failure(f"the folder's name has a space in it: {folder}")
    made = folder / "stamp"
    if not made.is_file() or made.read_text() != stamp(tools(arch)):
        make(arch, folder)
    print(" ".join(f"{name}={value}" for name, value in environment(arch, folder).items()))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except Failure as failure:
        sys.exit(f"sysroot: {failure}")
