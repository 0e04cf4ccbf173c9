"""Can this machine run each lab, and what to do if not?

`gather` looks at the world; `judge` makes findings and verdicts of what it saw, and touches nothing.
"""

import dataclasses
import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labkit.data import datasets
from labkit.data.datasets import FileStatus
from labkit.display import onednn
from labkit.mpi.launch import run_ranks
from labkit.slurm import cluster
from labkit.system.errors import LabError
from labkit.system.machine import Machine, this_machine
from labkit.system.paths import OPENMP_PYTHON, ROOT, shown
from labkit.system.progress import progress

Status = Literal["ok", "warn", "fail"]


class Lab(NamedTuple):
    """A lab and the checks it rests on, by name.

    It cannot run when one that it `needs` fails. What fails of `better_with` only makes it less interesting.
    """

    name: str
    needs: tuple[str, ...]
    better_with: tuple[str, ...] = ()


NOTEBOOK = ("system", "Python", "JupyterLab", "kernel", "disk")
TENSORFLOW = (*NOTEBOOK, "ISA", "memory", "TensorFlow")

# A new lab is a line here.
LABS = (
    Lab("00 Welcome", needs=(*NOTEBOOK, "MPI"), better_with=("cores",)),
    Lab("01 TensorFlow graphs", needs=(*TENSORFLOW, "MPI"), better_with=("cores", "oneDNN")),
    Lab("02 oneDNN under an MNIST CNN", needs=(*TENSORFLOW, "MPI", "data"), better_with=("cores",)),
    Lab(
        "03 ResNet-50, from default to fast",
        needs=(*TENSORFLOW, "MPI"),
        better_with=("cores", "oneDNN", "OpenMP build", "numactl"),
    ),
    Lab("04 Fewer bits", needs=(*TENSORFLOW, "MPI", "data"), better_with=("oneDNN",)),
    Lab("05 Let a program tune it", needs=TENSORFLOW, better_with=("cores", "OpenMP build")),
    Lab("06 How gradients travel", needs=(*NOTEBOOK, "memory", "MPI", "data"), better_with=("cores",)),
    Lab(
        "07 Horovod on the MNIST CNN",
        needs=(*TENSORFLOW, "MPI", "Horovod", "data"),
        better_with=("cores", "oneDNN"),
    ),
    Lab(
        "08 ResNet-50 on a cluster",
        needs=(*TENSORFLOW, "MPI", "Horovod"),
        better_with=("cores", "oneDNN", "Slurm"),
    ),
    Lab("09 K-Means with daal4py", needs=(*NOTEBOOK, "memory", "MPI", "daal4py"), better_with=("cores",)),
)

PROBES = Path(__file__).with_name("probes")
TIME_LIMIT = 120.0  # seconds for a probe; the first import of TensorFlow from a network disk can take a minute
CANNOT_START = "cannot start"
TAIL = 3  # lines of a failed probe that are shown
GIB = 2**30

# Lab 07 has up to 4 ranks. Each takes 0.75 GB of its own with the 8,000 built-in digits, 0.95 GB with all of MNIST, of
# which TensorFlow and Horovod take 0.63 GB before the first step (peak USS, TensorFlow 2.21 on x86-64; measured with
# the lab's network). JupyterLab and the notebook's kernel come on top. Lab 03's ResNet-50 takes less: 2.5 GB in one
# process at batch 16, in either environment (peak RSS).
MEMORY_NEEDED = 4 * 0.75e9 + 0.5e9
MEMORY_WANTED = 4 * 0.95e9 + 0.5e9
# What the labs write: checkpoints and timelines of some tens of MB, and MNIST once, 11 MB.
DISK_NEEDED = 0.2e9
DISK_WANTED = 1e9

ANEW = "make the environment anew: `rm -rf .venv && ./lab setup`"
OPENMP_ANEW = "make its environment anew: `rm -rf env/openmp/.venv && ./lab setup`"


class Finding(NamedTuple):
    """What one check found.

    Attributes
    ----------
    name : str
        The check, a key of `CHECKS`.
    status : {"ok", "warn", "fail"}
        Whether that is good enough.
    seen : str
        What was seen; of a probe that failed, its last lines.
    fix : str
        What to do about it; empty when nothing need be done.
    """

    name: str
    status: Status
    seen: str
    fix: str


