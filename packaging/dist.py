#!/usr/bin/env python3
"""dist.py BINARIES OUT [--released]: makes a tarball, a wheel and a .deb of the console and the trainer, and their checksums.

BINARIES is a folder with `rankdeck`, `rankdeck-trainer` and `rankdeck-launcher`. The launcher, which needs no libtorch, is
installed as `bin/rankdeck-trainer`, and the trainer that it starts as `libexec/rankdeck/rankdeck-trainer`. The same binaries
give the same bytes: names are sorted, owners and times are fixed (SOURCE_DATE_EPOCH, or the time of the commit). The packages
require the glibc that the binaries need. `--released` rejects binaries that need a newer system than sysroot.py targets, or
that contain paths of this machine.

Not cargo-deb and maturin: three programs of three crates, one of them renamed, would have to be staged for both as here, the
tarball, licenses and checks would stay, and a build without a network would need two more tools. They replace 50 lines.
"""

import base64
import gzip
import hashlib
import html
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

sys.dont_write_bytecode = True
import sysroot  # noqa: E402, in this folder

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = {
    "bin/rankdeck": "rankdeck",
    "bin/rankdeck-trainer": "rankdeck-launcher",
    "libexec/rankdeck/rankdeck-trainer": "rankdeck-trainer",
}
SHELLS = {
    "bash": "share/bash-completion/completions/rankdeck",
    "zsh": "share/zsh/site-functions/_rankdeck",
    "fish": "share/fish/vendor_completions.d/rankdeck.fish",
}
# Installed below share/doc/rankdeck with their folders, so that links between them work.
DOCUMENTS = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE-MIT", "LICENSE-APACHE",
    "docs/*.md", "docs/design/*.md", "docs/screen.svg", "configs/*.toml", "examples/python/*.[tp]*",
)
NOTICE = re.compile(r"(licen[cs]e|copying|notice|unlicense)", re.I)
# Tests are in a hurry.
LEVEL = int(os.environ.get("RANKDECK_DIST_LEVEL", "9"))
SUMMARY = "A terminal console for multi-node PyTorch training, built for reinforcement learning"
# By the machine's number in ELF: the name that Linux and wheels have for it, and Debian's.
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}


def output_of(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **more).stdout


def version():
    return re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


def requirement():
    """The torch whose libraries the trainer is built for, as pip takes it."""
    text = (ROOT / "src/proto/libtorch.rs").read_text()
    return re.search(r'REQUIREMENT: &str = "(.*)"', text).group(1)


