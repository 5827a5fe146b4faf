#!/usr/bin/env bash
# Every benchmark runs once, so that none stops to build or to finish. No time is judged here.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

benches=0
for manifest in */Cargo.toml comm/*/Cargo.toml; do
    folder=$(dirname "$manifest")
    package=$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)
    for file in "$folder"/benches/*.rs; do
        [[ -e $file ]] || continue
        benches=$((benches + 1))
        # By name: cargo bench without one would run the unit tests again.
        check_for '^Success' \
            cargo bench --locked --package "$package" --bench "$(basename "$file" .rs)" -- --test
    done
done
((benches > 0)) || skip "benchmarks: no crate has any"

# What `syncline perf` is run with; empty where it is not there.
: "${CI_PERF_ARGS=}"
if [[ -n $CI_PERF_ARGS ]]; then
    # shellcheck disable=SC2086  # a list of words
    check timeout 120 cargo run --release --locked --package syncline-launch -- perf $CI_PERF_ARGS
else
    skip "syncline perf: not run (CI_PERF_ARGS)"
fi

finish
