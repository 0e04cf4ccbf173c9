"""The doctor's probes: the facts of this machine, and small scripts that use the labs' libraries and programs."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from labkit.data import mnist
from labkit.data.mnist import FileStatus
from labkit.doctor import speed
from labkit.mpi import torch_ranks
from labkit.mpi.launch import run_ranks
from labkit.roofline.measure import Limits
from labkit.slurm import cluster
from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine
from labkit.system.paths import ROOT
from labkit.testbed import obstacle

SCRIPTS = Path(__file__).with_name("scripts")
PROBE_TIMEOUT_S = 120.0  # seconds for a probe; the first import of TensorFlow from a network disk can take a minute
ERROR_LINES = 3  # lines of a failed probe that are shown


class ProbeResult(NamedTuple):
    """The result of a probe: its output, and the last lines of its error if it failed."""

    output: str = ""
    error: str = ""


PROBES = ("onednn", "horovod", "daal4py", "openvino", "kernel", "jupyterlab")  # the probes that take seconds
NOT_TRIED = ProbeResult(error="not tried in a quick look")


@dataclass(frozen=True)
class Facts:
    """The facts that a judgement rests on.

    Attributes
    ----------
    system, python : str
        Such as "Linux x86_64" and "3.11.9".
    prefix : str
        The folder of the environment that runs the doctor.
    environ : mapping of str to str
        Environment variables.
    machine : Machine
        Cores, memory, instruction sets.
    disk_free : int
        The free bytes on the checkout's disk.
    mpirun : str or None
        This environment's.
    other_mpi : str or None
        The folder of LD_LIBRARY_PATH that hides this environment's MPI library behind another.
    data : tuple of FileStatus, or str
        The status of the labs' data; a reason when it cannot be told.
    onednn, horovod, daal4py, openvino, kernel, jupyterlab : ProbeResult
        The results of these probes.
    numactl : ProbeResult or None
        The result of interleaving memory; None where there is no such program.
    network : ProbeResult
        Whether nodes with wires between them can be made; why not when they cannot.
    slurm : ProbeResult
        Which Slurm there is to submit jobs to; why none can be started here when there is none.
    torch : ProbeResult
        PyTorch's version; why no script with it can run here when none can.
    limits : Limits or None
        What `lab roofline` has measured and kept; None where it has not.
    shares : mapping of str to float
        By instruction, the smallest share of its speed that the fastest FP32 matmul reached on the machines in
        `data/machines`.
    """

    system: str
    python: str
    prefix: str
    environ: Mapping[str, str]
    machine: Machine
    disk_free: int
    mpirun: str | None
    other_mpi: str | None
    data: tuple[FileStatus, ...] | str
    onednn: ProbeResult
    horovod: ProbeResult
    daal4py: ProbeResult
    openvino: ProbeResult
    kernel: ProbeResult
    jupyterlab: ProbeResult
    numactl: ProbeResult | None
    network: ProbeResult
    slurm: ProbeResult
    torch: ProbeResult
    limits: Limits | None = None
    shares: Mapping[str, float] = field(default_factory=dict)


def gather(on_step: Callable[[str], None], quick: bool = False) -> Facts:
    """Look at this machine and try what the labs need; `on_step` gets the name of each probe as it begins.

    A quick look starts no TensorFlow, ranks or kernel: these probes are `NOT_TRIED`.
    """
    prefix = Path(sys.prefix).resolve()
    tried = dict.fromkeys(PROBES, NOT_TRIED) if quick else _try_probes(on_step)
    return Facts(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        prefix=str(prefix),
        environ=dict(os.environ),
        machine=usable_machine(),
        disk_free=shutil.disk_usage(ROOT).free,
        mpirun=shutil.which("mpirun", path=prefix / "bin"),
        other_mpi=other_mpi(os.environ.get("LD_LIBRARY_PATH", ""), prefix / "lib"),
        data=_data(),
        numactl=try_command("numactl", "--interleave=all", "true") if shutil.which("numactl") else None,
        network=try_network(),
        slurm=try_slurm(),
        limits=speed.kept_limits(),
        torch=ProbeResult(torch_ranks.version(), torch_ranks.obstacle()),
        shares=speed.usual_shares(),
        **tried,
    )


def _try_probes(on_step: Callable[[str], None]) -> dict[str, ProbeResult]:
    """Try each of `PROBES`; return the results by name."""
    # Ranks start from this thread, so that an interrupt ends them at once. The other probes run one after the other
    # beside them: two cores have no room for more.
    beside = ThreadPoolExecutor(max_workers=1)
    try:
        others = {
            "onednn": beside.submit(try_python, SCRIPTS / "onednn.py"),
            "openvino": beside.submit(try_python, SCRIPTS / "openvino_matmul.py"),
            "kernel": beside.submit(try_python, SCRIPTS / "kernel.py"),
            "jupyterlab": beside.submit(try_python, "-m", "jupyterlab", "--version"),
        }
        on_step("TensorFlow with oneDNN, and Horovod on 2 ranks")
        horovod = try_ranks(SCRIPTS / "allreduce_horovod.py")
        on_step("daal4py on 2 ranks, OpenVINO, and the notebooks' kernel")
        daal4py = try_ranks(SCRIPTS / "allreduce_daal4py.py")
        return {"horovod": horovod, "daal4py": daal4py} | {name: other.result() for name, other in others.items()}
    finally:
        beside.shutdown(cancel_futures=True)


def try_python(*args: str | Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run this environment's Python with these arguments."""
    return try_command(sys.executable, *args, timeout=timeout)


