# Building images without a registry, a daemon, or a trace outside the cache. Sourced after lib.sh.
# shellcheck shell=bash

LAYERS=$CACHE/cluster/layers.$$ # the caller removes it

run_buildah() {
  # these images come from here: there is no signature to be checked
  mkdir -p "$LAYERS"
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$LAYERS/policy.json"
  buildah --storage-driver vfs --root "$LAYERS/root" --runroot "$LAYERS/run" "$@"
}
# image NAME ARCHIVE FOLDER [OPTION...]: builds it; ARCHIVE is what load.sh takes
image() {
  local name=$1 archive=$2 folder=$3
  shift 3
  run_buildah build --quiet --isolation chroot --signature-policy "$LAYERS/policy.json" --tag "$name" "$@" "$folder" >/dev/null
  mkdir -p "$(dirname "$archive")"
  rm -f "$archive.new"
  run_buildah push --quiet --signature-policy "$LAYERS/policy.json" "$name" "oci-archive:$archive.new:$name"
  mv "$archive.new" "$archive"
}
