#!/usr/bin/env bash
# Builds what the cluster consists of, once for each state of its sources: minutes the first time, then nothing.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

sources=(go.mod go.sum main.go build.sh buildah.sh images/pause/* images/busybox/*)
stamp=$(cd "$HERE" && sha256sum "${sources[@]}" | sha256sum)
[ "$(cat "$BIN/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

go=go
[ ! -x "$CACHE/go/go/bin/go" ] || go=$CACHE/go/go/bin/go
mkdir -p "$BIN"
rm -f "$BIN/stamp"

say "building Kubernetes $KUBERNETES and Helm: this takes minutes, once"
version=k8s.io/component-base/version
minor=${KUBERNETES#v1.}
build() { # FILE PACKAGE LINKER-FLAGS
  (cd "$HERE" && CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false ${GOFLAGS:-}" nice "$go" build -trimpath -o "$BIN/$1" -ldflags "-s -w $3" "$2")
}
build kubernetes . "-X $version.gitVersion=$KUBERNETES -X $version.gitMajor=1 -X $version.gitMinor=${minor%.*} -X $version.gitTreeState=clean"
build helm helm.sh/helm/v4/cmd/helm ''
ln -sf kubernetes "$BIN/kubectl"

say "building the cluster's own images"
# shellcheck source=tests/cluster/buildah.sh
. "$HERE/buildah.sh"
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp -r "$HERE/images/pause" "$HERE/images/busybox" "$context"
gcc -static -Os -s -o "$context/pause/pause" "$context/pause/pause.c"
cp /bin/busybox "$context/busybox/busybox"
image "$PAUSE" "$BIN/pause.tar" "$context/pause"
image "$BUSYBOX" "$BIN/busybox.tar" "$context/busybox"
echo "$stamp" >"$BIN/stamp"
