#!/usr/bin/env bash
# Runs every test once, then the examples in the documentation. All of them run even when some fail; the last line adds up the runners' own
# summaries. With nextest where it is installed, with cargo otherwise.
set -u -o pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0

stage() {
    local title=$1
    shift
    echo "== $title"
    "$@" 2>&1 | tee -a "$log" || status=1
}

if cargo nextest --version >/dev/null 2>&1; then
    runner=(cargo nextest run --no-fail-fast)
else
    runner=(cargo test --no-fail-fast)
fi
# The console's tests look for the trainer beside the console, so everything is built first.
features=(--workspace --features rankdeck-trainer/inject)
stage "building" cargo test --no-run "${features[@]}"
stage "tests" "${runner[@]}" "${features[@]}" "$@"
stage "examples in the documentation" cargo test --doc "${features[@]}"

# cargo: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`; nextest: `Summary [ 0.1s] 3 tests run: 3 passed (1 slow), 1 skipped`.
sed 's/\x1b\[[0-9;]*m//g' "$log" | awk -v status="$status" '
    /^test result:/ || /^ *Summary \[/ {
        line = $0
        sub(/.*tests? run: */, "", line)
        sub(/.*test result: [a-zA-Z]+\. */, "", line)
        gsub(/\([^)]*\)/, "", line)
        count = split(line, part, /[,;] */)
        for (i = 1; i <= count; i++) {
            split(part[i], word, " ")
            if (part[i] ~ /passed/) passed += word[1]
            else if (part[i] ~ /failed|timed out/) failed += word[1]
            else if (part[i] ~ /ignored|skipped/) ignored += word[1]
        }
    }
    END {
        result = status == 0 && failed == 0 && passed > 0 ? "ok" : "FAILED"
        printf "test result: %s. %d passed; %d failed; %d ignored\n", result, passed, failed, ignored
        exit result == "ok" ? 0 : 1
    }'
