#!/usr/bin/env bash
# Paths that this machine would not take by itself, forced: they must not rot unseen.
#   SYNCLINE_FORCE_SCALAR=1   kernels without SIMD
#   SYNCLINE_TRANSPORT=NAME   one transport for every pair of ranks
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

# Transports to force, and the tests to run over each: arguments of cargo test. They must be tests
# whose ranks read the environment; those that make their own settings would not notice.
: "${CI_TRANSPORTS:=tcp}"
: "${CI_TRANSPORT_TESTS:=}"

check_tests env SYNCLINE_FORCE_SCALAR=1 \
    cargo test --release --locked --package syncline-kernels --no-fail-fast

if [[ -n $CI_TRANSPORT_TESTS ]]; then
    for transport in $CI_TRANSPORTS; do
        # shellcheck disable=SC2086  # a list of words
        check_tests env SYNCLINE_TRANSPORT="$transport" \
            cargo test --release --locked --no-fail-fast $CI_TRANSPORT_TESTS
    done
else
    skip "forced transports: no tests take theirs from the environment (CI_TRANSPORT_TESTS)"
fi

finish
