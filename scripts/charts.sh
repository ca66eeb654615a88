#!/usr/bin/env bash
# Checks the charts without a cluster: what is written from other files, helm lint --strict, and the renders of every
# ci/*-values.yaml against those in tests/golden. Ends with a line 'N passed, N failed'.
#   scripts/charts.sh          check
#   scripts/charts.sh --write  write what is written from other files, and the renders
set -uo pipefail
cd "$(dirname "$0")/.." || exit

cache=${KVASIR_CACHE:-$HOME/.cache/kvasir}
helm=$(command -v helm || echo "$cache/cluster/bin/helm")
[ -x "$helm" ] || { echo "charts: there is no helm: run tests/cluster/build.sh" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work HELM_CONFIG_HOME=$work HELM_DATA_HOME=$work
passed=0 failed=0

check() { # WHAT COMMAND...
  local what=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED: %s\n' "$what"
    cat "$work/log"
  fi
}
render() { # CHART VALUES: of a fixed version, so that a render says nothing about the machine
  "$helm" template kvasir "$1" --namespace kvasir-system --kube-version 1.37.0 --values "$2"
}
compare() { # CHART VALUES GOLDEN
  render "$1" "$2" >"$work/render" || return
  diff --unified "$3" "$work/render"
}

write=
[ "${1:-}" != --write ] || write=yes
if [ -n "$write" ]; then
  python3 scripts/charts.py || exit
else
  check 'what is written from other files is up to date' python3 scripts/charts.py --check
fi
for chart in charts/*/; do
  chart=${chart%/}
  for values in "$chart"/ci/*-values.yaml; do
    case=$(basename "$values" -values.yaml)
    golden=$chart/tests/golden/$case.yaml
    if [ -n "$write" ]; then
      mkdir -p "$(dirname "$golden")"
      render "$chart" "$values" >"$golden" || exit
    else
      check "$chart, $case: helm lint --strict" "$helm" lint --strict --quiet --values "$values" "$chart"
      check "$chart, $case: the render is the committed one" compare "$chart" "$values" "$golden"
    fi
  done
done
[ -n "$write" ] || printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
