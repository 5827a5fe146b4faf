#!/usr/bin/env bash
# The tests of the crates with unsafe code under AddressSanitizer and ThreadSanitizer. Stable's own
# compiler can do it when told that it may.
#
# ThreadSanitizer only understands locks and fences that were built with it. With the toolchain's
# own std it reports races in sound code (tried: a Mutex with a Condvar, dropping an Arc, a
# channel), so it builds std too, which needs the rust-src component.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

# Longest run of the tests under one sanitizer, building not counted.
: "${CI_SANITIZE_LIMIT_S:=180}"
: "${CI_SANITIZERS:=address thread}"
# Which tests: a filter as cargo test takes it.
: "${CI_SANITIZE_TESTS:=}"

target=x86_64-unknown-linux-gnu
library=$(rustc --print sysroot)/lib/rustlib
export RUSTC_BOOTSTRAP=1
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1}"
export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1}"

# Runs the tests under one sanitizer; further arguments are for cargo.
sanitize() {
    local flags="-Zsanitizer=$1 -Cunsafe-allow-abi-mismatch=sanitizer"
    shift
    local tests=(env "RUSTFLAGS=$flags" cargo test --locked --target "$target" "$@"
        --package syncline-kernels --package syncline-comm --lib)
    local before=$failures
    check "${tests[@]}" --no-run
    ((failures == before)) || return 0
    # shellcheck disable=SC2086  # the filter is a list of words
    check_tests timeout --kill-after=10 "$CI_SANITIZE_LIMIT_S" "${tests[@]}" -- $CI_SANITIZE_TESTS
}

has_runtime() {
    [[ $(uname -sm) == "Linux x86_64" ]] &&
        compgen -G "$library/$target/lib/librustc-*_rt.$1.a" >/dev/null
}

for sanitizer in $CI_SANITIZERS; do
    case $sanitizer in
        address)
            if has_runtime asan; then
                sanitize address
            else
                skip "AddressSanitizer: this toolchain has no runtime for it"
            fi
            ;;
        thread)
            if ! has_runtime tsan; then
                skip "ThreadSanitizer: this toolchain has no runtime for it"
            elif [[ ! -e $library/src/rust/library/Cargo.lock ]]; then
                skip "ThreadSanitizer: needs std built with it, so the rust-src component"
            else
                sanitize thread -Zbuild-std
            fi
            ;;
        *)
            skip "$sanitizer: no such sanitizer here"
            ;;
    esac
done

finish