class Verdict(NamedTuple):
    """Whether a lab can run ("ok"), can run, but … ("warn"), or cannot ("fail"), and the findings that make it so."""

    lab: str
    status: Status
    because: tuple[Finding, ...]


@dataclass(frozen=True)
class Report:
    """What `examine` found; as a str it is plain text of at most 100 columns."""

    machine: Machine
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether every lab can run."""
        return all(verdict.status != "fail" for verdict in self.verdicts)

    def as_dict(self) -> dict:
        """Return all of it as `json.dumps` takes it; programs may rely on the keys."""
        return {
            "ok": self.ok,
            "machine": dataclasses.asdict(self.machine) | {"usable_cores": self.machine.usable_cores},
            "checks": [finding._asdict() for finding in self.findings],
            "labs": [
                {
                    "lab": verdict.lab,
                    "status": verdict.status,
                    "because": [finding.name for finding in verdict.because],
                    "fix": _fixes(verdict),
                }
                for verdict in self.verdicts
            ],
        }

    def __str__(self) -> str:
        """Return what `render` shows."""
        text = io.StringIO()
        render(self, Console(file=text, width=100, color_system=None, force_jupyter=False))
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def examine() -> Report:
    """Look at this machine and judge it. It takes about half a minute, and tells meanwhile what it is trying."""
    with progress("Looking at this machine …") as tell:
        facts = gather(lambda step: tell(f"Trying {step} …"))
    return judge(facts)


# --- What is seen -----------------------------------------------------------------------------------------------------


class Tried(NamedTuple):
    """What came of something that may fail: what it printed, and the last lines of its error if it did fail."""

    gave: str = ""
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """All that a judgement rests on.

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
        Bytes, where the checkout is.
    mpirun, typed_mpirun : str or None
        This environment's, and the one that typing `mpirun` starts.
    other_mpi : str or None
        The folder of LD_LIBRARY_PATH that hides this environment's MPI library behind another.
    data : tuple of FileStatus, or str
        What the labs read; the reason why when that cannot be told.
    onednn, horovod, daal4py, kernel, jupyterlab, openmp : Tried
        What came of these probes.
    numactl : Tried or None
        What came of interleaving memory; None where there is no such program.
    slurm : Tried
        Which Slurm there is to submit jobs to; why none can be started here when there is none.
    """

    system: str
    python: str
    prefix: str
    environ: Mapping[str, str]
    machine: Machine
    disk_free: int
    mpirun: str | None
    typed_mpirun: str | None
    other_mpi: str | None
    data: tuple[FileStatus, ...] | str
    onednn: Tried
    horovod: Tried
    daal4py: Tried
    kernel: Tried
    jupyterlab: Tried
    openmp: Tried
    numactl: Tried | None
    slurm: Tried


def gather(tell: Callable[[str], None]) -> Facts:
    """Look at this machine and try what the labs need; `tell` is called with what is being tried."""
    prefix = Path(sys.prefix).resolve()
    # Ranks start from this thread, so that an interrupt ends them at once. The other probes run one after the other
    # beside them: two cores have no room for more.
    beside = ThreadPoolExecutor(max_workers=1)
    try:
        onednn = beside.submit(try_python, PROBES / "onednn.py")
        kernel = beside.submit(try_python, PROBES / "kernel.py")
        jupyterlab = beside.submit(try_python, "-m", "jupyterlab", "--version")
        openmp = beside.submit(try_command, OPENMP_PYTHON, PROBES / "onednn.py")
        tell("TensorFlow with oneDNN, and Horovod on 2 ranks")
        horovod = try_ranks(PROBES / "allreduce_horovod.py")
        tell("daal4py on 2 ranks, and the notebooks' kernel")
        daal4py = try_ranks(PROBES / "allreduce_daal4py.py")
        return Facts(
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            prefix=str(prefix),
            environ=dict(os.environ),
            machine=this_machine(),
            disk_free=shutil.disk_usage(ROOT).free,
            mpirun=shutil.which("mpirun", path=prefix / "bin"),
            typed_mpirun=shutil.which("mpirun"),
            other_mpi=other_mpi(os.environ.get("LD_LIBRARY_PATH", ""), prefix / "lib"),
            data=_data(),
            onednn=onednn.result(),
            horovod=horovod,
            daal4py=daal4py,
            kernel=kernel.result(),
            jupyterlab=jupyterlab.result(),
            openmp=openmp.result(),
            numactl=try_command("numactl", "--interleave=all", "true") if shutil.which("numactl") else None,
            slurm=try_slurm(),
        )
    finally:
        beside.shutdown(cancel_futures=True)


def try_python(*args: str | Path, timeout: float = TIME_LIMIT) -> Tried:
    """Run this environment's Python with these arguments."""
    return try_command(sys.executable, *args, timeout=timeout)


