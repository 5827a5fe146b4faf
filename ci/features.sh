#!/usr/bin/env bash
# Paths that this machine would not take by itself, forced: they must not rot unseen.
#   SYNCLINE_FORCE_SCALAR=1   kernels without SIMD
# Transports and algorithms are forced by the system tests themselves (tests/tests/).
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

check_tests env SYNCLINE_FORCE_SCALAR=1 \
    cargo test --release --locked --package syncline-kernels --no-fail-fast

finish
