#!/usr/bin/env bash
# Installs what this machine lacks, through apt, rustup and pip: install.sh build | demo | test | phone
set -euo pipefail

purpose=${1:?build, demo, test or phone}
cache=${KVASIR_CACHE:-$HOME/.cache/kvasir}
oldest_rust=1.89
# for phones: zig is compiler, linker, musl and libc++ in one, and comes as a Python package
phone_target=aarch64-unknown-linux-musl zig=0.15.2

die() { printf 'install: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null; }
for_() { # PURPOSE...: whether this is one of them
  local any
  for any in "$@"; do [ "$purpose" != "$any" ] || return 0; done
  return 1
}
at_least() { # OLDEST VERSION
  printf '%s\n' "$1" "$2" | sort --check=quiet --version-sort
}
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif have sudo; then sudo "$@"
  else die "this needs root, and there is no sudo: $*"
  fi
}
update_lists() { # once
  [ -z "${lists_updated:-}" ] || return 0
  as_root apt-get update --quiet=2
  lists_updated=yes
}
candidate() { # PACKAGE: the version that apt would install, or nothing
  LC_ALL=C apt-cache policy "$1" | awk '$1 == "Candidate:" && $2 != "(none)" { print $2 }'
}

# llama.cpp is built for processors from about 2015 on; on an older one it would die of an illegal instruction later.
if [ "$(uname -m)" = x86_64 ]; then
  for feature in avx2 bmi2 f16c fma; do
    grep --quiet --word-regexp "$feature" /proc/cpuinfo || die "this processor lacks ${feature^^}, which llama.cpp needs"
  done
fi

missing=()
have c++ || missing+=(build-essential)
have cmake || missing+=(cmake)
# bindgen reads llama.cpp's headers with libclang, and asks clang where the compiler's own headers are
have clang || missing+=(clang)
compgen -G '/usr/lib/llvm-*/lib/libclang.so' >/dev/null || [ -n "${LIBCLANG_PATH:-}" ] || missing+=(libclang-dev)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
if [ "$purpose" != build ]; then
  python3 -m pip --version &>/dev/null || missing+=(python3-pip)
fi
if [ "$purpose" = test ]; then
  python3 -c 'import ensurepip' &>/dev/null || missing+=(python3-venv)
  have shellcheck || missing+=(shellcheck)
  # a device behind a router of its own
  have ip || missing+=(iproute2)
  have nft || [ -x /usr/sbin/nft ] || missing+=(nftables)
  have sysctl || [ -x /usr/sbin/sysctl ] || missing+=(procps)
  # the tests start a server of their own; the package's own server, where it starts one, is left alone
  compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
  # runs the program for phones
  have qemu-aarch64 || have qemu-aarch64-static || missing+=(qemu-user)
fi

rust=yes
have cargo && have rustc && at_least "$oldest_rust" "$(rustc --version | cut -d ' ' -f 2)" || rust=
if [ "$purpose" = test ] && [ -n "$rust" ]; then
  have cargo-clippy && have cargo-fmt || rust=
fi
if [ -z "$rust" ]; then
  # two toolchains in one PATH would shadow each other
  have rustup && die "rustup is here, but no Rust $oldest_rust with clippy and rustfmt: run 'rustup update' first"
  missing+=(rustc-web cargo-web rust-web-clippy rustfmt-web)
fi
if for_ phone test; then
  # the standard library for phones: rustup has it built, Debian has its source
  if have rustup; then
    if ! rustup --quiet target add "$phone_target"; then
      echo "install: rustup can't fetch the standard library for $phone_target: Debian's Rust builds it from source"
      [ -e /usr/lib/rustlib/src/rust/library/Cargo.toml ] || missing+=(rustc-web cargo-web rust-web-src)
    fi
  elif [ -z "$rust" ] || [ "$(rustc --print sysroot)" = /usr ]; then
    [ -e /usr/lib/rustlib/src/rust/library/Cargo.toml ] || missing+=(rust-web-src)
  elif [ ! -d "$(rustc --print sysroot)/lib/rustlib/$phone_target/lib" ]; then
    die "this Rust is neither rustup's nor Debian's: put its standard library for $phone_target beside it"
  fi
fi

if [ ${#missing[@]} -gt 0 ]; then
  have apt-get || die "there is no apt here; install these by hand: ${missing[*]}"
  echo "install: ${missing[*]}"
  update_lists
  if [ -z "$rust" ] && ! at_least "$oldest_rust" "$(candidate rustc-web)"; then
    die "apt has no Rust $oldest_rust or newer: add the suite bookworm-security to apt's sources"
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}"
fi

if for_ phone test && [ ! -x "$cache/zig-$zig/ziglang/zig" ]; then
  echo "install: zig $zig, into $cache"
  PIP_ROOT_USER_ACTION=ignore \
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$cache/zig-$zig" "ziglang==$zig"
fi

# Only nginx's program is wanted: its package would start a web server on port 80.
if for_ demo test && ! have nginx && [ ! -x /usr/sbin/nginx ] && [ ! -x "$cache/nginx/usr/sbin/nginx" ]; then
  echo "install: nginx, into $cache"
  update_lists
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  (cd "$folder" && apt-get download --quiet=2 --option APT::Sandbox::User=root nginx)
  mkdir -p "$cache/nginx"
  dpkg-deb --extract "$folder"/nginx_*.deb "$cache/nginx"
fi

# The client that the API is driven with.
if [ "$purpose" = test ]; then
  venv=$cache/openai-venv openai=3.57.0
  if [ "$("$venv/bin/python" -c 'import openai; print(openai.__version__)' 2>/dev/null)" != "$openai" ]; then
    echo "install: the Python package openai $openai, into $cache"
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "openai==$openai"
  fi
fi

# The cluster that operator and charts are tested on.
if [ "$purpose" = test ]; then
  tests/cluster/install.sh
fi
