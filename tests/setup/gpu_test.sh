#!/bin/sh
# Runs every test that needs a GPU, and fails unless it has run all of them: a filter that finds none ends
# well, too. Arguments go to cargo.
set -eu
cd "$(dirname "$0")/../.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
${CARGO:-cargo} test --workspace "$@" -- --ignored gpu 2>&1 | tee "$log"
expected=$(grep -rh '#\[ignore = "GPU' src tests --include=*.rs | wc -l)
passed=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
echo "gpu-test: $passed of $expected tests passed"
[ "$passed" -eq "$expected" ]