def try_command(*argv: str | Path, timeout: float = TIME_LIMIT) -> Tried:
    """Run a command; what it printed on stdout is what it gave."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except OSError as error:
        return Tried(error=f"{CANNOT_START} {shown(Path(argv[0]))}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Tried(error=f"Not over after {timeout:g} s")
    how = f"killed by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "failed"
    return Tried(done.stdout.strip(), _last_lines(f"{how}\n{done.stderr}") if done.returncode else "")


def try_ranks(script: Path, timeout: float = TIME_LIMIT) -> Tried:
    """Run an allreduce probe on 2 ranks of 1 thread; what rank 0 said of the sum is what it gave."""
    try:
        run = run_ranks(2, script, threads=1, timeout=timeout, show=False)
    except LabError as error:
        return Tried(error=_last_lines(str(error)))
    return Tried(next(line for line in run.lines[0] if line.startswith("the sum")))


def try_slurm() -> Tried:
    """Look for a cluster, and for what a small one on this machine takes."""
    try:
        there = cluster.here()
    except LabError as error:
        return Tried(error=str(error))
    if there:
        kind = "a cluster" if there.kind == "real" else "a small one on this machine, up"
        return Tried(f"{kind}; nodes: {there.nodes}, CPUs of each: {there.cpus_a_node}")
    return Tried("no cluster, but a small one can be started: `./lab cluster up`", cluster.why_not())


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
        return tuple(datasets.status())
    except LabError as error:
        return str(error)


def _last_lines(text: str) -> str:
    """Return the first line, which says how it ended, and the last ones, which say why."""
    first, *rest = [line.rstrip()[:300] for line in text.splitlines() if line.strip(" ^~")]  # not tracebacks' marks
    return "\n".join([first, *rest[-TAIL:]])


# --- What it means ----------------------------------------------------------------------------------------------------
# A check takes the facts and gives the status, what was seen, and the fix.

Judged = tuple[Status, str, str]
OTHER_CPU = "use a CPU, or a CPU type of the virtual machine, with AVX2"
MORE_MEMORY = "use a machine with 4 GiB of memory or more, or raise the container's or job's limit to that"
RESTART = ", and start JupyterLab again from there"


def _unset(*variables: str) -> str:
    return f"`unset {' '.join(variables)}`{RESTART}"


def _system(facts: Facts) -> Judged:
    if facts.system == "Linux x86_64":
        return "ok", facts.system, ""
    return "fail", facts.system, "use Linux on x86-64: another machine, a virtual one, or WSL 2 on Windows"


def _python(facts: Facts) -> Judged:
    seen = f"{facts.python} in {shown(Path(facts.prefix))}"
    if not facts.python.startswith("3.11."):
        return "fail", f"{seen}; the packages are locked for 3.11", ANEW
    if path := facts.environ.get("PYTHONPATH"):
        return "warn", f"{seen}, but packages in PYTHONPATH={path} come first", _unset("PYTHONPATH")
    return "ok", seen, ""


def _cores(facts: Facts) -> Judged:
    cores, quota, usable = len(facts.machine.cores), facts.machine.quota, facts.machine.usable_cores
    limit = f" of {cores}: the CPU quota is {quota:g}" if quota is not None and quota < cores else ""
    if usable > 1:
        return "ok", f"{usable} usable{limit}", ""
    seen = f"1 usable{limit}; more ranks or threads cannot make anything faster"
    if cores > 1:
        return "warn", seen, "raise the CPU quota to 2 or more (docker run --cpus 2, Kubernetes limits.cpu)"
    return "warn", seen, "use a machine, virtual machine or job with 2 cores or more (in Slurm: -c 2)"


def _memory(facts: Facts) -> Judged:
    total, free = facts.machine.memory, facts.machine.memory_free
    seen = f"{total / GIB:.1f} GiB, {free / GIB:.1f} free"
    if total < MEMORY_NEEDED:
        seen += f"; 4 ranks and a notebook need {MEMORY_NEEDED / GIB:.1f}"
        return "fail", seen, MORE_MEMORY
    if free < MEMORY_WANTED:
        seen += f"; 4 ranks with all of MNIST and a notebook take {MEMORY_WANTED / GIB:.1f}"
        return "warn", seen, "shut down kernels and programs that you don't need"
    return "ok", seen, ""


def _disk(facts: Facts) -> Judged:
    seen = f"{facts.disk_free / GIB:.1f} GiB free where this folder is"
    if facts.disk_free >= DISK_WANTED:
        return "ok", seen, ""
    return "fail" if facts.disk_free < DISK_NEEDED else "warn", seen, "free 1 GiB there: the labs write checkpoints"


def _instruction_sets(facts: Facts) -> Judged:
    isa = facts.machine.isa
    # TensorFlow's wheel is compiled for AVX, and its import aborts without: its log at start, which names what else
    # this CPU has ("To enable the following instructions: AVX2 …"), leaves AVX out.
    if "AVX" not in isa:
        return "fail", "no AVX, which TensorFlow is compiled for", OTHER_CPU
    if "AVX2" not in isa:
        return "warn", "no AVX2: TensorFlow is slow", OTHER_CPU
    names = ("AVX2", "AVX-512", "VNNI", "BF16", "AMX")
    there, absent = (", ".join(name for name in names if (name in isa) is wanted) for wanted in (True, False))
    return "ok", f"{there}; no {absent}" if absent else there, ""


def _numa(facts: Facts) -> Judged:
    nodes = facts.machine.numa
    sizes = " + ".join(str(len(node)) for node in nodes)
    return "ok", f"{len(nodes)} nodes, {sizes} CPUs" if len(nodes) > 1 else "1 node", ""


def _numactl(facts: Facts) -> Judged:
    if facts.numactl is None:
        seen, fix = "not installed", "`sudo apt-get install numactl`, or your distribution's package of that name"
    elif facts.numactl.error:
        # Docker's default profile asks for this capability: docs.docker.com/engine/security/seccomp, set_mempolicy.
        seen, fix = facts.numactl.error, "let the container do it: `docker run --cap-add SYS_NICE`"
    else:
        return "ok", "can interleave memory over the NUMA nodes", ""
    if len(facts.machine.numa) == 1:
        return "ok", f"{seen}; with 1 NUMA node it would change nothing", ""
    return "warn", seen, fix


def _tensorflow(facts: Facts) -> Judged:
    probe = facts.onednn
    if probe.error and "AVX" not in facts.machine.isa:
        return "fail", probe.error, OTHER_CPU
    return _tried(facts, probe._replace(gave=probe.gave.partition("\n")[0].removeprefix("TensorFlow ")))


def _onednn(facts: Facts) -> Judged:
    if facts.onednn.error:
        return "fail", "not tried, as TensorFlow failed", _tensorflow(facts)[2]
    if log := _convolution(facts.onednn):
        return "ok", f"{log['version']}, on, {log['runtime']} runtime, {log['isa']}", ""
    # TensorFlow's own choice, IsMklEnabled in tensorflow/core/util/util.cc: on where one of these is found.
    by_default = not {"VNNI", "BF16", "AMX"}.isdisjoint(facts.machine.isa)
    name = "TF_ENABLE_ONEDNN_OPTS"
    switch_on = _unset(name) if by_default else f"`export {name}=1`{RESTART}"
    if facts.environ.get(name, "").lower() in ("0", "false"):
        return "warn", f"off: {name}={facts.environ[name]}", switch_on
    if not by_default:
        return "warn", "off: TensorFlow does not use it by itself on a CPU without VNNI, BF16 and AMX", switch_on
    return "warn", "off: a convolution ran without it", ANEW


def _convolution(probe: Tried) -> dict[str, str] | None:
    """Return oneDNN's version, runtime and isa, if its log has a convolution.

    With oneDNN switched off, the log is not empty: Eigen's matrix products still call the library ("gemm_api").
    """
    if not re.search("^onednn_verbose,.*exec,cpu,convolution", probe.gave, re.MULTILINE):
        return None
    told = onednn.describe(probe.gave.splitlines())
    version, threads, isa = (told.get(key, "unknown") for key in ("version", "threads", "isa"))
    return {"version": version, "runtime": threads.partition(",")[0], "isa": isa}


def _openmp(facts: Facts) -> Judged:
    probe = facts.openmp
    if probe.error:
        absent = probe.error.startswith(CANNOT_START)
        fix = OTHER_CPU if "AVX" not in facts.machine.isa else None if absent else _from_outside(facts, probe.error)
        return "fail", probe.error, fix or OPENMP_ANEW
    log = _convolution(probe)
    if log is None or log["runtime"] != "OpenMP":
        return "fail", f"env/openmp has {log['runtime'] + ' threads' if log else 'no oneDNN'}, not OpenMP", OPENMP_ANEW
    return "ok", f"{probe.gave.splitlines()[0]}, oneDNN {log['version']}", ""


def _mpi(facts: Facts) -> Judged:
    if facts.mpirun is None:
        return "fail", "no mpirun in this environment", ANEW
    if disturbance := _other_mpi(facts):
        return "warn", *disturbance
    if facts.typed_mpirun != facts.mpirun:
        seen = f"typing mpirun starts {facts.typed_mpirun or 'nothing'}, which is not this environment's"
        return "warn", seen, "`source .venv/bin/activate` in that terminal"
    return "ok", shown(Path(facts.mpirun)), ""


def _other_mpi(facts: Facts) -> tuple[str, str] | None:
    """Return what another MPI has left in the environment that gets in the way of this one, and the fix."""
    if facts.other_mpi:
        seen = f"LD_LIBRARY_PATH puts {facts.other_mpi}/libmpi.so.12 before this environment's"
        return seen, _unset("LD_LIBRARY_PATH")
    # MPICH, its launcher and the library under it read these; clusters set them for an MPI of their own. Open MPI's
    # (OMPI_…) and Intel MPI's (I_MPI_…) were tried, and change nothing here.
    if names := sorted(name for name in facts.environ if name.startswith(("HYDRA_", "MPICH_", "MPIR_CVAR_", "UCX_"))):
        return f"set for another MPI, and read by this one: {', '.join(names)}", _unset(*names)
    return None


def _mended(facts: Facts, error: str) -> str:
    """Return the fix for a probe that failed: what may get in its way from outside, before the environment itself."""
    if fix := _from_outside(facts, error):
        return fix
    disturbance = _other_mpi(facts)
    return disturbance[1] if disturbance else ANEW


def _from_outside(facts: Facts, error: str) -> str | None:
    """Return the fix for what gets in any Python's way."""
    if "SIGKILL" in error:
        return MORE_MEMORY
    if "Not over after" in error:
        return "run the doctor again while the machine does nothing else"
    return _unset("PYTHONPATH") if facts.environ.get("PYTHONPATH") else None


