#!/usr/bin/env bash
# node.sh NAME INDEX: a node, as process 1 of its own PID, mount, network, UTS and IPC namespaces; up.sh starts it.
# The kernel ends everything on the node when this process dies.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
name=$1 index=$2
pool=${name%%-*} address=$NET.$((10 + index)) own=$STATE/node/$name

# --- folders that are the node's own
for folder in /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log/pods /var/log/containers /etc/cni/net.d; do
  mkdir -p "$own$folder"
  mount --bind "$own$folder" "$folder"
done
mount -t tmpfs -o mode=755 tmpfs /run
mount --make-rshared /
hostname "$name"

# --- network: a cable to the bridge, and the other nodes' pods behind those nodes
await 10 'the cable' ip link show eth0
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via "$NET.1"
other=0
for _ in $NODES; do
  other=$((other + 1))
  [ "$other" = "$index" ] || ip route add "$POD_NET.$other.0/24" via "$NET.$((10 + other))"
done
echo 1 >/proc/sys/net/ipv4/ip_forward
# Services are rules of the IP layer: pods of one bridge must pass it too
[ ! -e /proc/sys/net/bridge ] || echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
cat >/etc/cni/net.d/10-pods.conflist <<JSON
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "$POD_NET.$index.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
JSON

# --- containers
cat >"$own/containerd.toml" <<TOML
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "/run/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "$PAUSE"
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
# a machine without CAP_SYS_RESOURCE can't lower a process's OOM score
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
TOML

taints='[]'
[ "$pool" != gpu ] || taints='[{key: nvidia.com/gpu, value: present, effect: NoSchedule}]'
echo "nameserver $DNS_IP" >"$own/resolv.conf"
cat >"$own/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: "$STATE/pki/ca.crt"}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: ["$DNS_IP"]
resolvConf: $own/resolv.conf
registerWithTaints: $taints
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP/$name
failCgroupV1: false
failSwapOn: false
# A node that returns, and a silent one, are noticed soon.
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
# The disk is this machine's: its state is no reason to move pods or to drop images, which no registry has.
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
imageMaximumGCAge: 0s
# What takes CAP_SYS_RESOURCE stays as it is.
oomScoreAdj: 0
maxOpenFiles: $(ulimit -Hn)
YAML
cat >"$own/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: $POD_NET.0.0/16
bindAddress: $address
hostnameOverride: $name
clientConnection: {kubeconfig: "$STATE/kube-proxy.kubeconfig"}
oomScoreAdj: 0
# these are the whole machine's
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML

containerd --config "$own/containerd.toml" >>"$STATE/log/$name-containerd.log" 2>&1 &
await 60 "containerd of $name" ctr version
for archive in "$BIN/pause.tar" "$BIN/busybox.tar"; do
  ctr --namespace k8s.io images import "$archive" >>"$STATE/log/$name-containerd.log" 2>&1
done
kubernetes kubelet --config "$own/kubelet.yaml" --kubeconfig "$STATE/$name.kubeconfig" --hostname-override "$name" \
  --node-ip "$address" --node-labels "kvasir.dev/pool=$pool" >>"$STATE/log/$name-kubelet.log" 2>&1 &
kubernetes kube-proxy --config "$own/kube-proxy.yaml" >>"$STATE/log/$name-proxy.log" 2>&1 &
wait -n
die "a daemon of node $name ended: see $STATE/log/$name-*.log"
