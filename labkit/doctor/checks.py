"""Checks that turn facts about this machine into findings, fixes and a verdict on each lab. They do no I/O."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from labkit.display import onednn
from labkit.doctor import speed
from labkit.doctor.labs import LABS, Lab
from labkit.doctor.probes import NOT_TRIED, Facts, ProbeResult, gather
from labkit.system.machine import Machine
from labkit.system.paths import shown
from labkit.system.progress import progress

Status = Literal["ok", "warn", "fail"]
GIB = 2**30


# Lab 07 runs up to 4 ranks. Each needs 0.75 GB of private memory with the 8,000 built-in digits, 0.95 GB with all of
# MNIST; TensorFlow and Horovod take 0.63 GB of it before the first step (peak USS, TensorFlow 2.21 on x86-64; measured
# with the lab's network). JupyterLab and the notebook's kernel come on top. Lab 03's ResNet-50 takes less: 2.5 GB in
# one process at batch 16 (peak RSS).
MEMORY_NEEDED_BYTES = 4 * 0.75e9 + 0.5e9
MEMORY_RECOMMENDED_BYTES = 4 * 0.95e9 + 0.5e9
# The labs' own files: checkpoints and timelines of some tens of MB, and MNIST once, 11 MB.
DISK_NEEDED_BYTES = 0.2e9
DISK_RECOMMENDED_BYTES = 1e9

REBUILD = "rebuild the environment: `rm -rf .venv && ./lab setup`"
REPORT = "search the web for that message, or report it with the output of `./lab doctor --json`"
# Errors caused by a missing or damaged package file or kernel.
_MISSING = re.compile(
    "No .* named|cannot import name|has not been built|cannot open shared|undefined symbol|too short|ELF"
)


class Finding(NamedTuple):
    """The result of one check.

    Attributes
    ----------
    name : str
        The check, a key of `CHECKS`.
    status : {"ok", "warn", "fail"}
        Whether the labs can run.
    seen : str
        The observation; for a failed probe, its last lines.
    fix : str
        The remedy; empty if none is needed.
    """

    name: str
    status: Status
    seen: str
    fix: str


class Verdict(NamedTuple):
    """Whether a lab can run ("ok"), can run with limitations ("warn") or cannot run ("fail"), and why."""

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

    def as_dict(self) -> dict:
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


# A check takes the facts and returns status, observation and fix.

Judgement = tuple[Status, str, str]
OTHER_CPU = "use a CPU (or, in a virtual machine, a CPU type) with AVX2"
MORE_MEMORY = "use a machine with at least 4 GiB of memory, or raise the container's or job's limit to that"
AND_RESTART = ", then restart JupyterLab from that shell"


def _unset(*variables: str) -> str:
    return f"`unset {' '.join(variables)}`{AND_RESTART}"


def _system(facts: Facts) -> Judgement:
    if facts.system in ("Linux x86_64", "Linux aarch64"):
        return "ok", facts.system, ""
    return "fail", facts.system, "use Linux on x86-64 or Arm64: another machine, a virtual machine, or WSL 2 on Windows"


def _python(facts: Facts) -> Judgement:
    seen = f"{facts.python} in {shown(Path(facts.prefix))}"
    if not facts.python.startswith(("3.11.", "3.12.", "3.13.")):
        return "fail", f"{seen}; the packages are locked for 3.11 to 3.13", REBUILD
    return "ok", seen, ""


def _cores(facts: Facts) -> Judgement:
    cores, quota, usable = len(facts.machine.cores), facts.machine.quota, facts.machine.usable_cores
    limit = f" of {cores}: the CPU quota is {quota:g}" if quota is not None and quota < cores else ""
    if unequal := facts.machine.unequal_cores:
        limit += f"; {unequal} more, faster or slower (P and E cores), are unused, as comparing ranks needs equal cores"
    if usable > 1:
        return "ok", f"{usable} usable{limit}", ""
    seen = f"1 usable{limit}; more ranks or threads can't speed anything up"
    if cores > 1:
        return "warn", seen, "raise the CPU quota to at least 2 (docker run --cpus 2, Kubernetes limits.cpu)"
    return "warn", seen, "use a machine, virtual machine or job with at least 2 cores (in Slurm: -c 2)"


def _memory(facts: Facts) -> Judgement:
    total, free = facts.machine.memory, facts.machine.memory_free
    seen = f"{total / GIB:.1f} GiB, {free / GIB:.1f} free"
    if total < MEMORY_NEEDED_BYTES:
        seen += f"; 4 ranks and a notebook need {MEMORY_NEEDED_BYTES / GIB:.1f}"
        return "fail", seen, MORE_MEMORY
    if free < MEMORY_RECOMMENDED_BYTES:
        seen += f"; 4 ranks with all of MNIST and a notebook need {MEMORY_RECOMMENDED_BYTES / GIB:.1f}"
        return "warn", seen, "shut down kernels and programs you don't need"
    return "ok", seen, ""


def _disk(facts: Facts) -> Judgement:
    seen = f"{facts.disk_free / GIB:.1f} GiB free"
    if facts.disk_free >= DISK_RECOMMENDED_BYTES:
        return "ok", seen, ""
    status: Status = "fail" if facts.disk_free < DISK_NEEDED_BYTES else "warn"
    return status, seen, "free 1 GiB on the disk of this folder: the labs write checkpoints"


def _instruction_sets(facts: Facts) -> Judgement:
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


def _numa(facts: Facts) -> Judgement:
    nodes = facts.machine.numa
    sizes = " + ".join(str(len(node)) for node in nodes)
    return "ok", f"{len(nodes)} nodes, {sizes} CPUs" if len(nodes) > 1 else "1 node", ""


def _numactl(facts: Facts) -> Judgement:
    if facts.numactl is None:
        seen, fix = "not installed", "`sudo apt-get install numactl`, or your distribution's package"
    elif facts.numactl.error:
        # Docker's default profile requires this capability: docs.docker.com/engine/security/seccomp, set_mempolicy.
        seen, fix = facts.numactl.error, "permit it in the container: `docker run --cap-add SYS_NICE`"
    else:
        return "ok", "can interleave memory over NUMA nodes", ""
    if len(facts.machine.numa) == 1:
        return "ok", f"{seen} (no effect with 1 NUMA node)", ""
    return "warn", seen, fix


def _tensorflow(facts: Facts) -> Judgement:
    probe = facts.onednn
    if probe.error and {"AVX", "NEON"}.isdisjoint(facts.machine.isa):
        return "fail", probe.error, OTHER_CPU
    return _judge_probe(facts, probe._replace(output=probe.output.partition("\n")[0].removeprefix("TensorFlow ")))


def _onednn(facts: Facts) -> Judgement:
    if facts.onednn.error:
        return "fail", "not tried, as TensorFlow failed", _tensorflow(facts)[2]
    # With oneDNN off, the log is not empty: Eigen's matmuls still call the library ("gemm_api").
    if re.search("^onednn_verbose,.*exec,cpu,convolution", facts.onednn.output, re.MULTILINE):
        log = onednn.describe(facts.onednn.output.splitlines())
        version, threads, isa = (log.get(key, "unknown") for key in ("version", "threads", "isa"))
        return "ok", f"{version}, enabled, {threads.partition(',')[0]} runtime, {isa}", ""
    return "warn", "disabled: a convolution ran without it", REPORT


def _mpi(facts: Facts) -> Judgement:
    if facts.mpirun is None:
        return "fail", "no mpirun in this environment", REBUILD
    if conflict := _other_mpi(facts):
        return "warn", *conflict
    return "ok", shown(Path(facts.mpirun)), ""


def _other_mpi(facts: Facts) -> tuple[str, str] | None:
    """Return a conflict with another MPI's variables, in words, and its fix."""
    if facts.other_mpi:
        seen = f"LD_LIBRARY_PATH puts {facts.other_mpi}/libmpi.so.12 before this environment's"
        return seen, _unset("LD_LIBRARY_PATH")
    # A cluster may set them for its own MPI, or for multi-node jobs, where this MPI needs them.
    if names := sorted(name for name in facts.environ if name.startswith("UCX_")):
        return f"reads variables that may be set for another MPI: {', '.join(names)}", _unset(*names)
    return None


