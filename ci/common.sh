# shellcheck shell=bash
# Helpers that the stages of ci/ share; sourced, never run. A stage calls check, check_tests and
# skip, then finish. Each stage runs alone too: bash ci/test.sh

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Exit status of a stage that had nothing to run, with its reason printed.
readonly SKIPPED=77
checks=0
failures=0

# Runs a command, and goes on when it fails, so that one run shows everything that is wrong.
check() {
    checks=$((checks + 1))
    echo "-- $*"
    "$@" || failed_with $? "$*"
}

# As check, for a command that runs tests: to run none is a failure, so that a filter that matches
# nothing any more is noticed.
check_tests() {
    check_for '^test result: .* [1-9][0-9]* passed' "$@"
}

# As check; also fails when no line of the output matches a pattern.
check_for() {
    local pattern=$1 log status=0
    shift
    log=$(mktemp)
    checks=$((checks + 1))
    echo "-- $*"
    "$@" 2>&1 | tee "$log" || status=$?
    if ((status != 0)); then
        failed_with "$status" "$*"
    elif ! grep -Eq "$pattern" "$log"; then
        failed_with "0, but did nothing (no line is like '$pattern')" "$*"
    fi
    rm -f "$log"
}

failed_with() {
    failures=$((failures + 1))
    echo "-- failed with status $1: $2"
}

# Says why something is not run. run.sh repeats these lines at its end.
skip() {
    echo "skip: $*"
}

# Ends the stage.
finish() {
    if ((failures > 0)); then
        echo "-- $failures of $checks checks failed"
        exit 1
    fi
    ((checks > 0)) || exit "$SKIPPED"
    echo "-- $checks checks passed"
}
