#!/usr/bin/env python3
"""The tests that an earlier revision had and that are still there by name, run alone and timed.

    make test  # builds everything
    python3 benches/earlier_tests.py 4f49fd4

The suite grows with what it covers: this shows what the same cases cost now.
"""
import argparse, os, pathlib, re, resource, subprocess, sys, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST = re.compile(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub\s+)?(?:async\s+)?fn\s+(\w+)")


def git(*args):
    return subprocess.run(["git", "-C", ROOT, *args], check=True, stdout=subprocess.PIPE).stdout.decode(errors="replace")


def names(revision):
    files = [file for file in git("ls-tree", "-r", "--name-only", revision).splitlines() if file.endswith(".rs")]
    return {name for file in files for name in TEST.findall(git("show", f"{revision}:{file}"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    then = names(parser.parse_args().revision)
    kept = sorted(then & names("HEAD"))
    print(f"{len(then)} names then, {len(kept)} of them now", flush=True)
    alternatives = "|".join(kept)
    # With a filter, the trainer's unit tests are among the others, each in a process of its own.
    command = ["bash", ROOT / "tests/setup/test.sh", "-E", f"test(/(^|::)({alternatives})$/)"]
    begun = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env=dict(os.environ, RANKDECK_ALLOW_SKIPS="gpu")).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{time.monotonic() - begun:.0f} s, {used.ru_utime + used.ru_stime:.0f} CPU-seconds")
    sys.exit(code)


if __name__ == "__main__":
    main()
