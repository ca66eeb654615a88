#!/usr/bin/env bash
# Brings a Kubernetes cluster with real containers up on this machine, or what of it is down. Prints its kubeconfig's path.
#   CLUSTER_NODES="cpu-1 cpu-2 gpu-1"  nodes, at the first start; the part before '-' is its label kvasir.dev/pool, and gpu is tainted
#   CLUSTER_STATE=FOLDER               what a running cluster writes, such as log/audit.log
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/pki.sh
. "$HERE/pki.sh"

[ "$(id -u)" = 0 ] || die "this takes root's rights; or let KUBECONFIG name a cluster that is there"
mkdir -p "$CACHE/cluster" "$STATE"/{pki,pid,log,node}
chmod 700 "$STATE/pki"
# one at a time; what runs in the background must not keep the lock
exec 9>"$CACHE/cluster/lock"
flock 9
"$HERE/build.sh" >&2
echo "$NODES" >"$STATE/nodes"
explain() {
  local status=$?
  ((status == 0)) || tail --lines=5 "$STATE"/log/*.log | cut --characters=-300 >&2
  exit "$status"
}
trap explain EXIT

authority
service_ip=${SERVICE_CIDR%.*}.1
certificate apiserver /CN=kube-apiserver \
  "IP:$NET.1,IP:127.0.0.1,IP:$service_ip,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
certificate kubelet-client /O=system:masters/CN=kubelet-client
certificate front-proxy /CN=front-proxy
user admin /O=system:masters/CN=admin
user coredns /CN=system:coredns
for part in kube-controller-manager kube-scheduler kube-proxy; do user "$part" "/CN=system:$part"; done
for node in $NODES; do user "$node" "/O=system:nodes/CN=system:node:$node"; done

if [ ! -e "/sys/class/net/$BRIDGE" ]; then
  ip link add "$BRIDGE" type bridge
  ip address add "$NET.1/24" dev "$BRIDGE"
  ip link set "$BRIDGE" up
fi

# --- the control plane: processes of this machine
background etcd kubernetes etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls "$ETCD" --advertise-client-urls "$ETCD" \
  --listen-peer-urls http://127.0.0.1:12380 --initial-advertise-peer-urls http://127.0.0.1:12380 \
  --initial-cluster default=http://127.0.0.1:12380
background apiserver kubernetes kube-apiserver --etcd-servers "$ETCD" \
  --bind-address "$NET.1" --advertise-address "$NET.1" --secure-port 6443 --service-cluster-ip-range "$SERVICE_CIDR" \
  --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" --client-ca-file "$PKI/ca.crt" \
  --kubelet-client-certificate "$PKI/kubelet-client.crt" --kubelet-client-key "$PKI/kubelet-client.key" \
  --kubelet-preferred-address-types InternalIP \
  --service-account-issuer https://kubernetes.default.svc.cluster.local \
  --service-account-key-file "$PKI/tokens.pub" --service-account-signing-key-file "$PKI/tokens.key" \
  --requestheader-client-ca-file "$PKI/ca.crt" --requestheader-allowed-names front-proxy \
  --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
  --requestheader-extra-headers-prefix X-Remote-Extra- --enable-aggregator-routing \
  --proxy-client-cert-file "$PKI/front-proxy.crt" --proxy-client-key-file "$PKI/front-proxy.key" \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
  --audit-policy-file "$HERE/audit.yaml" --audit-log-path "$STATE/log/audit.log"
await 120 'the API server' admin get --raw /readyz
own_config() { # NAME: the flags of a part that asks the API server who may ask it
  printf '%s\n' "--kubeconfig=$STATE/$1.kubeconfig" "--authentication-kubeconfig=$STATE/$1.kubeconfig" \
    "--authorization-kubeconfig=$STATE/$1.kubeconfig"
}
mapfile -t own < <(own_config kube-controller-manager)
# A silent node is given up after 20 s, so that tests need not wait for the usual 50.
background controller-manager kubernetes kube-controller-manager "${own[@]}" --bind-address 127.0.0.1 --leader-elect=false \
  --service-account-private-key-file "$PKI/tokens.key" --root-ca-file "$PKI/ca.crt" \
  --cluster-signing-cert-file "$PKI/ca.crt" --cluster-signing-key-file "$PKI/ca.key" \
  --use-service-account-credentials --node-monitor-grace-period 20s
mapfile -t own < <(own_config kube-scheduler)
background scheduler kubernetes kube-scheduler "${own[@]}" --bind-address 127.0.0.1 --leader-elect=false

# --- DNS: a process of this machine too, behind the Service that pods expect
cat >"$STATE/Corefile" <<CONFIG
.:53 {
  bind $NET.1
  errors
  ready $NET.1:8181
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $STATE/coredns.kubeconfig
    pods insecure
    ttl 5
  }
  cache 5
}
CONFIG
admin apply --filename - >/dev/null <<YAML
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
  - {apiGroups: [""], resources: [namespaces, services, pods], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: system:coredns}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cluster:kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-proxier}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: system:kube-proxy}]
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: $DNS_IP
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-outside, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: ["$NET.1"], conditions: {ready: true}}]
YAML
background coredns kubernetes coredns -conf "$STATE/Corefile"

# --- the nodes: each a process 1 of its own namespaces
# Kubelets set these for the whole machine: down.sh puts them back.
if [ ! -e "$STATE/sysctls" ]; then
  sysctl --ignore vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys \
    kernel.keys.root_maxbytes fs.inotify.max_user_instances | sed 's/ = /=/' >"$STATE/sysctls"
fi
sysctl --quiet --write fs.inotify.max_user_instances=8192
# Places of mounts: those that are made here are removed by down.sh.
make_folder() {
  [ ! -d "$1" ] || return 0
  make_folder "$(dirname "$1")"
  mkdir "$1"
  echo "$1" >>"$STATE/folders"
}
touch "$STATE/folders"
for folder in /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log/pods /var/log/containers /etc/cni/net.d; do
  make_folder "$folder"
done

make_cgroups() { # NODE
  local root group
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    for group in /sys/fs/cgroup "/sys/fs/cgroup/$CGROUP"; do
      mkdir -p "$group"
      sed 's/[^ ]*/+&/g' "$group/cgroup.controllers" >"$group/cgroup.subtree_control"
    done
    mkdir -p "/sys/fs/cgroup/$CGROUP/$1"
    return
  fi
  for root in /sys/fs/cgroup/*/; do
    [ ! -e "$root/cgroup.controllers" ] || continue
    for group in "$root$CGROUP" "$root$CGROUP/$1"; do
      mkdir -p "$group"
      # a new group may use no processor until it is told which
      [ ! -e "$root/cpuset.cpus" ] || cat "$root/cpuset.cpus" >"$group/cpuset.cpus"
      [ ! -e "$root/cpuset.mems" ] || cat "$root/cpuset.mems" >"$group/cpuset.mems"
    done
  done
}
index=0
for node in $NODES; do
  index=$((index + 1))
  ! runs "$STATE/pid/init-$node" || continue
  finish "node-$node"
  make_cgroups "$node"
  background "node-$node" unshare --pid --fork --kill-child --mount-proc --mount --net --uts --ipc --propagation private \
    "$HERE/node.sh" "$node" "$index"
  read -r parent _ <"$STATE/pid/node-$node"
  await 10 "the process of node $node" grep --quiet . "/proc/$parent/task/$parent/children"
  init=$(tr -d ' ' <"/proc/$parent/task/$parent/children")
  note "$STATE/pid/init-$node" "$init"
  ip link add "kvasir-node-$index" type veth peer name eth0 netns "$init"
  ip link set "kvasir-node-$index" master "$BRIDGE" up
  # this machine reaches pods, and they reach it
  ip route replace "$POD_NET.$index.0/24" via "$NET.$((10 + index))"
done

index=0
for node in $NODES; do
  index=$((index + 1))
  ready() { # since this start: a node that was killed keeps its old word for a while
    runs "$STATE/pid/init-$node" || die "node $node ended"
    admin wait --for=condition=Ready "node/$node" --timeout=1s
  }
  await 120 "the kubelet of node $node" curl --silent --insecure --max-time 2 "https://$NET.$((10 + index)):10250/"
  await 120 "node $node to be ready" ready
  if [ "${node%%-*}" = gpu ]; then
    # no device plugin: a number that only the scheduler looks at
    admin patch node "$node" --subresource status --type merge --patch '{"status": {"capacity": {"nvidia.com/gpu": "8"}}}' >/dev/null
  fi
done
await 30 DNS curl --fail --silent "http://$NET.1:8181/ready"
await 30 'the default service account' admin get serviceaccount default
echo "$CLUSTER_KUBECONFIG"
