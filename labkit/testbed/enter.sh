#!/bin/sh
# Replaces ssh for mpirun: `enter.sh [-OPTION …] ADDRESS COMMAND…` runs the command on the testbed node with this address,
# on the node's cores. LAB_NETWORK names a file with one line per node: its address, its CPUs, and the command that
# enters its namespaces (labkit/testbed/testbed.py).
while [ "${1#-}" != "$1" ]; do
    shift
done
address=$1
shift
while read -r known cpus enter <&3; do # stdin is the command's
    [ "$known" != "$address" ] || exec $enter taskset -c "$cpus" sh -c "$*" 3<&-
done 3<"$LAB_NETWORK"
echo "lab: no node of this testbed has the address $address." >&2
exit 2
