#!/bin/sh
# The environment's `mpirun` and `mpiexec`, which make a run on one machine listen on loopback only: they preload
# loopback.c into Hydra, unless an option, a variable or a batch system may name other machines.
self=$(readlink -f "$0")
bin=${self%/labkit/mpi/*}/.venv/bin
[ "${SLURM_JOB_NUM_NODES-}" != 1 ] || [ -z "${SLURMD_NODENAME-}" ] || export HYDRA_IFACE="${HYDRA_IFACE:-lo}"
[ "${HYDRA_IFACE-}" = lo ] && job= || job=${SLURM_JOB_ID-}
bootstrap=${HYDRA_BOOTSTRAP-}
[ "$bootstrap" != slurm ] || bootstrap=$job # Slurm 24.11 sets it in every job, on one node too
hosts=$job${HYDRA_HOST_FILE-}${HYDRA_LAUNCHER-}$bootstrap${HYDRA_RMK-}${PBS_NODEFILE-}${COBALT_NODEFILE-}
hosts=$hosts${LOADL_HOSTFILE-}${PE_HOSTFILE-}${LSB_HOSTS-}${LSB_MCPU_HOSTS-}${LSB_DJOB_HOSTFILE-}
# Hydra's own options end at the program: the first word that is neither an option nor an option's value.
program='' previous=''
for word; do
  if [ "$word" = : ]; then
    program='' previous=''
  elif [ -z "$program" ]; then
    case $word in
      -host* | --host* | -f | -H | -machine* | -configfile* | -launcher* | -bootstrap* | -rmk*) hosts=named ;;
      -*) ;;
      *) case $previous in -*) ;; *) program=$word ;; esac ;;
    esac
    case $previous in -genv | -env) previous=- ;; *) previous=$word ;; esac # these take two values
  fi
done
if [ -n "$hosts" ]; then
  export UCX_TLS="${UCX_TLS-all}"
elif library=$("$bin/python" -I -m labkit.mpi.loopback); then
  exec 9<"$library" # LD_PRELOAD is split at spaces, which the path may contain
  export LD_PRELOAD="/dev/fd/9${LD_PRELOAD:+:$LD_PRELOAD}"
fi
exec "$bin/mpiexec.hydra" "$@"