def _tried(facts: Facts, probe: Tried) -> Judged:
    return ("fail", probe.error, _mended(facts, probe.error)) if probe.error else ("ok", probe.gave, "")


def _horovod(facts: Facts) -> Judged:
    return _tried(facts, facts.horovod)


def _slurm(facts: Facts) -> Judged:
    if not facts.slurm.error:
        return "ok", facts.slurm.gave, ""
    seen, _, fix = facts.slurm.error.partition(". ")
    return "warn", f"no cluster, and no small one on this machine: {seen}", fix


def _daal4py(facts: Facts) -> Judged:
    return _tried(facts, facts.daal4py)


def _jupyterlab(facts: Facts) -> Judged:
    return _tried(facts, facts.jupyterlab)


def _kernel(facts: Facts) -> Judged:
    folder, *answer = facts.kernel.gave.splitlines() or [""]
    if not facts.kernel.error and answer[-1] == facts.prefix:
        return "ok", "python3 is this environment's Python", ""
    seen = facts.kernel.error or f"python3 is {answer[0]}, not this environment's"
    if not folder or Path(folder).is_relative_to(facts.prefix):
        return "fail", seen, _mended(facts, seen)
    # Where Jupyter looks first, see jupyter_core.paths.jupyter_path: JUPYTER_PATH, then the environment when the user
    # owns it, then the user's folder; without ownership, as on a shared installation, the user's comes before.
    first = filter(None, facts.environ.get("JUPYTER_PATH", "").split(os.pathsep))
    by_path = any(Path(folder).is_relative_to(path) for path in first)
    fix = _unset("JUPYTER_PATH") if by_path else f"`export JUPYTER_PREFER_ENV_PATH=1`{RESTART}"
    return "fail", f"{seen} (from {folder})", fix


