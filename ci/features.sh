#!/usr/bin/env bash
# Paths that this machine would not take by itself, forced: they must not rot unseen.
#   SYNCLINE_FORCE_SCALAR=1   kernels without SIMD
#   SYNCLINE_TRANSPORT=NAME   every communicator over one transport
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

# Transports to force, and which system tests to run over each; a filter as cargo test takes it.
: "${CI_TRANSPORTS:=tcp}"
: "${CI_TRANSPORT_TESTS:=}"

check_tests env SYNCLINE_FORCE_SCALAR=1 \
    cargo test --release --locked --package syncline-kernels --no-fail-fast

if compgen -G 'tests/tests/*.rs' >/dev/null || grep -q '^\[\[test\]\]' tests/Cargo.toml; then
    for transport in $CI_TRANSPORTS; do
        # shellcheck disable=SC2086  # the filter is a list of words
        check_tests env SYNCLINE_TRANSPORT="$transport" \
            cargo test --release --locked --package syncline-tests --no-fail-fast -- \
            $CI_TRANSPORT_TESTS
    done
else
    skip "forced transports: tests/ has no system tests"
fi

finish
