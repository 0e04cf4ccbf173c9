"""The checks of this machine: what each observes, its judgement with a remedy, and the verdict on each lab."""

import dataclasses
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from labkit.data import mnist
from labkit.display import onednn
from labkit.doctor.probes import (
    ProbeResult,
    shadowing_mpi,
    try_command,
    try_network,
    try_python,
    try_ranks,
    try_slurm,
    two_cores_vs_one,
)
from labkit.exercises import catalogue
from labkit.exercises.catalogue import LabInfo
from labkit.models import llama
from labkit.mpi import torch_ranks
from labkit.roofline import measure
from labkit.system import compiler, kernels
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import Machine
from labkit.system.paths import ROOT, shown
from labkit.system.terminal import progress
from labkit.system.words import plural

Status = Literal["ok", "warn", "fail"]
Judgement = tuple[Status, str, str]  # status, observation, remedy
GIB = 2**30
PREFIX = Path(sys.prefix).resolve()  # the environment that runs the doctor

# Lab 07 runs up to 4 ranks. Each needs 0.75 GB of private memory with 8,000 digits, 0.95 GB with all of
# MNIST; TensorFlow and Horovod take 0.63 GB of it before the first step (peak USS, TensorFlow 2.21 on x86-64; measured
# with the lab's network). JupyterLab and the notebook's kernel come on top. Lab 03's ResNet-50 takes less: 2.5 GB in
# one process at batch 16 (peak RSS).
MEMORY_NEEDED_BYTES = 4 * 0.75e9 + 0.5e9
MEMORY_RECOMMENDED_BYTES = 4 * 0.95e9 + 0.5e9
# The labs' own files: checkpoints and timelines of some tens of MB, and MNIST once, 11 MB.
DISK_NEEDED_BYTES = 0.2e9
DISK_RECOMMENDED_BYTES = 1e9
USUAL_SHARE = 0.7  # of its instruction's peak: a healthy machine's FP32 matmul reaches 0.9, and time plans allow 1.3×

REBUILD = "rebuild the environment: `rm -rf .venv && ./lab setup`"
REPORT = "search the web for that message, or report it with the output of `./lab doctor --json`"
OTHER_CPU = "use a CPU (or, in a virtual machine, a CPU type) with AVX2"
MORE_MEMORY = "use a machine with at least 4 GiB of memory, or raise the container's or job's limit to that"
MEASURE_AGAIN = "`./lab roofline --again` while nothing else runs"
SPEED_UP = (
    f"{MEASURE_AGAIN}; if it is still slow, check power saving (a laptop's plug and profile), other VMs on the same "
    "host (`st` in `top`), and the container's or job's limits on cores"
)
ONE_CORE = (
    "close other programs and run the doctor again; in a virtual machine, the two CPUs may be hardware threads of one "
    "core: choose a type with whole cores"
)
SEPARATE_CORES = 1.4  # two cores together are nearly 2× as fast as one, two hardware threads of one core hardly faster
# Errors caused by a missing or damaged package file or kernel.
_MISSING = re.compile(
    "No .* named|cannot import name|has not been built|cannot open shared|undefined symbol|too short|ELF|not in this "
    "environment"
)
# Remedies, by patterns in a failed probe's error.
REMEDIES = {
    "SIGKILL": MORE_MEMORY,
    "SIGBUS": "give the container more shared memory: `docker run --shm-size 1g`, or a larger /dev/shm",
    "Resource temporarily unavailable|can't start new thread|thread creation failed|pthread_create": "raise the limit "
    "on processes and threads: `ulimit -u`, or in a container pids.max (`docker run --pids-limit`)",
    "No space left|Disk quota": "free space (`df -h`) or files (`df -i`) on the disks of this folder, home and /tmp",
    "Read-only file system": "set TMPDIR to a folder that you can write to",
    r"`unset \${!SLURM_\*}`": "leave the shell of the Slurm job that has ended",
    "Timed out after": "run the doctor again while nothing else runs",
}
NOT_TRIED = ProbeResult(error="not tried in a quick check")


@dataclass(frozen=True)
class Facts:
    """The facts that the checks judge: the machine, its environment variables, and each check's observation by name."""

    machine: Machine
    environ: Mapping[str, str]
    observed: Mapping[str, Any]


