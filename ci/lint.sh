#!/usr/bin/env bash
# House rules, format, lints, documentation. Warnings are errors.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

check cargo tidy

if cargo fmt --version >/dev/null 2>&1; then
    check cargo fmt --all --check
else
    skip "format: the rustfmt component is not installed"
fi

if cargo clippy --version >/dev/null 2>&1; then
    # The release profile, so that the stages after this one find their build scripts built.
    check cargo clippy --release --locked --workspace --all-targets -- -D warnings
else
    skip "lints: the clippy component is not installed"
fi

# The binary is documented on its own: it has the name of the library `syncline`.
export RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings"
check cargo doc --release --locked --no-deps --workspace --exclude syncline-launch
check cargo doc --release --locked --no-deps --package syncline-launch
unset RUSTDOCFLAGS

if command -v shellcheck >/dev/null; then
    check shellcheck --external-sources ci/*.sh .ci/run
else
    skip "shell scripts: shellcheck is not installed"
fi

if cargo deny --version >/dev/null 2>&1; then
    check cargo deny --locked check bans licenses sources
else
    skip "dependency policy (deny.toml): cargo-deny is not installed"
fi

finish
