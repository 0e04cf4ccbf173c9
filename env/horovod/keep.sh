#!/usr/bin/env bash
# What CMake calls in the compiler's place: keep.sh SOURCE KIT COMPILER ARGUMENTS... The object is kept in $LABKIT_OBJECTS
# until Horovod is built, so that a build that was interrupted goes on: uv begins each in another folder, SOURCE, and where
# KIT has a blank in its path, it is reached by another link each time.
set -euo pipefail
source=$1 kit=$2
shift 2

object='' option=''
for argument; do
  [[ $option != -o ]] || object=$argument
  option=$argument
done
if [[ -z $object || ! -f ${*: -1} ]]; then exec "$@"; fi

call=$*
call=${call//"$source"/SOURCE}
kept=$LABKIT_OBJECTS/$({ echo "${call//"$kit"/KIT}"; "$1" --version; cat "${*: -1}"; } | sha256sum | cut -c1-64)
if [[ -f $kept ]]; then
  cp "$kept" "$object"
else
  "$@"
  mkdir -p "$LABKIT_OBJECTS"
  cp "$object" "$kept.$$"
  mv "$kept.$$" "$kept"
fi
