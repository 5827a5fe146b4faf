#!/usr/bin/env bash
# Simulated runs under faults: a fixed list of seeds, then fresh ones. Each failure prints the seed
# that reproduces it.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

# How many seeds of each kind, and the first fresh one.
: "${CI_SIM_SEEDS:=5000}"
: "${CI_SIM_FIRST:=$(date +%s)}"

if [[ -e comm/sim/src/bin/sim.rs ]]; then
    simulate=(cargo run --release --locked --package syncline-sim --bin sim --)
    check "${simulate[@]}" --seeds "0..$CI_SIM_SEEDS"
    check "${simulate[@]}" --seeds "$CI_SIM_FIRST..$((CI_SIM_FIRST + CI_SIM_SEEDS))"
else
    skip "simulated seeds: comm/sim has no binary"
fi

finish