def _read(facts: Facts) -> Judged:
    if isinstance(facts.data, str):
        return "fail", facts.data, "set LAB_DATA to the folder with the data, or unset it"
    if damaged := [file for file in facts.data if file.state == "damaged"]:
        seen = "\n".join(f"{shown(file.path)} is damaged: {file.detail}" for file in damaged)
        return "fail", seen, damaged[0].fix
    intact = [file.name for file in facts.data if file.state == "intact"]
    if missing := [file for file in facts.data if file.state == "missing" and file.fix]:  # no fix: nobody needs it
        return "warn", f"no {missing[0].name}: {missing[0].detail}", missing[0].fix
    return "ok", f"{', '.join(intact)}, intact", ""


# A new check is a line here.
CHECKS: dict[str, Callable[[Facts], Judged]] = {
    "system": _system,
    "Python": _python,
    "cores": _cores,
    "memory": _memory,
    "disk": _disk,
    "ISA": _instruction_sets,
    "NUMA": _numa,
    "numactl": _numactl,
    "TensorFlow": _tensorflow,
    "oneDNN": _onednn,
    "OpenMP build": _openmp,
    "MPI": _mpi,
    "Horovod": _horovod,
    "Slurm": _slurm,
    "daal4py": _daal4py,
    "data": _read,
    "JupyterLab": _jupyterlab,
    "kernel": _kernel,
}


