#!/usr/bin/env bash
# Runs every test of the workspace once; all of them, even when some fail. With nextest where it is installed,
# with cargo otherwise. Lists the tests that cannot run here, with the reasons; the last line counts:
# `N passed, N failed, N skipped`. Arguments go to the runner, for example a filter.
#
# RANKDECK_ALLOW_SKIPS says which skips are allowed: all (default), gpu (reasons that begin with `GPU:`) or
# none.
set -u -o pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
status=0
export RANKDECK_SKIPPED=$work/skipped
# What runs keep beside their folders goes with the tests.
mkdir -m 700 "$work/run"
export XDG_RUNTIME_DIR=$work/run RANKDECK_CACHE=$work/cache

stage() {
    echo "== $1"
    shift
    "$@" 2>&1 | tee -a "$work/log" || status=1
}

if [ -z "${RANKDECK_TEST_PYTHON:-}" ]; then
    # Without it, the tests that need its packages are skipped, and say so.
    if interpreter=$(tests/setup/python.sh "${CARGO_TARGET_DIR:-target}/test-python"); then
        export RANKDECK_TEST_PYTHON=$interpreter
    fi
fi
if [ -z "${RANKDECK_TEST_DING:-}" ]; then
    if interpreter=$(tests/setup/python.sh "${CARGO_TARGET_DIR:-target}/test-ding" tests/setup/ding.txt); then
        export RANKDECK_TEST_DING=$interpreter
    fi
fi
if cargo nextest --version >/dev/null 2>&1; then
    runner=(cargo nextest run --no-fail-fast)
else
    runner=(cargo test --no-fail-fast --lib --bins --tests)
fi

# The programs first: tests of the console start the trainer, which another package builds. With the tests, so
# that each crate is built once, with the features that its tests ask for.
stage "building" cargo build --workspace --bins --tests --features rankdeck-trainer/inject
stage "tests" "${runner[@]}" --workspace --features rankdeck-trainer/inject "$@"
python3 tests/setup/summary.py "$work/log" "$work/skipped" "$status"
