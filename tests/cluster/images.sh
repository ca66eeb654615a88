#!/usr/bin/env bash
# images.sh FOLDER: builds the images of the operator, the relay and the stage from the programs in FOLDER, by the project's
# Dockerfile on a base of this machine's own Debian. Prints the archives that load.sh takes, one a line.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cluster/buildah.sh
. "$HERE/buildah.sh"

programs=$(realpath "${1:?a folder with kvasir-operator, kvasir-relay and kvasir-stage}")
repository=$(cd "$HERE/../.." && pwd)
archives=$CACHE/cluster/images
targets=(operator relay stage)
base=kvasir.local/base:test

list() { printf '%s\n' "${targets[@]/#/$archives/}" | sed 's/$/.tar/'; }
stamp=$(cd "$programs" && sha256sum "${targets[@]/#/kvasir-}" "$repository/Dockerfile" "$HERE/images.sh" | sha256sum)
if [ "$(cat "$archives/stamp" 2>/dev/null)" = "$stamp" ]; then
  list
  exit
fi

context=$(mktemp -d)
trap 'rm -rf "$context" "$LAYERS"' EXIT
root=$context/base/root
mkdir -p "$context/bin" "$root"/{etc/ssl/certs,tmp}
chmod 1777 "$root/tmp"
cp "$HERE/images/base/Containerfile" "$context/base"
for target in "${targets[@]}"; do
  install --strip "$programs/kvasir-$target" "$context/bin/kvasir-$target"
  # the loader and the libraries, under the paths that the programs look for
  ldd "$programs/kvasir-$target" | grep -oE '/[^ ]+' | while read -r library; do
    install -D "$library" "$root$library"
  done
done
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs"
cp -L /etc/ssl/certs/ca-certificates.crt "$context/bin"
echo 'nonroot:x:65532:65532::/tmp:/sbin/nologin' >"$root/etc/passwd"
echo 'nonroot:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"

rm -f "$archives/stamp"
image "$base" "$archives/base.tar" "$context/base" >&2
for target in "${targets[@]}"; do
  image "kvasir.local/$target:test" "$archives/$target.tar" "$context" --file "$repository/Dockerfile" --target "$target" \
    --build-arg BASE_RUN="$base" --build-arg BINARIES=prebuilt >&2
done
echo "$stamp" >"$archives/stamp"
list