class Check(NamedTuple):
    """One check.

    Attributes
    ----------
    name, group : str
        Its name, and the row of the report that it shares with others when it passes.
    judge : callable
        Return status, observation and remedy, from the facts and this check's own observation. It does no I/O.
    observe : callable
        Inspect or try something. The default observes nothing: the machine is enough.
    cost : {"", "seconds", "ranks"}
        A quick examination leaves out checks that take seconds, or also start ranks.
    all_labs : bool
        Whether all labs need it; otherwise those that name it.
    optional : bool
        Whether a lab that is better with it can do without: it shows recorded results, or uses smaller data.
    """

    name: str
    group: str
    judge: Callable[[Facts, Any], Judgement]
    observe: Callable[[], Any] = lambda: None
    cost: Literal["", "seconds", "ranks"] = ""
    all_labs: bool = False
    optional: bool = False


class Finding(NamedTuple):
    """The result of one check: its name, status, observation (a failed probe's last lines) and remedy, if needed."""

    name: str
    status: Status
    seen: str
    fix: str


class Verdict(NamedTuple):
    """Whether a lab can run ("ok"), can run with limitations ("warn") or cannot run ("fail"), and why.

    A lab that can run may lack optional parts.
    """

    lab: str
    status: Status
    because: tuple[Finding, ...]

    @property
    def fixes(self) -> list[str]:
        """The remedies, without duplicates."""
        return list(dict.fromkeys(finding.fix for finding in self.because if finding.fix))


@dataclass(frozen=True)
class Report:
    """The result of `examine`: this machine, the findings, and a verdict on each lab."""

    machine: Machine
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether every lab can run."""
        return all(verdict.status != "fail" for verdict in self.verdicts)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON, with stable keys."""
        return {
            "ok": self.ok,
            "machine": dataclasses.asdict(self.machine) | {"usable_cores": self.machine.usable_cores},
            "checks": [finding._asdict() for finding in self.findings],
            "labs": [
                {
                    "lab": verdict.lab,
                    "status": verdict.status,
                    "because": [finding.name for finding in verdict.because],
                    "fix": verdict.fixes,
                }
                for verdict in self.verdicts
            ],
        }


def _unset(*variables: str) -> str:
    return f"`unset {' '.join(variables)}`, then restart JupyterLab from that shell"


def _python(facts: Facts, version: str) -> Judgement:
    return "ok", f"{version} in {shown(PREFIX)}", ""


def _cores(facts: Facts, gain: float | None) -> Judgement:
    machine = facts.machine
    cores, quota, usable = len(machine.cores), machine.quota, machine.usable_cores
    cpus = sum(map(len, machine.cores))
    limit = f" of {cores}: the CPU quota is {quota:g}" if quota is not None and quota < cores else ""
    if cpus > cores:
        limit += f"; {cpus} CPUs are their hardware threads, which share the arithmetic units of a core"
    if unequal := machine.unequal_cores:
        limit += f"; {unequal} more, faster or slower (P and E cores), are unused, as comparing ranks needs equal cores"
    if gain is not None and gain < SEPARATE_CORES:
        seen = f"{usable} usable{limit}; but two are only {gain:.1f}× as fast as one, so no speed-up reaches 2×"
        return "warn", seen, ONE_CORE
    if usable > 1:
        return "ok", f"{usable} usable{limit}", ""
    seen = f"1 usable{limit}; more ranks or threads can't speed anything up"
    if cores > 1:
        return "warn", seen, "raise the CPU quota to at least 2 (docker run --cpus 2, Kubernetes limits.cpu)"
    return "warn", seen, "use a machine, virtual machine or job with at least 2 cores (in Slurm: -c 2)"


def _memory(facts: Facts, _: None) -> Judgement:
    total, free = facts.machine.memory, facts.machine.memory_free
    seen = f"{total / GIB:.1f} GiB, {free / GIB:.1f} free"
    if total < MEMORY_NEEDED_BYTES:
        return "fail", f"{seen}; 4 ranks and a notebook need {MEMORY_NEEDED_BYTES / GIB:.1f}", MORE_MEMORY
    if free < MEMORY_RECOMMENDED_BYTES:
        seen += f"; 4 ranks with all of MNIST and a notebook need {MEMORY_RECOMMENDED_BYTES / GIB:.1f}"
        return "warn", seen, "shut down kernels and programs you don't need"
    return "ok", seen, ""


