#!/bin/sh
# Is called as the environment's `mpirun` and `mpiexec`, links to this: Hydra, which stays on this machine where all its
# ranks are here (typed.py).
here=$(readlink -f "$0")
exec "${here%/labkit/mpi/*}/.venv/bin/python" -I -m labkit.mpi.typed "$@"
