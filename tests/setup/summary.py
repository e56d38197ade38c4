#!/usr/bin/env python3
"""summary.py LOG SKIPPED STATUS: prints the results of all tests in one line.

Reads the runners' summaries in LOG, the tests that called skip! in SKIPPED, and the reasons of #[ignore] in the sources. A test
that skips itself passes for its runner; here it counts as skipped. Ignored functions whose reason begins with `not a test` are
programs that other tests start, and do not count.
"""

import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# nextest: `Summary [ 0.1s] 12/15 tests run: 9 passed (1 slow), 2 failed, 1 timed out, 4 skipped`.
NEXTEST = re.compile(r"^ *Summary \[.*?\] .*?tests? run: (.*)$", re.M)
# cargo: `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`.
CARGO = re.compile(r"^test result: \w+\. (.*)$", re.M)
IGNORED = re.compile(r'#\[ignore = "([^"]*)"\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)')


def count(log, words):
    """Sum of the numbers before one of these words."""
    summaries = [re.sub(r"\([^)]*\)", "", found) for pattern in (NEXTEST, CARGO) for found in pattern.findall(log)]
    return sum(int(number) for text in summaries for number in re.findall(rf"(\d+) (?:{words})\b", text))


def ignored():
    """Name and reason of every ignored test."""
    for folder in ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.rs")):
            for reason, name in IGNORED.findall(path.read_text()):
                if not reason.startswith("not a test"):
                    yield f"{path.relative_to(ROOT)} {name}", reason


def main(log, skipped, status):
    log = re.sub(r"\x1b\[[0-9;]*m", "", pathlib.Path(log).read_text(errors="replace"))
    lines = pathlib.Path(skipped).read_text().splitlines() if pathlib.Path(skipped).exists() else []
    noted = {}
    for line in lines:
        binary, test, reason = line.split("\t")
        noted[f"{binary} {test}"] = reason
    passed = count(log, "passed") - len(noted)
    failed = count(log, "failed|timed out|exec failed")
    skips = {**noted, **dict(ignored())}

    for test, reason in sorted(skips.items()):
        print(f"skipped: {test}: {reason}")
    policy = os.environ.get("RANKDECK_ALLOW_SKIPS", "all")
    allowed = {"all": "", "gpu": "GPU:"}.get(policy)
    refused = [test for test, reason in skips.items() if allowed is None or not reason.startswith(allowed)]
    if refused:
        print(f"refused: {len(refused)} of these skips (RANKDECK_ALLOW_SKIPS={policy})")
    if status and not failed:
        print("error: a step failed before its tests ran; see above")
    print(f"{passed} passed, {failed} failed, {len(skips)} skipped")
    return 1 if refused or failed or status or passed <= 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
