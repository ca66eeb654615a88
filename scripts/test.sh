#!/usr/bin/env bash
# Runs every suite, whatever failed before, and sums them up. CI=true: a skipped test counts as a failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

log=$(mktemp)
# where tests that can't run here say why (kvasir_tests::skip)
KVASIR_SKIPS=$(mktemp)
export KVASIR_SKIPS
trap 'rm -f "$log" "$KVASIR_SKIPS"' EXIT
passed=0 failed=0 skipped=0 report=

# The lines in which runners count: "test result: ok. 3 passed; 1 failed; 0 ignored; …" and "3 passed, 0 failed".
results() { grep -E '^(test result: |[0-9]+ passed)' "$log"; }
count() { # WORD
  results | grep -oE "[0-9]+ $1" | awk '{ n += $1 } END { print n + 0 }'
}

# suite NAME COMMAND...: a command without counts of its own is one test
suite() {
  local name=$1 start=$EPOCHREALTIME status minutes p f s quiet
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  : >"$KVASIR_SKIPS"
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  minutes=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", (b - a) / 60 }')
  p=$(count passed) f=$(count failed) s=$(count '(ignored|skipped)')
  quiet=$(wc -l <"$KVASIR_SKIPS")
  p=$((p - quiet)) s=$((s + quiet))
  if ! results >/dev/null; then p=$((status == 0)); fi
  if ((status != 0 && f == 0)); then f=1; fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  report+=$(printf '%-10s %5s min %5d passed %3d failed %3d skipped' "$name" "$minutes" "$p" "$f" "$s")$'\n'
  sed "s/^/skipped: /" "$KVASIR_SKIPS"
}

# one profile for everything: llama.cpp is built once
cargo=(--locked --release --workspace)
suite fmt cargo fmt --all --check
suite shell shellcheck --external-sources scripts/*.sh tests/cluster/*.sh .ci/run
suite clippy cargo clippy "${cargo[@]}" --all-targets -- --deny warnings
suite doc env RUSTDOCFLAGS='--deny warnings' cargo doc "${cargo[@]}" --no-deps
# the programs that the suites below start; one is an example, which `cargo test` builds for itself only
suite build cargo build "${cargo[@]}" --lib --bins --examples
suite phone scripts/phone.sh # the program that tests/tests/phone.rs runs
suite unit cargo test "${cargo[@]}" --lib --bins --no-fail-fast
suite doctest cargo test "${cargo[@]}" --doc --no-fail-fast
# rings have processes and deadlines of their own: one at a time; all but the tests that take a cluster
suite ring cargo test "${cargo[@]}" --test '[!c]*' --test 'c[!l]*' --no-fail-fast -- --test-threads=1
suite python scripts/openai-client.sh
# the cluster is Kubernetes itself, built once
suite kubernetes tests/cluster/build.sh
suite charts scripts/charts.sh
suite cluster cargo test "${cargo[@]}" --test cluster --no-fail-fast -- --test-threads=1

printf '\n%s\n%d passed, %d failed, %d skipped\n' "$report" "$passed" "$failed" "$skipped"
((failed == 0)) || exit 1
[ "${CI:-}" != true ] || ((skipped == 0))
