#!/usr/bin/env bash
# Runs a model as a ring of three stages, each of which fetches its window from a web server, and asks one question:
# demo.sh [QUESTION]
set -euo pipefail
cd "$(dirname "$0")/.."

question=${1:-Why is the sky blue?}
cache=${KVASIR_CACHE:-$HOME/.cache/kvasir}
PATH=$PATH:/usr/sbin:$cache/nginx/usr/sbin # where nginx may be: scripts/install.sh
work=$(mktemp -d)
ring='' server=''

finish() {
  [ -z "$ring" ] || { kill "$ring" && wait "$ring"; } || true
  [ -z "$server" ] || { kill "$server" && wait "$server"; } || true
  rm -rf "$work"
}
trap finish EXIT
await() { # FILE, which the process PID writes
  until [ -s "$1" ]; do
    kill -0 "$2" 2>/dev/null || { echo "demo: there is no ${1##*/}" >&2; exit 1; }
    sleep 0.1
  done
}
free_port() {
  python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

echo '== A web server has the model. Any server will do that honours Range requests: this one is nginx.'
port=$(free_port)
cat >"$work/nginx.conf" <<END
daemon off;
master_process off; # one process, with our rights to read the file
pid $work/nginx.pid;
events {}
http {
  log_format bytes '\$body_bytes_sent';
  access_log $work/access.log bytes;
  client_body_temp_path $work/body;
  proxy_temp_path $work/proxy;
  fastcgi_temp_path $work/fastcgi;
  uwsgi_temp_path $work/uwsgi;
  scgi_temp_path $work/scgi;
  server { listen 127.0.0.1:$port; root $cache/models; }
}
END
nginx -c "$work/nginx.conf" -e "$work/error.log" &
server=$!
await "$work/nginx.pid" "$server"
sed "s|url: .*/|url: http://127.0.0.1:$port/|" examples/smollm2-135m.yaml >"$work/ring.yaml"
grep 'url:' "$work/ring.yaml"

echo
echo '== kvasir up: a process for each of three windows, and each fetches its own window.'
# one thread for each stage: on a busy machine, threads that share its cores spin while they wait for each other
bin/kvasir up "$work/ring.yaml" --dir "$work/ring" --port 0 --threads 1 --ready-file "$work/ready.json" &
ring=$!
await "$work/ready.json" "$ring"
awk '{ n += $1 } END { printf "the web server sent %.1f MB in %d answers\n", n / 1e6, NR }' "$work/access.log"

echo
echo "== kvasir chat: $question"
endpoint=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["endpoint"])' "$work/ready.json")
bin/kvasir chat --url "$endpoint" --temperature 0 --max-tokens 100 "$question"
