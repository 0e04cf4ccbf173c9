"""`mpirun` and `mpiexec` as one types them: Hydra, told to stay on this machine where all its ranks are here.

`python -m labkit.mpi.typed ARGUMENTS…` becomes Hydra, with the arguments unchanged. `mpirun.sh` calls it; set-up puts
that in the place of MPICH's own programs (`keep_mpi_here` in the script `lab`). Ranks that a command or a batch system
sends to other machines use the network as ever.
"""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from labkit.mpi import loopback
from labkit.mpi.mpirun import BIN
from labkit.mpi.planning import HYDRA, MAX_RANKS_PER_CORE, hydra_variables, reach_of, ucx_variables
from labkit.system import preload
from labkit.system.errors import LabError

# Hydra's options (mpiexec.hydra --help, MPICH 5.0.2) that lead to other machines, unless with one of these values.
HERE = frozenset({"localhost", "127.0.0.1", socket.gethostname()})
LAUNCHERS_HERE = frozenset({"fork"})
ELSEWHERE = {
    **dict.fromkeys(("hosts", "host", "hostlist", "H"), HERE),
    **dict.fromkeys(("launcher", "bootstrap", "rmk"), LAUNCHERS_HERE),
    **dict.fromkeys(("f", "hostfile", "machinefile", "machine", "configfile"), frozenset[str]()),
}
# The number of values that follow an option, where it is not one.
VALUES = {
    **dict.fromkeys(("genv", "env"), 2),
    **dict.fromkeys(("genvall", "genvnone", "envall", "envnone", "info", "version", "help", "h", "l", "v"), 0),
    **dict.fromkeys(("verbose", "profile", "prepend-rank", "print-all-exitcodes", "pmi-port", "hybrid-hosts"), 0),
    **dict.fromkeys(("enable-x", "disable-x", "disable-auto-cleanup", "disable-hostname-propagation"), 0),
    "skip-launch-node": 0,
}
# Variables by which Hydra learns of other machines, from whoever started it or from a batch system that is not Slurm.
ELSEWHERE_VARIABLES = (
    *("HYDRA_HOST_FILE", "HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "HYDRA_RMK"),
    *("PBS_NODEFILE", "COBALT_NODEFILE", "LOADL_HOSTFILE", "PE_HOSTFILE"),
    *("LSB_MCPU_HOSTS", "LSB_HOSTS", "LSB_DJOB_HOSTFILE"),
)


def main(args: Sequence[str]) -> None:
    """Replace this process by Hydra, with the variables that keep it on this machine where its ranks are here."""
    try:
        if leads_elsewhere(args, os.environ):
            os.environ.setdefault("UCX_TLS", "all")
        else:
            _stay_here()
        os.execv(BIN / HYDRA, [str(BIN / HYDRA), *args])
    except (LabError, OSError) as error:  # such as a Hydra that is not there
        print(f"lab: cannot start mpirun: {error}", file=sys.stderr)
        sys.exit(2)


def leads_elsewhere(args: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the command or its variables name other machines than this one; a Slurm job's are another matter."""
    named = (
        {host.partition(":")[0] for host in value.split(",")} - ELSEWHERE[name]  # a host may have its number of ranks
        for name, value in _options(args)
        if name in ELSEWHERE
    )
    return any(named) or any(environ.get(name, "") not in ("", *LAUNCHERS_HERE) for name in ELSEWHERE_VARIABLES)


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield Hydra's options, each with its first value; those of several programs stand between colons."""
    words = iter(args)
    for word in words:
        if not word.startswith("-"):  # a program: the words after it are its own
            while word != ":":
                word = next(words, ":")
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        values = [value] if has_value else [next(words, "") for _ in range(VALUES.get(name, 1))]
        yield name, next(iter(values), "")


def _stay_here() -> None:
    """Should all ranks be here, have Hydra listen nowhere, and them use shared memory alone."""
    reach = reach_of(os.environ)
    ranks = MAX_RANKS_PER_CORE * len(os.sched_getaffinity(0))
    for name, value in (ucx_variables(ranks, reach, os.environ) | hydra_variables(reach)).items():
        os.environ.setdefault(name, str(value))
    if not reach.local:
        return
    with tempfile.TemporaryDirectory() as spare:
        if not (library := loopback.library(Path(spare))):
            print(loopback.OPEN_PORT_WARNING, file=sys.stderr)
            return
        descriptor = os.open(library, os.O_RDONLY)  # the path may have blanks, or be gone in a moment
    os.set_inheritable(descriptor, True)
    os.environ |= preload.variables(f"/dev/fd/{descriptor}", os.environ)


if __name__ == "__main__":
    main(sys.argv[1:])