def date():
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        try:
            given = output_of("git", "-C", str(ROOT), "log", "-1", "--format=%ct", stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            given = 315532800  # 1980, the earliest that a zip file has
    return max(int(given), 315532800)


def versions(text):
    """The versions of symbols that a program needs, such as GLIBC_2.28, from the names that its loader has to find."""
    families = "|".join(sysroot.NEWEST).encode()
    return {name.decode() for name in re.findall(rb"\0((?:%s)_\d[\d.]*)(?=\0)" % families, text)}


def glibc(programs):
    """The newest glibc that the programs need."""
    found = [tuple(map(int, name[6:].split(".")[:2])) for text in programs for name in versions(text) if name.startswith("GLIBC_")]
    return max(found, default=(2, 17))


def machine(program):
    """The machine that a program is for, as Linux and as Debian call it."""
    text = program.read_bytes()[:20]
    if not text.startswith(b"\x7fELF"):
        return MACHINES[62]
    number = int.from_bytes(text[18:20], "little")
    if number not in MACHINES:
        sys.exit(f"dist: {program} is for a machine that has no package (number {number})")
    return MACHINES[number]


def runner(arch):
    """What runs programs for an architecture here."""
    if arch == os.uname().machine:
        return []
    for name in (f"qemu-{arch}-static", f"qemu-{arch}"):
        if shutil.which(name):
            return [name, "-L", f"/usr/{arch}-linux-gnu"]
    sys.exit(f"dist: no qemu to run programs for {arch} with (on Debian: apt-get install qemu-user-static)")


def refused(programs):
    """Why these must not be released."""
    places = {str(place).encode() + b"/" for place in (ROOT, pathlib.Path.home())}
    for name, text in programs.items():
        if newer := sorted(version for version in versions(text) if not sysroot.is_old_enough(version)):
            yield f"{name} needs {', '.join(newer)}, which glibc {'.'.join(map(str, sysroot.NEWEST['GLIBC']))} and its time do not have"
        for place in sorted(place for place in places if place in text):
            yield f"{name} contains the path {place.decode()}"


def stripped(path, arch):
    """A program without what only a debugger reads; its symbols stay, for stacks."""
    text = path.read_bytes()
    if not text.startswith(b"\x7fELF"):
        return text
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder, path.name)
        try:
            subprocess.run([sysroot.prefix(arch) + "strip", "--strip-debug", "-o", str(made), str(path)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"dist: {path.name} is not stripped: {error}", file=sys.stderr)
            return text
        return made.read_bytes()


def licences(arch):
    """The licence texts of every crate that is linked, and of the C libraries inside some of them."""
    data = json.loads(output_of("cargo", "metadata", "--format-version", "1", "--locked", "--offline",
                           "--filter-platform", f"{arch}-unknown-linux-gnu", cwd=ROOT))
    packages = {package["id"]: package for package in data["packages"]}
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    open_ids = [id for id, package in packages.items() if package["name"] in PROGRAMS.values()]
    linked = set(open_ids)
    while open_ids:
        for dependency in nodes[open_ids.pop()]["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            # Sources of C libraries are build dependencies.
            if (None in kinds or packages[dependency["pkg"]]["name"].endswith("-src")) and dependency["pkg"] not in linked:
                linked.add(dependency["pkg"])
                open_ids.append(dependency["pkg"])
    text = ["Parts of rankdeck that others have written, with their licences.\n"]
    for package in sorted((packages[id] for id in linked), key=lambda package: (package["name"], package["version"])):
        if package["source"] is None:
            continue
        text.append(f"\n{'=' * 80}\n{package['name']} {package['version']}: {package['license'] or 'see below'}\n")
        folder = pathlib.Path(package["manifest_path"]).parent
        files = [path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth)]
        for path in sorted(path for path in files if path.is_file() and NOTICE.match(path.name) and path.suffix in ("", ".txt", ".md")):
            text.append(f"\n--- {path.relative_to(folder)}\n{path.read_text(errors='replace')}")
    return "".join([*text, *runtime_licences(arch)]).encode()


def runtime_licences(arch):
    """Those of what the compilers put into every program: Rust's standard library, and GCC's libraries for C and C++."""
    rule = "=" * 80
    notice = pathlib.Path(output_of("rustc", "--print", "sysroot").decode().strip(), "share/doc/rust/COPYRIGHT-library.html")
    # A distribution's Rust may come without it.
    text = notice.read_text(errors="replace") if notice.is_file() else "The texts: https://doc.rust-lang.org/stable/COPYRIGHT-library.html"
    page = re.sub(r"<(style|script|head)\b.*?</\1>", "", text, flags=re.S)
    lines = (line.rstrip() for line in html.unescape(re.sub(r"<[^>]*>", "", page)).splitlines())
    yield f"\n{rule}\nRust's standard library: MIT OR Apache-2.0\n\n"
    yield re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"
    for name in (f"/usr/share/doc/{package}/copyright" for package in ("libgcc-s1", "gcc-12-base", "libstdc++6")):
        path = pathlib.Path(name)
        if path.is_file():
            yield f"\n{rule}\nGCC's run-time libraries: GPL-3.0-or-later WITH GCC-exception-3.1\n\n{path.read_text(errors='replace')}"
            return
    yield (f"\n{rule}\nGCC's run-time libraries: GPL-3.0-or-later WITH GCC-exception-3.1\n\n"
           "The texts: https://www.gnu.org/licenses/gpl-3.0.txt and https://www.gnu.org/licenses/gcc-exception-3.1.html\n")


def tree(binaries, arch):
    """What is installed, below a prefix: path to bytes and mode."""
    console = [*runner(arch), str(binaries / "rankdeck")]
    files = {path: (stripped(binaries / name, arch), 0o755) for path, name in PROGRAMS.items()}
    for shell, path in SHELLS.items():
        files[path] = (output_of(*console, "completions", shell), 0o644)
    names = re.findall(r"^  ([a-z]+)  ", output_of(*console, "--help").decode(), re.M)
    for name in [None, *(name for name in names if name != "help")]:
        page = output_of(*console, "man", *([name] if name else []))
        title = f"rankdeck-{name}" if name else "rankdeck"
        files[f"share/man/man1/{title}.1.gz"] = (gzip.compress(page, mtime=0), 0o644)
    for path in sorted(path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        files[f"share/doc/rankdeck/{path.relative_to(ROOT)}"] = (path.read_bytes(), 0o644)
    files["share/doc/rankdeck/LICENSES-OF-PARTS.txt.gz"] = (gzip.compress(licences(arch), mtime=0), 0o644)
    return files


def archive(files, prefix, time):
    """A tar.gz of files and of their folders."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, compresslevel=LEVEL) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        folders = {parent for path in files for parent in pathlib.PurePosixPath(prefix + path).parents} - {pathlib.PurePosixPath(".")}
        # dpkg makes no folder that has not come before what is in it: all begin alike, and are sorted.
        dot = "./" if prefix.startswith("./") else ""
        entries = {f"{dot}{folder}": None for folder in folders} | {prefix + path: content for path, content in files.items()}
        for path in sorted(entries):
            info = tarfile.TarInfo(path)
            info.mtime, info.uname, info.gname = time, "root", "root"
            if entries[path] is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                content, info.mode = entries[path]
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def scheme(path):
    """Where a wheel has it: `scripts` go to the environment's `bin`, `data` below its prefix."""
    return path.replace("bin/", "scripts/", 1) if path.startswith("bin/") else f"data/{path}"


def wheel(files, floor, arch):
    """The programs and documents for a virtual environment, and rankdeck.py as a module."""
    import time

    name = f"rankdeck-{version()}"
    tag = f"py3-none-manylinux_{floor[0]}_{floor[1]}_{arch}"
    metadata = (f"Metadata-Version: 2.1\nName: rankdeck\nVersion: {version()}\nSummary: {SUMMARY}\n"
                f"License: MIT OR Apache-2.0\nRequires-Python: >=3.8\nProvides-Extra: torch\n"
                f"Requires-Dist: {requirement()}; extra == 'torch'\nDescription-Content-Type: text/markdown\n\n")
    content = {f"{name}.data/{scheme(path)}": files[path] for path in files if path in PROGRAMS or path.startswith("share/doc/")}
    content["rankdeck.py"] = ((ROOT / "src/agent/client/rankdeck.py").read_bytes(), 0o644)
    content[f"{name}.dist-info/METADATA"] = (metadata.encode() + (ROOT / "README.md").read_bytes(), 0o644)
    content[f"{name}.dist-info/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: rankdeck\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644)
    for path, (data, mode) in files.items():
        if path.startswith("share/doc/rankdeck/LICENSE"):
            content[f"{name}.dist-info/licenses/{pathlib.Path(path).name}"] = (data, mode)
    record = [f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
              for path, (data, _) in sorted(content.items())]
    content[f"{name}.dist-info/RECORD"] = ("\n".join([*record, f"{name}.dist-info/RECORD,,"]) + "\n").encode(), 0o644
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as packed:
        for path, (data, mode) in sorted(content.items()):
            info = zipfile.ZipInfo(path, time.gmtime(date())[:6])
            info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            packed.writestr(info, data, compresslevel=LEVEL)
    return f"{name}-{tag}.whl", out.getvalue()


def deb(files, floor, arch, time):
    """An `ar` of a version, what dpkg wants to know, and the files."""
    size = sum(len(data) for data, _ in files.values()) // 1024
    control = (f"Package: rankdeck\nVersion: {version()}\nArchitecture: {arch}\nMaintainer: The rankdeck developers\n"
               f"Installed-Size: {size}\nDepends: libc6 (>= {floor[0]}.{floor[1]}), libstdc++6\nRecommends: openssh-client\n"
               f"Section: science\nPriority: optional\nDescription: {SUMMARY}\n"
               " It launches ranks over SSH, shows them live and finds the rank that is stuck.\n")
    sums = "".join(f"{hashlib.md5(data).hexdigest()}  usr/{path}\n" for path, (data, _) in sorted(files.items()))
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": archive({"control": (control.encode(), 0o644), "md5sums": (sums.encode(), 0o644)}, "./", time),
        "data.tar.gz": archive(files, "./usr/", time),
    }
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{time:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return f"rankdeck_{version()}_{arch}.deb", out


def main(binaries, out, is_released):
    binaries, out, time = pathlib.Path(binaries), pathlib.Path(out), date()
    arch, debian = machine(binaries / "rankdeck")
    files = tree(binaries, arch)
    programs = {path: files[path][0] for path in PROGRAMS}
    floor = glibc(programs.values())
    reasons = list(refused(programs))
    for reason in reasons:
        print(f"dist: {reason}", file=sys.stderr)
    if is_released and reasons:
        sys.exit("dist: no packages are made")
    name = f"rankdeck-{version()}"
    made = dict([
        (f"{name}-{arch}-linux.tar.gz", archive(files, f"{name}/", time)),
        wheel(files, floor, arch),
        deb(files, floor, debian, time),
    ])
    out.mkdir(parents=True, exist_ok=True)
    for path, data in made.items():
        (out / path).write_bytes(data)
    sums = {path: hashlib.sha256(data).hexdigest() for path, data in made.items()}
    print("".join(f"{sums[path]}  {path}\n" for path in sorted(sums)), end="")
    # Packages for another architecture may be in the same folder.
    for line in (out / "SHA256SUMS").read_text().splitlines() if (out / "SHA256SUMS").is_file() else ():
        digest, _, path = line.partition("  ")
        if (out / path).is_file():
            sums.setdefault(path, digest)
    (out / "SHA256SUMS").write_text("".join(f"{sums[path]}  {path}\n" for path in sorted(sums)))
    print(f"dist: the programs need glibc {floor[0]}.{floor[1]}", file=sys.stderr)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--released"]
    if len(words) != 2:
        sys.exit(__doc__)
    main(*words, is_released="--released" in sys.argv)
