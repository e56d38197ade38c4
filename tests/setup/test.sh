#!/usr/bin/env bash
# Runs every test of the workspace once; all of them, even when some fail. With nextest where it is installed,
# with cargo otherwise. Lists the tests that cannot run here, with the reasons; the last line counts:
# `N passed, N failed, N skipped`. Arguments go to the runner, for example a filter.
#
# RANKDECK_ALLOW_SKIPS selects the allowed skips: all (default), gpu (reasons that begin with `GPU:`) or
# none.
set -u -o pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap '[ -z "${process:-}" ] || kill "$process" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
status=0
export RANKDECK_SKIPPED=$work/skipped
# State that runs keep outside their folders is removed with the tests.
mkdir -m 700 "$work/run"
export XDG_RUNTIME_DIR=$work/run RANKDECK_CACHE=$work/cache
# The tests start Python a thousand times. A version manager's python3 is a shell script before it is Python,
# which alone takes longer than Python does: the system's own, where there is one.
if [ "$(head -c 2 "$(command -v python3)")" = '#!' ] && [ -x /usr/bin/python3 ]; then
    mkdir "$work/bin"
    ln -s /usr/bin/python3 "$work/bin/"
    export PATH=$work/bin:$PATH PYTHON=${PYTHON:-/usr/bin/python3}
fi

# Libtorch and torch take 40 to 100 MB when they are loaded, a thousand times over all tests: in large pages,
# where the kernel has some to give, which saves half of the faults.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}

stage() {
    echo "== $1"
    shift
    "$@" 2>&1 | tee -a "$work/log" || status=1
}

if [ -z "${RANKDECK_TEST_PYTHON:-}" ]; then
    # Without it, the tests that need its packages are counted as skipped.
    if interpreter=$(tests/setup/python.sh "${CARGO_TARGET_DIR:-target}/test-python"); then
        export RANKDECK_TEST_PYTHON=$interpreter
    fi
fi
if [ -z "${RANKDECK_TEST_DING:-}" ]; then
    if interpreter=$(tests/setup/python.sh "${CARGO_TARGET_DIR:-target}/test-ding" tests/setup/ding.txt); then
        export RANKDECK_TEST_DING=$interpreter
    fi
fi
features=(--workspace --features rankdeck-trainer/inject)
if cargo nextest --version >/dev/null 2>&1; then
    runner=(cargo nextest run --no-fail-fast)
else
    runner=(cargo test --no-fail-fast --lib --bins --tests)
fi

# The trainer's unit tests in one process, parallel to the others: nextest starts a process for each test, and each
# would load libtorch, which costs more than all of these tests do.
units() {
    cargo nextest list "${features[@]}" --list-type binaries-only --message-format json 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["rust-binaries"]["rankdeck-trainer"]["binary-path"])'
}

# The programs first: tests of the console start the trainer, which another package builds. With the tests, so
# that each crate is built once, with the features that its tests ask for.
stage "building" cargo build "${features[@]}" --bins --tests
others=("$@")
if [ "${runner[1]}" = nextest ] && [ $# -eq 0 ] && units=$(units); then
    others=(-E 'not (package(rankdeck-trainer) & kind(lib))')
    env -C src/trainer timeout 600 "$units" >"$work/units" 2>&1 &
    process=$!
fi
stage "tests" "${runner[@]}" "${features[@]}" "${others[@]}"
if [ -n "${process:-}" ]; then
    wait "$process" || status=1
    stage "unit tests of the trainer" cat "$work/units"
fi
python3 tests/setup/summary.py "$work/log" "$work/skipped" "$status"