def _disk(facts: Facts, free: int) -> Judgement:
    seen = f"{free / GIB:.1f} GiB free"
    if free >= DISK_RECOMMENDED_BYTES:
        return "ok", seen, ""
    status: Status = "fail" if free < DISK_NEEDED_BYTES else "warn"
    return status, seen, "free 1 GiB on the disk of this folder: the labs write checkpoints"


def _instruction_sets(facts: Facts, _: None) -> Judgement:
    isa = facts.machine.isa
    if "NEON" in isa:
        return "ok", f"{', '.join(isa)} (Arm); no AVX, VNNI, BF16 or AMX, which some labs use", ""
    # TensorFlow's wheel is compiled for AVX, and its import aborts without it: its start-up log, which lists the CPU's
    # other instruction sets ("To enable the following instructions: AVX2 …"), omits AVX.
    if "AVX" not in isa:
        return "fail", "no AVX, which TensorFlow requires", OTHER_CPU
    if "AVX2" not in isa:
        return "warn", "no AVX2, so TensorFlow is slow", OTHER_CPU
    names = ("AVX2", "AVX-512", "VNNI", "BF16", "AMX")
    present, absent = (", ".join(name for name in names if (name in isa) is state) for state in (True, False))
    return "ok", f"{present}; no {absent}" if absent else present, ""


def _stored_limits() -> measure.Limits | None:
    """Return this machine's stored limits, or None if it was not measured."""
    try:
        measured = measure.path_for(measure.conditions(usable_machine())).exists()
    except metadata.PackageNotFoundError:  # a broken environment, which other checks report
        return None
    return measure.limits() if measured else None


def _speed(facts: Facts, limits: measure.Limits | None) -> Judgement:
    if limits is None:
        return "ok", "not measured (`./lab roofline` on an idle machine, about 20 s)", ""
    matmul, peak = limits.peak("float32"), limits.instructions.get("float32")
    seen = f"{matmul:,.0f} GFLOP/s in FP32"
    if peak is None:
        return "ok", f"{seen}; comparing it with the CPU's peak needs a C compiler and AVX2", ""
    share, cores = matmul / peak["speed"], plural(facts.machine.usable_cores, "core")
    seen += f", {share:.0%} of the {peak['instruction']} peak of {cores} ({peak['speed']:,.0f})"
    if limits.others.busy:
        return "warn", f"{seen}, but other work used the cores", MEASURE_AGAIN
    return (
        ("ok", seen, "") if share >= USUAL_SHARE else ("warn", f"{seen}; at least {USUAL_SHARE:.0%} is usual", SPEED_UP)
    )


def _numa(facts: Facts, _: None) -> Judgement:
    nodes = facts.machine.numa
    sizes = " + ".join(str(len(node)) for node in nodes)
    return "ok", f"{len(nodes)} nodes, {sizes} CPUs" if len(nodes) > 1 else "1 node", ""


def _try_numactl() -> ProbeResult | None:
    return try_command("numactl", "--interleave=all", "true") if shutil.which("numactl") else None


def _numactl(facts: Facts, probe: ProbeResult | None) -> Judgement:
    if probe is None:
        seen, fix = "not installed", "`sudo apt-get install numactl`, or your distribution's package"
    elif probe.error:
        # Docker's default profile requires this capability: docs.docker.com/engine/security/seccomp, set_mempolicy.
        seen, fix = probe.error, "permit it in the container: `docker run --cap-add SYS_NICE`"
    else:
        return "ok", "can interleave memory over NUMA nodes", ""
    if len(facts.machine.numa) == 1:
        return "ok", f"{seen} (no effect with 1 NUMA node)", ""
    return "warn", seen, fix


def _tensorflow(facts: Facts, probe: ProbeResult) -> Judgement:
    if probe.error and probe != NOT_TRIED and {"AVX", "NEON"}.isdisjoint(facts.machine.isa):
        return "fail", probe.error, OTHER_CPU
    if probe.error:
        return _judge(facts, probe)
    version, *log = probe.output.splitlines()
    # With oneDNN off, the log is not empty: Eigen's matmuls still call the library ("gemm_api").
    if not any(re.match("onednn_verbose,.*exec,cpu,convolution", line) for line in log):
        return "warn", f"{version}; oneDNN is disabled: a convolution ran without it", REPORT
    found = onednn.describe(log)
    library, threads, isa = (found.get(key, "unknown") for key in ("version", "threads", "isa"))
    return "ok", f"{version} with oneDNN {library}, {threads.partition(',')[0]} runtime, {isa}", ""


