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

# What `syncline perf` is run with: few, small sizes.
: "${CI_PERF_ARGS:=all_reduce -n 2 --maxbytes 64K --iters 5}"
# shellcheck disable=SC2086  # a list of words
check timeout 120 cargo run --release --locked --package syncline-launch -- perf $CI_PERF_ARGS
check timeout 120 cargo run --release --locked --package syncline-launch -- perf p2p --bw -a -n 5

finish
