# Settings and helpers of the cluster's scripts.
# shellcheck shell=bash
# shellcheck disable=SC2034 # settings are for those that source this
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${KVASIR_CACHE:-$HOME/.cache/kvasir}
BIN=$CACHE/cluster/bin                     # what build.sh makes: programs, images of the cluster's own
STATE=${CLUSTER_STATE:-$CACHE/cluster/run} # all that a running cluster writes
# A node's pool is the part of its name before '-'. A cluster that is up keeps the nodes that it was started with.
NODES=${CLUSTER_NODES:-$(cat "$STATE/nodes" 2>/dev/null || echo cpu-1 cpu-2 gpu-1)}
CLUSTER_KUBECONFIG=$STATE/admin.kubeconfig

KUBERNETES=v1.37.2       # as in go.mod
BRIDGE=kvasir-cluster    # a name of an interface has 15 characters at most
NET=172.30.0             # node i: $NET.(10+i); the control plane, and this machine as pods see it: $NET.1
POD_NET=10.244           # pods of node i: $POD_NET.i.0/24
SERVICE_CIDR=10.96.0.0/16
DNS_IP=10.96.0.10
API=https://$NET.1:6443
ETCD=http://127.0.0.1:12379
CGROUP=kvasir-cluster    # all nodes' cgroups lie under it
PAUSE=cluster.local/pause:1
BUSYBOX=cluster.local/busybox:1

PATH=$BIN:$PATH:/usr/sbin:/sbin
export HELM_CACHE_HOME=$STATE/helm HELM_CONFIG_HOME=$STATE/helm HELM_DATA_HOME=$STATE/helm

die() { printf 'cluster: %s\n' "$*" >&2; exit 1; }
say() { printf 'cluster: %s\n' "$*"; }

admin() { KUBECONFIG=$CLUSTER_KUBECONFIG kubectl "$@"; }

# started PID: when it was started; nothing when it is gone or a zombie
started() {
  local rest
  rest=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return 0
  [ "${rest%% *}" = Z ] || cut -d ' ' -f 20 <<<"$rest"
}
# note FILE PID: so that `runs` knows it again, even if the number has gone to another process since
note() { printf '%s %s\n' "$2" "$(started "$2")" >"$1"; }
runs() { # FILE
  local pid when
  [ -s "$1" ] || return 1
  read -r pid when <"$1"
  [ -n "$when" ] && [ "$(started "$pid")" = "$when" ]
}
# background NAME COMMAND...: in a session of its own, unless it runs already
background() {
  local name=$1
  shift
  ! runs "$STATE/pid/$name" || return 0
  setsid "$@" </dev/null >>"$STATE/log/$name.log" 2>&1 9>&- &
  note "$STATE/pid/$name" $!
}
# finish NAME: kills it and waits until it is gone
finish() {
  local file=$STATE/pid/$1 pid
  if runs "$file"; then
    read -r pid _ <"$file"
    kill -KILL "$pid" 2>/dev/null || true
    await 10 "$1 to end" gone "$file"
  fi
  rm -f "$file"
}
gone() { ! runs "$1"; }

# await SECONDS WHAT COMMAND...: until it succeeds
await() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" &>/dev/null; do
    ((SECONDS < end)) || die "waited in vain for $what"
    sleep 0.1
  done
}

# in_node NODE COMMAND...: in the namespaces of its process 1
in_node() {
  local pid
  read -r pid _ <"$STATE/pid/init-$1"
  shift
  nsenter --target "$pid" --mount --net --pid --uts --ipc -- "$@"
}