class Mpi(NamedTuple):
    """This environment's `mpirun`, if any, and the folder in LD_LIBRARY_PATH whose library shadows its own."""

    mpirun: str | None
    shadowed_by: str | None


def _find_mpi() -> Mpi:
    library_path = os.environ.get("LD_LIBRARY_PATH", "")
    return Mpi(shutil.which("mpirun", path=PREFIX / "bin"), shadowing_mpi(library_path, PREFIX / "lib"))


def _mpi(facts: Facts, mpi: Mpi) -> Judgement:
    if mpi.mpirun is None:
        return "fail", "no mpirun in this environment", REBUILD
    if conflict := _other_mpi(facts):
        return "warn", *conflict
    return "ok", shown(Path(mpi.mpirun)), ""


def _other_mpi(facts: Facts) -> tuple[str, str] | None:
    """Return a conflict with another MPI's variables, in words, and its remedy."""
    if folder := facts.observed["MPI"].shadowed_by:
        return f"LD_LIBRARY_PATH puts {folder}/libmpi.so.12 before this environment's", _unset("LD_LIBRARY_PATH")
    # A cluster may set them for its own MPI, or for multi-node jobs, where this MPI needs them.
    if names := sorted(name for name in facts.environ if name.startswith("UCX_")):
        return f"reads variables that may be set for another MPI: {', '.join(names)}", _unset(*names)
    return None


def _remedy(facts: Facts, error: str) -> str:
    """Return the remedy for a failed probe: first for outside causes, then for the environment itself."""
    if remedy := next((remedy for cause, remedy in REMEDIES.items() if re.search(cause, error)), ""):
        return remedy
    if names := [name for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if facts.environ.get(name)]:
        return _unset(*names)
    if conflict := _other_mpi(facts):
        return conflict[1]
    return REBUILD if _MISSING.search(error) else REPORT


def _judge(facts: Facts, probe: ProbeResult) -> Judgement:
    """Judge a probe that labs need to succeed."""
    if probe == NOT_TRIED:
        return "warn", probe.error, "`./lab doctor` tries it"
    return ("fail", probe.error, _remedy(facts, probe.error)) if probe.error else ("ok", probe.output, "")


def _optional(facts: Facts, probe: ProbeResult) -> Judgement:
    """Judge an optional feature; the first sentence of the probe's error is the observation, the rest the remedy."""
    if not probe.error:
        return "ok", probe.output, ""
    seen, _, fix = probe.error.partition(". ")
    return "warn", seen.removesuffix("."), fix.removesuffix(".")


def _daal4py(facts: Facts, probe: ProbeResult) -> Judgement:
    if "NEON" in facts.machine.isa:
        return "warn", "not available: it has no package for Arm; lab 09 shows recorded results instead", ""
    return _judge(facts, probe)


def _try_jupyterlab() -> ProbeResult:
    with kernels.without_proxies():
        return try_python("-mjupyterlab", "--version")


def _try_kernel() -> ProbeResult:
    probe = try_python("kernel.py")
    if probe.error or probe.output == str(PREFIX):
        return probe._replace(output="runs in this environment")
    return ProbeResult(error=f"runs in {probe.output}, not in this environment")


def _part(module: Any) -> ProbeResult:
    """Return the version of an optional part from its module, and the obstacle to using it."""
    return ProbeResult(module.version(), module.obstacle())


def _preloaded(facts: Facts, _: None) -> Judgement:
    if libraries := facts.environ.get("LD_PRELOAD"):
        return "warn", f"LD_PRELOAD loads {libraries} into every program; figures may differ", _unset("LD_PRELOAD")
    return "ok", "no library is preloaded (LD_PRELOAD)", ""


def _find_data() -> Sequence[mnist.FileStatus] | str:
    try:
        return mnist.status()
    except LabError as error:
        return str(error)


def _data(facts: Facts, data: Sequence[mnist.FileStatus] | str) -> Judgement:
    if isinstance(data, str):
        return "fail", data, "set LAB_DATA to the data folder, or unset it"
    if damaged := [file for file in data if file.state == "damaged"]:
        seen = "\n".join(f"{shown(file.path)} is damaged: {file.detail}" for file in damaged)
        return "fail", seen, damaged[0].fix
    if missing := [file for file in data if file.state == "missing" and file.fix]:  # no fix: not needed
        return "warn", f"no {missing[0].name}: {missing[0].detail}", missing[0].fix
    return "ok", f"{', '.join(file.name for file in data if file.state == 'intact')}, intact", ""


