#!/usr/bin/env bash
# Lock-free code under every interleaving that loom finds within its bound.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

if compgen -G 'comm/tests/loom_*.rs' >/dev/null; then
    export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"
    export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}"
    check_tests cargo test --release --locked --package syncline-comm --test 'loom_*'
else
    skip "loom: comm/tests has no loom_*.rs"
fi

finish