def _fix_of_probe(facts: Facts, error: str) -> str:
    """Return the fix for a failed probe: first for outside causes, then for the environment itself."""
    if "SIGKILL" in error:
        return MORE_MEMORY
    if "`unset ${!SLURM_*}`" in error:
        return "leave the shell of the Slurm job that has ended"
    if "Timed out after" in error:
        return "run the doctor again while nothing else runs"
    if names := [name for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if facts.environ.get(name)]:
        return _unset(*names)
    if conflict := _other_mpi(facts):
        return conflict[1]
    return REBUILD if _MISSING.search(error) else REPORT


def _judge_probe(facts: Facts, probe: ProbeResult) -> Judgement:
    return ("fail", probe.error, _fix_of_probe(facts, probe.error)) if probe.error else ("ok", probe.output, "")


def _optional(probe: ProbeResult, prefix: str = "") -> Judgement:
    """Judge an optional feature; the first sentence of the probe's error is the observation, the rest the fix."""
    if not probe.error:
        return "ok", probe.output, ""
    seen, _, fix = probe.error.partition(". ")
    return "warn", prefix + seen.removesuffix("."), fix.removesuffix(".")


def _kernel(facts: Facts) -> Judgement:
    prefix = facts.kernel.output
    if not facts.kernel.error and prefix == facts.prefix:
        return "ok", "runs in this environment", ""
    seen = facts.kernel.error or f"runs in {prefix}, not in this environment"
    return "fail", seen, _fix_of_probe(facts, seen) if facts.kernel.error else REBUILD