CHECKS = (
    Check("system", "machine", lambda _, seen: ("ok", seen, ""), lambda: f"{platform.system()} {platform.machine()}"),
    Check("cores", "machine", _cores, two_cores_vs_one),
    Check("memory", "machine", _memory),
    Check("disk", "machine", _disk, lambda: shutil.disk_usage(ROOT).free, all_labs=True),
    Check("NUMA", "machine", _numa),
    Check("numactl", "machine", _numactl, _try_numactl, optional=True),
    Check("ISA", "CPU", _instruction_sets),
    Check("speed", "CPU", _speed, _stored_limits),
    Check("preload", "machine", _preloaded, all_labs=True),
    Check("Python", "Python", _python, platform.python_version, all_labs=True),
    Check("JupyterLab", "Python", _judge, _try_jupyterlab, "seconds", all_labs=True),
    Check("kernel", "Python", _judge, _try_kernel, "seconds", all_labs=True),
    Check("TensorFlow", "packages", _tensorflow, partial(try_python, "onednn.py"), "seconds"),
    Check("Horovod", "packages", _judge, partial(try_ranks, "allreduce_horovod.py"), "ranks"),
    Check("daal4py", "packages", _daal4py, partial(try_ranks, "allreduce_daal4py.py"), "ranks"),
    Check("OpenVINO", "packages", _judge, partial(try_python, "openvino_matmul.py"), "seconds"),
    Check("PyTorch", "packages", _optional, lambda: _part(torch_ranks), optional=True),
    Check("llama.cpp", "packages", _optional, lambda: _part(llama), optional=True),
    Check("compiler", "packages", _optional, lambda: _part(compiler), optional=True),
    Check("MPI", "parallel", _mpi, _find_mpi),
    Check("network", "parallel", _optional, try_network, optional=True),
    Check("Slurm", "parallel", _optional, try_slurm, optional=True),
    Check("data", "data", _data, _find_data, optional=True),
)


OPTIONAL = {check.name for check in CHECKS if check.optional}


def examine(quick: bool = False) -> Report:
    """Examine this machine. It takes about half a minute, with progress messages.

    A quick examination takes a second, and starts no TensorFlow, ranks or kernel.
    """
    with progress("Checking this machine …") as report_step:
        return judge(observe(report_step, quick))


def observe(report_step: Callable[[str], None], quick: bool = False) -> Facts:
    """Make all checks' observations; in a quick examination, checks with a cost are `NOT_TRIED`."""
    observed = {check.name: NOT_TRIED if check.cost else check.observe() for check in CHECKS}
    if not quick:
        # Ranks start from this thread, so that an interrupt ends them at once. The other probes run concurrently with
        # them, one at a time, as two cores can't run more.
        pool = ThreadPoolExecutor(max_workers=1)
        try:
            others = {check.name: pool.submit(check.observe) for check in CHECKS if check.cost == "seconds"}
            for check in (check for check in CHECKS if check.cost == "ranks"):
                report_step(f"Trying {check.name} on 2 ranks, and {', '.join(others)} …")
                observed[check.name] = check.observe()
            observed |= {name: future.result() for name, future in others.items()}
        finally:
            pool.shutdown(cancel_futures=True)
    return Facts(usable_machine(), dict(os.environ), observed)


def judge(facts: Facts, labs: Sequence[LabInfo] | None = None) -> Report:
    """Turn facts into findings, and findings into a verdict on each lab, by default on all labs."""
    findings = tuple(Finding(check.name, *check.judge(facts, facts.observed[check.name])) for check in CHECKS)
    return Report(facts.machine, findings, tuple(_verdict(lab, findings) for lab in labs or catalogue.labs()))


def _verdict(lab: LabInfo, findings: Sequence[Finding]) -> Verdict:
    needs = {*lab.needs, *(check.name for check in CHECKS if check.all_labs)}
    if failed := tuple(finding for finding in findings if finding.name in needs and finding.status == "fail"):
        return Verdict(lab.title, "fail", failed)
    relevant = needs.union(lab.better_with)
    limiting = tuple(finding for finding in findings if finding.name in relevant and finding.status != "ok")
    return Verdict(lab.title, "ok" if all(finding.name in OPTIONAL for finding in limiting) else "warn", limiting)
