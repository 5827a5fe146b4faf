#!/usr/bin/env bash
# All checks, fast to slow, each with its time; then what was skipped and why, and a closing count.
#   bash ci/run.sh              everything
#   bash ci/run.sh lint test    only these stages
#   CI_FAIL_FAST=1              stop at the first stage that fails
# Exits 1 when any stage failed. All of it takes under 30 minutes on two cores from a clean clone;
# only crates are fetched.
# shellcheck source=ci/common.sh
source "$(dirname "$0")/common.sh"

# Longest time of each stage in seconds, its builds included. They end a stage that hangs.
declare -rA LIMIT_S=(
    [lint]=900 [test]=1200 [features]=600 [loom]=600 [sim]=600 [sanitize]=900 [bench_smoke]=600
)
readonly BUDGET_S=1800
readonly ALL=(lint test features loom sim sanitize bench_smoke)
stages=("$@")
((${#stages[@]} > 0)) || stages=("${ALL[@]}")
for stage in "${stages[@]}"; do
    if [[ ! -v "LIMIT_S[$stage]" ]]; then
        echo "no such stage: $stage (there are: ${ALL[*]})"
        exit 2
    fi
done

logs=${CARGO_TARGET_DIR:-target}/ci
mkdir -p "$logs"
# At a terminal, Ctrl-C must reach the stage; elsewhere, a stage that is ended takes all of its
# processes with it.
foreground=()
[[ ! -t 0 ]] || foreground=(--foreground)

clock() {
    printf '%dm%02ds' $(($1 / 60)) $(($1 % 60))
}

ok=0 failed=0 skipped=0
summary=()
ran=()
for stage in "${stages[@]}"; do
    echo "== $stage"
    start=$SECONDS status=0
    ran+=("$logs/$stage.log")
    timeout "${foreground[@]}" --kill-after=20 "${LIMIT_S[$stage]}" bash "ci/$stage.sh" 2>&1 |
        tee "$logs/$stage.log" || status=$?
    # shellcheck disable=SC2153  # SKIPPED is from common.sh
    case $status in
        0) result=ok ok=$((ok + 1)) ;;
        "$SKIPPED") result=skipped skipped=$((skipped + 1)) ;;
        124 | 137) result="failed: over ${LIMIT_S[$stage]} s" failed=$((failed + 1)) ;;
        *) result=failed failed=$((failed + 1)) ;;
    esac
    summary+=("$(printf '%-12s %7s  %s' "$stage" "$(clock $((SECONDS - start)))" "$result")")
    echo "== ${summary[-1]}"
    if ((failed > 0)) && [[ -n ${CI_FAIL_FAST:-} ]]; then
        break
    fi
done

echo
printf '%s\n' "${summary[@]}"
grep -h '^skip: ' "${ran[@]}" || true
((SECONDS <= BUDGET_S)) || echo "over the budget of $(clock $BUDGET_S)"
echo "stages: $ok ok, $failed failed, $skipped skipped, in $(clock $SECONDS)"
# The sums of cargo test's closing lines. A test that a later stage runs again counts again.
awk '/^test result: / {
         for (i = 2; i <= NF; i++) {
             if ($i == "passed;") passed += $(i - 1)
             if ($i == "failed;") failed += $(i - 1)
             if ($i == "ignored;") ignored += $(i - 1)
         }
     }
     END {
         printf "tests: %d passed, %d failed, %d skipped\n", passed, failed, ignored
     }' "${ran[@]}"
((failed == 0))
