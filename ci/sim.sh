#!/usr/bin/env bash
# Simulated runs under faults: a fixed list of seeds, then fresh ones. Each failure prints the seed
# that reproduces it.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

# The simulator's binary in syncline-sim, how many seeds, and the first fresh one.
: "${CI_SIM_BIN:=sim}"
: "${CI_SIM_SEEDS:=200}"
: "${CI_SIM_FIRST:=$(date +%s)}"

if [[ -e comm/sim/src/bin/$CI_SIM_BIN.rs ]]; then
    simulate=(cargo run --release --locked --package syncline-sim --bin "$CI_SIM_BIN" --)
    check "${simulate[@]}" --seeds "$CI_SIM_SEEDS" --first 1
    check "${simulate[@]}" --seeds "$CI_SIM_SEEDS" --first "$CI_SIM_FIRST"
else
    skip "simulated seeds: comm/sim has no binary $CI_SIM_BIN"
fi

finish
