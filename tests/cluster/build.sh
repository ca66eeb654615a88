#!/usr/bin/env bash
# Builds what the cluster consists of, once for each state of its sources: minutes the first time, then nothing.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

cd "$HERE"
stamp=$(sha256sum go.mod go.sum main.go build.sh buildah.sh images/pause/* images/busybox/* | sha256sum)
[ "$(cat "$BIN/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

go=go
[ ! -x "$CACHE/go/go/bin/go" ] || go=$CACHE/go/go/bin/go
mkdir -p "$BIN"
rm -f "$BIN/stamp"

say "building Kubernetes $KUBERNETES and Helm: this takes minutes, once"
version=k8s.io/component-base/version
minor=${KUBERNETES#v1.}
build() { # FILE PACKAGE LINKER-FLAGS
  CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false ${GOFLAGS:-}" "$go" build -trimpath -o "$BIN/$1" -ldflags "-s -w $3" "$2" \
    2> >(grep --invert-match "^go: downloading" >&2)
}
build helm helm.sh/helm/v4/cmd/helm ''
build kubernetes . "-X $version.gitVersion=$KUBERNETES -X $version.gitMajor=1 -X $version.gitMinor=${minor%.*} -X $version.gitTreeState=clean"
ln -sf kubernetes "$BIN/kubectl"

say "building the cluster's own images"
# shellcheck source=tests/cluster/buildah.sh
. "$HERE/buildah.sh"
context=$(mktemp -d)
trap 'rm -rf "$context" "$LAYERS"' EXIT
cp -r "$HERE/images/pause" "$HERE/images/busybox" "$context"
gcc -static -Os -s -o "$context/pause/pause" "$context/pause/pause.c"
cp /bin/busybox "$context/busybox/busybox"
image "$PAUSE" "$BIN/pause.tar" "$context/pause"
image "$BUSYBOX" "$BIN/busybox.tar" "$context/busybox"
echo "$stamp" >"$BIN/stamp"