def _labs_data(facts: Facts) -> Judgement:
    if isinstance(facts.data, str):
        return "fail", facts.data, "set LAB_DATA to the data folder, or unset it"
    if damaged := [file for file in facts.data if file.state == "damaged"]:
        seen = "\n".join(f"{shown(file.path)} is damaged: {file.detail}" for file in damaged)
        return "fail", seen, damaged[0].fix
    intact = [file.name for file in facts.data if file.state == "intact"]
    if missing := [file for file in facts.data if file.state == "missing" and file.fix]:  # no fix: not needed
        return "warn", f"no {missing[0].name}: {missing[0].detail}", missing[0].fix
    return "ok", f"{', '.join(intact)}, intact", ""


# To add a check, add a line here and its name to a group in `view.GROUPS`.
CHECKS: dict[str, Callable[[Facts], Judgement]] = {
    "system": _system,
    "Python": _python,
    "cores": _cores,
    "memory": _memory,
    "disk": _disk,
    "ISA": _instruction_sets,
    "speed": lambda facts: speed.judge(facts.limits, facts.machine, facts.shares),
    "NUMA": _numa,
    "numactl": _numactl,
    "TensorFlow": _tensorflow,
    "oneDNN": _onednn,
    "MPI": _mpi,
    "network": lambda facts: _optional(facts.network, "no nodes with wires between them: "),
    "Horovod": lambda facts: _judge_probe(facts, facts.horovod),
    "Slurm": lambda facts: _optional(facts.slurm, "no cluster, and none can run on this machine: "),
    "daal4py": lambda facts: _judge_probe(facts, facts.daal4py),
    "OpenVINO": lambda facts: _judge_probe(facts, facts.openvino),
    "PyTorch": lambda facts: _optional(facts.torch),
    "data": _labs_data,
    "JupyterLab": lambda facts: _judge_probe(facts, facts.jupyterlab),
    "kernel": _kernel,
}


# The checks that depend on a probe, and the probe's field in `Facts`.
PROBE_OF = {
    "TensorFlow": "onednn",
    "oneDNN": "onednn",
    "Horovod": "horovod",
    "daal4py": "daal4py",
    "OpenVINO": "openvino",
    "JupyterLab": "jupyterlab",
    "kernel": "kernel",
}


def examine(quick: bool = False) -> Report:
    """Examine this machine. It takes about half a minute, with progress messages.

    A quick examination takes a second and runs no probes.
    """
    with progress("Checking this machine …") as report_step:
        facts = gather(lambda step: report_step(f"Trying {step} …"), quick)
    return judge(facts)


def judge(facts: Facts, labs: tuple[Lab, ...] = LABS) -> Report:
    """Turn facts into findings, and findings into a verdict on each lab."""
    findings = {name: _find(name, facts) for name in CHECKS}
    return Report(facts.machine, tuple(findings.values()), tuple(_verdict(lab, findings) for lab in labs))


def _find(name: str, facts: Facts) -> Finding:
    if name == "daal4py" and facts.system == "Linux aarch64":
        return Finding(name, "fail", "not available: it has no package for Arm", "use an x86-64 machine for lab 09")
    if name in PROBE_OF and getattr(facts, PROBE_OF[name]) == NOT_TRIED:
        return Finding(name, "warn", NOT_TRIED.error, "`./lab doctor` tries it")
    return Finding(name, *CHECKS[name](facts))


def _verdict(lab: Lab, findings: Mapping[str, Finding]) -> Verdict:
    if failed := tuple(findings[name] for name in lab.needs if findings[name].status == "fail"):
        return Verdict(lab.name, "fail", failed)
    limiting = tuple(findings[name] for name in (*lab.needs, *lab.better_with) if findings[name].status != "ok")
    return Verdict(lab.name, "warn" if limiting else "ok", limiting)
