#!/usr/bin/env bash
# All tests in release, then those of the pure crates again with overflow checks and debug
# assertions on; these build few dependencies.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

check_tests cargo test --release --locked --workspace --no-fail-fast
check_tests cargo test --locked --no-fail-fast \
    --package syncline-kernels --package syncline-proto --package syncline-sim

finish
