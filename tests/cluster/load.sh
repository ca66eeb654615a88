#!/usr/bin/env bash
# load.sh ARCHIVE...: puts images (OCI or Docker archives) on every node that runs.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
jobs=()
for node in $NODES; do
  runs "$STATE/pid/init-$node" || continue
  for archive in "$@"; do
    path=$(realpath "$archive")
    in_node "$node" ctr --namespace k8s.io images import "$path" >/dev/null || die "node $node doesn't take $archive"
  done &
  jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done
