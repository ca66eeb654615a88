#!/usr/bin/env bash
# Builds `kvasir` for phones into bin/kvasir-aarch64: one static aarch64 file, which needs nothing of the system it runs
# on. zig is the C and C++ compiler and the linker. The standard library is rustup's, or built from Debian's source.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${KVASIR_CACHE:-$HOME/.cache/kvasir}
target=aarch64-unknown-linux-musl
die() { printf 'phone: %s\n' "$*" >&2; exit 1; }

# scripts/install.sh puts one version there
zig=$(compgen -G "$cache/zig-*/ziglang" | sort --version-sort | tail -n 1) || true
[ -x "$zig/zig" ] || die "there is no zig in $cache: run 'scripts/install.sh phone'"
export KVASIR_ZIG=$zig/zig

# A target folder of its own: the host's is not built again when the two take turns. The tools' paths are the same for all
# checkouts, since cargo builds again what is built by other tools.
build=$cache/phone
mkdir -p "$build/tools"
for tool in cc c++ ar ld; do
  ln -sfn "$PWD/scripts/zig.sh" "$build/tools/zig-$tool"
done
export CARGO_TARGET_DIR=$build/target
export ZIG_GLOBAL_CACHE_DIR=$build/zig ZIG_LOCAL_CACHE_DIR=$build/zig
export CC_aarch64_unknown_linux_musl=$build/tools/zig-cc
export CXX_aarch64_unknown_linux_musl=$build/tools/zig-c++
export AR_aarch64_unknown_linux_musl=$build/tools/zig-ar
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=$build/tools/zig-ld
# libc++ comes with the linker
export CXXSTDLIB_aarch64_unknown_linux_musl=
# bindgen reads llama.cpp's headers with the host's libclang, and musl's where they include a libc's
headers=$zig/lib/libc/include
export BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_musl="-isystem $headers/aarch64-linux-musl -isystem $headers/generic-musl"
# the host's OpenSSL is no use there
export CMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON
# built once and shipped: small and fast, where the host's build is quick to build again
export CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_STRIP=symbols

options=(--locked --release --package kvasir-cli --bin kvasir --target "$target")
library=$(rustc --print sysroot)/lib/rustlib
if [ ! -d "$library/$target/lib" ] && [ ! -e "$library/src/rust/library/Cargo.toml" ]; then
  # rustup's has neither: Debian's, beside it, has the source
  PATH=/usr/bin:$PATH
  library=$(rustc --print sysroot)/lib/rustlib
fi
if [ ! -d "$library/$target/lib" ]; then
  [ -e "$library/src/rust/library/Cargo.toml" ] ||
    die "rustc has neither the standard library for $target nor its source: run 'scripts/install.sh phone'"
  # -Zbuild-std is no stable option yet
  export RUSTC_BOOTSTRAP=1
  options+=('-Zbuild-std=std,panic_abort')
fi
# zig-ld takes a compiler's options; by its name rustc would take it for a bare linker
cargo rustc "${options[@]}" -- -C linker-flavor=gcc
install -D "$CARGO_TARGET_DIR/$target/release/kvasir" bin/kvasir-aarch64
