"""Facts about this machine, gathered by inspecting it and by running small scripts on the labs' libraries."""

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
PROBE_TIMEOUT_S = 120.0  # the first import of TensorFlow from a network disk can take a minute
ERROR_LINES = 3  # number of a failed probe's last lines to show


class ProbeResult(NamedTuple):
    """The result of a probe: its output, and if it failed the last lines of its error."""

    output: str = ""
    error: str = ""


PROBES = ("onednn", "horovod", "daal4py", "openvino", "kernel", "jupyterlab")  # slow probes, which take seconds
NOT_TRIED = ProbeResult(error="not tried in a quick check")


@dataclass(frozen=True)
class Facts:
    """The facts that the checks judge.

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
        Free bytes on the checkout's disk.
    mpirun : str or None
        This environment's `mpirun`.
    other_mpi : str or None
        The folder in LD_LIBRARY_PATH whose MPI library shadows this environment's.
    data : tuple of FileStatus, or str
        The status of the labs' data, or why it is unknown.
    onednn, horovod, daal4py, openvino, kernel, jupyterlab : ProbeResult
        The results of these probes.
    numactl : ProbeResult or None
        The result of interleaving memory; None if numactl is not installed.
    network : ProbeResult
        Whether nodes with wires between them can be created, or why not.
    slurm : ProbeResult
        The available Slurm, or why none can be started here.
    torch : ProbeResult
        PyTorch's version, or why PyTorch scripts can't run here.
    limits : Limits or None
        Stored results of `lab roofline`, if any.
    shares : mapping of str to float
        For each instruction, the lowest share of its peak that the fastest FP32 matmul reached on the machines in
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
    """Inspect this machine and run the probes; `on_step` gets the name of each step as it starts.

    A quick check starts no TensorFlow, ranks or kernel: these probes are `NOT_TRIED`.
    """
    prefix = Path(sys.prefix).resolve()
    results = dict.fromkeys(PROBES, NOT_TRIED) if quick else _try_probes(on_step)
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
        limits=speed.stored_limits(),
        torch=ProbeResult(torch_ranks.version(), torch_ranks.obstacle()),
        shares=speed.usual_shares(),
        **results,
    )


def _try_probes(on_step: Callable[[str], None]) -> dict[str, ProbeResult]:
    """Run all `PROBES`; return their results by name."""
    # Ranks start from this thread, so that an interrupt ends them at once. The other probes run concurrently with them,
    # one at a time, as two cores can't run more.
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        futures = {
            "onednn": pool.submit(try_python, SCRIPTS / "onednn.py"),
            "openvino": pool.submit(try_python, SCRIPTS / "openvino_matmul.py"),
            "kernel": pool.submit(try_python, SCRIPTS / "kernel.py"),
            "jupyterlab": pool.submit(try_python, "-m", "jupyterlab", "--version"),
        }
        on_step("TensorFlow with oneDNN, and Horovod on 2 ranks")
        horovod = try_ranks(SCRIPTS / "allreduce_horovod.py")
        on_step("daal4py on 2 ranks, OpenVINO, and the notebooks' kernel")
        daal4py = try_ranks(SCRIPTS / "allreduce_daal4py.py")
        return {"horovod": horovod, "daal4py": daal4py} | {name: future.result() for name, future in futures.items()}
    finally:
        pool.shutdown(cancel_futures=True)


def try_python(*args: str | Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run this environment's Python with some arguments."""
    return try_command(sys.executable, *args, timeout=timeout)


def try_command(*argv: str | Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run a command and capture its standard output."""
    try:
        completed = processes.run(argv, timeout=timeout, separate_errors=True)
    except LabError as error:
        return ProbeResult(error=str(error))
    if completed.status is None:
        return ProbeResult(error=f"Timed out after {timeout:g} s")
    failure = "failed" if completed.status > 0 else completed.failure
    output = "\n".join(completed.lines).strip()
    return ProbeResult(output, _last_lines("\n".join([failure, *completed.errors])) if failure else "")


def try_ranks(script: Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run an allreduce probe on 2 ranks with 1 thread each; the output is rank 0's line about the sum."""
    try:
        run = run_ranks(2, script, threads=1, timeout=timeout, show=False)
    except LabError as error:
        return ProbeResult(error=_last_lines(str(error)))
    return ProbeResult(next(line for line in run.lines[0] if "sums correctly" in line))


def try_network() -> ProbeResult:
    """Create a small testbed, which takes a fraction of a second."""
    rights = "" if os.geteuid() == 0 else ", without root"
    return ProbeResult(f"can create nodes with wires between them{rights}", obstacle())


def try_slurm() -> ProbeResult:
    """Look for a Slurm cluster, or for the programs to start a small one on this machine."""
    try:
        slurm = cluster.find_slurm()
    except LabError as error:
        return ProbeResult(error=str(error))
    if slurm:
        kind = "a cluster" if slurm.kind == "real" else "a small cluster on this machine"
        return ProbeResult(f"{kind}; nodes: {slurm.nodes}, CPUs per node: {slurm.cpus_per_node}")
    return ProbeResult("no cluster; `./lab cluster up` starts one on this machine", cluster.obstacle())


def other_mpi(library_path: str, library_folder: Path) -> str | None:
    """Return the folder in LD_LIBRARY_PATH whose libmpi.so.12 shadows the one in `library_folder`, if any.

    The loader searches LD_LIBRARY_PATH before Horovod's and daal4py's own paths (RUNPATH, see ld.so(8)), and MPICH,
    Intel MPI and MVAPICH all use this library name. Modules on clusters set the variable.
    """
    for folder in filter(None, library_path.split(os.pathsep)):
        library = Path(folder, "libmpi.so.12")
        if library.exists():
            return None if library.resolve() == (library_folder / library.name).resolve() else folder
    return None


def _data() -> tuple[FileStatus, ...] | str:
    try:
        return tuple(mnist.status())
    except LabError as error:
        return str(error)


def _last_lines(text: str) -> str:
    """Return the first line (how the probe ended) and the last ones (why)."""
    first, *rest = [line.rstrip()[:300] for line in text.splitlines() if line.strip(" ^~")]  # not tracebacks' marks
    return "\n".join([first, *rest[-ERROR_LINES:]])
