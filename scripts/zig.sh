#!/usr/bin/env bash
# zig as the tools of an aarch64-linux-musl build, by the name it is called under: zig-cc, zig-c++, zig-ar, zig-ld
# (links to this file, which scripts/phone.sh makes). $KVASIR_ZIG is zig itself.
set -euo pipefail

zig=${KVASIR_ZIG:?set by scripts/phone.sh}
tool=${0##*/zig-}

# cc, CMake and rustc each name the target their own way; zig takes its own name of it only.
arguments=()
for argument in "$@"; do
  case $argument in
    --target=* | -march=armv8-a) continue ;;
  esac
  if [ "$tool" = ld ]; then
    # zig brings startup code, libc, unwinder and libc++ of one kind: those that rustc names stay out
    case $argument in
      */self-contained/* | *crt1.o | *crti.o | *crtn.o | *crtbegin*.o | *crtend*.o) continue ;;
      -nostartfiles | -nodefaultlibs | -lc | -lunwind | -lgcc | -lgcc_s | -lgcc_eh | -lstdc++) continue ;;
    esac
  fi
  arguments+=("$argument")
done

case $tool in
  ar) exec "$zig" ar "$@" ;;
  cc | c++) exec "$zig" "$tool" -target aarch64-linux-musl "${arguments[@]}" ;;
  ld) exec "$zig" c++ -target aarch64-linux-musl -static "${arguments[@]}" ;;
  *) echo "zig.sh: called as $0, which is none of its names" >&2; exit 1 ;;
esac