def try_command(*argv: str | Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run a command; its output is what it prints on stdout."""
    try:
        ended = processes.run(argv, timeout=timeout, separate_errors=True)
    except LabError as error:
        return ProbeResult(error=str(error))
    if ended.status is None:
        return ProbeResult(error=f"Not over after {timeout:g} s")
    how = "failed" if ended.status > 0 else ended.failure
    output = "\n".join(ended.lines).strip()
    return ProbeResult(output, _last_lines("\n".join([how, *ended.errors])) if how else "")


def try_ranks(script: Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run an allreduce probe on 2 ranks of 1 thread; its output is rank 0's line on the sum."""
    try:
        run = run_ranks(2, script, threads=1, timeout=timeout, show=False)
    except LabError as error:
        return ProbeResult(error=_last_lines(str(error)))
    return ProbeResult(next(line for line in run.lines[0] if line.startswith("the sum")))


def try_network() -> ProbeResult:
    """Make a small testbed, which takes a fraction of a second."""
    rights = "" if os.geteuid() == 0 else ", without root"
    return ProbeResult(f"nodes with wires between them can be made{rights}", obstacle())


def try_slurm() -> ProbeResult:
    """Look for a cluster, and for the programs that a small one on this machine needs."""
    try:
        slurm = cluster.find_slurm()
    except LabError as error:
        return ProbeResult(error=str(error))
    if slurm:
        kind = "a cluster" if slurm.kind == "real" else "a small one on this machine, up"
        return ProbeResult(f"{kind}; nodes: {slurm.nodes}, CPUs of each: {slurm.cpus_per_node}")
    return ProbeResult("no cluster, but a small one can be started: `./lab cluster up`", cluster.obstacle())


def other_mpi(library_path: str, own: Path) -> str | None:
    """Return the folder of LD_LIBRARY_PATH whose libmpi.so.12 is loaded instead of the one in `own`, if there is one.

    The loader looks there before it follows Horovod's and daal4py's own paths (RUNPATH, see ld.so(8)), and MPICH,
    Intel MPI and MVAPICH all call their library so. Modules on clusters set the variable.
    """
    for folder in filter(None, library_path.split(os.pathsep)):
        library = Path(folder, "libmpi.so.12")
        if library.exists():
            return None if library.resolve() == (own / library.name).resolve() else folder
    return None


def _data() -> tuple[FileStatus, ...] | str:
    try:
        return tuple(mnist.status())
    except LabError as error:
        return str(error)


def _last_lines(text: str) -> str:
    """Return the first line, which says how it ended, and the last ones, which say why."""
    first, *rest = [line.rstrip()[:300] for line in text.splitlines() if line.strip(" ^~")]  # not tracebacks' marks
    return "\n".join([first, *rest[-ERROR_LINES:]])
