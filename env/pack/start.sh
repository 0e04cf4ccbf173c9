#!/bin/sh
# Unpacks the kit of this pack as cpu-labs and sets it up, without a network: sh PACK/start.sh [FOLDER, else your home]
set -eu
unset CDPATH # with it, `cd` looks elsewhere, and prints
pack=$(cd "$(dirname "$0")" && pwd)

stop() {
  printf 'start.sh: %s\n' "$*" >&2
  exit 2
}

cd "${1:-$HOME}" 2>/dev/null || stop "there is no folder ${1:-$HOME}."
[ ! -e cpu-labs/.git ] || stop "$PWD/cpu-labs is a git checkout: name another folder, sh start.sh FOLDER."
(cd "$pack" && grep ' kit\.tar\.gz$' SHA256SUMS | sha256sum --check --status) 2>/dev/null ||
  stop "kit.tar.gz is damaged or missing in $pack: copy the pack anew."
tar xzf "$pack/kit.tar.gz" || stop "the kit cannot be unpacked into $PWD: name another folder, sh start.sh FOLDER."
exec cpu-labs/lab setup --from "$pack"
