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

refuses() { # WORDS CHART SETTING...: what the user reads
  local words=$1 chart=$2 settings=()
  shift 2
  for setting in "$@"; do settings+=(--set "$setting"); done
  if "$helm" template kvasir "$chart" "${settings[@]}" >"$work/render" 2>"$work/refusal"; then
    echo 'it was rendered'
    return 1
  fi
  cat "$work/refusal"
  grep --quiet --fixed-strings -- "$words" "$work/refusal"
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
      render "$chart" "$values" >"$work/render" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
      cp "$work/render" "$golden"
    else
      check "$chart, $case: helm lint --strict" "$helm" lint --strict --quiet --values "$values" "$chart"
      check "$chart, $case: the render is the committed one" compare "$chart" "$values" "$golden"
    fi
  done
done
if [ -z "$write" ]; then
  relay=charts/kvasir-relay operator=charts/kvasir-operator
  check 'a typo in a value' refuses "additional properties 'replica' not allowed" "$relay" replica=2
  check 'a typo in a value of the relay of the operator' \
    refuses "additional properties 'persistance' not allowed" "$operator" relay.persistance.enabled=true
  check 'several relays on SQLite' refuses 'set database.existingSecret' "$relay" replicas=2
  check 'several relays at one address' refuses 'each relay has its own' "$relay" replicas=2 database.existingSecret=db \
    'publicUrls={https://relay.example.com}'
  check 'an Ingress without a host' refuses 'ingress.hosts' "$relay" ingress.enabled=true
  check 'an Ingress without the address that tickets name' refuses 'publicUrls' "$relay" ingress.enabled=true \
    'ingress.hosts={relay.example.com}'
  check 'an address with a password' refuses 'publicUrls' "$relay" 'publicUrls={https://me:secret@relay.example.com}'
  check 'several operators without a Lease' refuses 'need leaderElection' "$operator" replicas=2 leaderElection=false
  check 'a chart is packed with the one that it depends on' "$helm" package --destination "$work" "$operator"
fi
[ -n "$write" ] || printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
