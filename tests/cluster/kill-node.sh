#!/usr/bin/env bash
# kill-node.sh NODE: pulls its plug: its kubelet goes silent and its containers are gone. up.sh switches it on again.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
node=${1:?a node}
runs "$STATE/pid/init-$node" || die "node $node doesn't run"
finish "init-$node"
finish "node-$node"
