#!/usr/bin/env bash
# Starts a ring of three stages and drives it with the `openai` Python package: tests/python/openai_client.py.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${KVASIR_CACHE:-$HOME/.cache/kvasir}
kvasir=${CARGO_TARGET_DIR:-$cache/target}/release/kvasir
venv=$cache/openai-venv

work=$(mktemp -d)
sed -e 's|http:|file:|' -e "s|url: .*|path: $cache/models/SmolLM2-135M-Instruct.Q4_1.gguf|" \
  examples/smollm2-135m.yaml >"$work/ring.yaml"
# one thread for each stage: see tests/src/ring.rs
"$kvasir" up "$work/ring.yaml" --dir "$work/ring" --port 0 --threads 1 --ready-file "$work/ready.json" &
ring=$!
trap 'kill "$ring" 2>/dev/null && wait "$ring" || true; rm -rf "$work"' EXIT
until [ -s "$work/ready.json" ]; do
  kill -0 "$ring" 2>/dev/null || { echo 'the ring did not start' >&2; exit 1; }
  sleep 0.1
done
endpoint=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["endpoint"])' "$work/ready.json")
KVASIR_BASE_URL=$endpoint/v1 "$venv/bin/python" tests/python/openai_client.py