def judge(facts: Facts, labs: tuple[Lab, ...] = LABS) -> Report:
    """Make findings of the facts, and a verdict on each lab of the findings."""
    findings = {name: Finding(name, *check(facts)) for name, check in CHECKS.items()}
    return Report(facts.machine, tuple(findings.values()), tuple(_verdict(lab, findings) for lab in labs))


def _verdict(lab: Lab, findings: Mapping[str, Finding]) -> Verdict:
    if failed := tuple(findings[name] for name in lab.needs if findings[name].status == "fail"):
        return Verdict(lab.name, "fail", failed)
    short = tuple(findings[name] for name in (*lab.needs, *lab.better_with) if findings[name].status != "ok")
    return Verdict(lab.name, "warn" if short else "ok", short)


def _fixes(verdict: Verdict) -> list[str]:
    """Return what to do, each thing once."""
    return list(dict.fromkeys(finding.fix for finding in verdict.because if finding.fix))


# --- What is shown ----------------------------------------------------------------------------------------------------

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
VERDICTS = {"ok": "can run", "warn": "can run, but look at", "fail": "cannot run"}


def render(report: Report, console: Console) -> None:
    """Show the machine, the checks, and each lab's verdict with what to do; nothing is told by colour alone."""
    machine = report.machine
    console.print(
        f"{machine.model}, usable cores: {machine.usable_cores}, memory: {machine.memory / GIB:.1f} GiB\n",
        markup=False,
        highlight=False,
    )
    checks = _grid(columns=3)
    for finding in report.findings:
        checks.add_row(Text(finding.status, STYLES[finding.status]), finding.name, _lines(finding.seen, finding.fix))
    labs = _grid(columns=2)
    for verdict in report.verdicts:
        because = ", ".join(finding.name for finding in verdict.because)
        word = VERDICTS[verdict.status] + (": " if because else "")
        reasons = _lines(because, *_fixes(verdict))
        labs.add_row(Text(verdict.lab), Text.assemble((word, STYLES[verdict.status]), reasons))
    console.print(checks, "", labs, sep="\n")


def _grid(columns: int) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(columns):
        table.add_column(overflow="fold")  # a path is shown whole
    return table


def _lines(text: str, *fixes: str) -> Text:
    """Return the text and what to do, each on a line of its own."""
    return Text("\n".join([text, *(f"fix: {fix}" for fix in fixes if fix)]))
