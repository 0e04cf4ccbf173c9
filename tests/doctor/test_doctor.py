"""Tests of the doctor: its verdicts on synthetic machines, and its probes on this one."""

import dataclasses
import io
import json
import os

import pytest
from machines import machine
from rich.console import Console
from torch_folder import torch_folder

from labkit.data.mnist import FileStatus
from labkit.doctor import checks, probes, view
from labkit.doctor.checks import CHECKS, Facts, Finding, Mpi, Report, judge
from labkit.doctor.probes import ProbeResult
from labkit.exercises import catalogue
from labkit.mpi import torch_ranks
from labkit.roofline import measure
from labkit.roofline.measure import Limits, Matmul
from labkit.system import kernels
from labkit.system.load import Contention
from labkit.system.paths import DATA

GIB = 2**30
AVX2 = ("AVX", "AVX2")

ONEDNN_ON = """\
2.21.0
onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost\x20
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward_training,src:f32::blocked:acdb::f0,,3.2
"""
# Printed by TensorFlow 2.21 with TF_ENABLE_ONEDNN_OPTS=0: Eigen's matmuls, but no convolution.
ONEDNN_OFF = """\
2.21.0
onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2
onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_f32::blocked:ab:f0,,,496x144:144x16,76.0
"""


def a_file(state: str, detail: str = "", fix: str = "", name: str = "mnist.npz") -> FileStatus:
    return FileStatus(name, state, DATA / name, detail, fix)


MISSING = a_file("missing", "the labs use built-in digits instead", "`./lab data fetch` downloads it")
DAMAGED = a_file("damaged", "3 bytes instead of 11,490,434", "`./lab data fetch` replaces it, or delete it")

OBSERVED = {
    **{check.name: None for check in CHECKS},
    "system": "Linux x86_64",
    "disk": 20 * GIB,
    "Python": "3.11.9",
    "JupyterLab": ProbeResult("4.6.6"),
    "kernel": ProbeResult("runs in this environment"),
    "TensorFlow": ProbeResult(ONEDNN_ON),
    "Horovod": ProbeResult("0.28.1, sums correctly over 2 ranks"),
    "daal4py": ProbeResult("2026.2.0, sums correctly over 2 ranks"),
    "OpenVINO": ProbeResult("runs an 8-bit model (OpenVINO 2026.4.1, NNCF 3.4.0)"),
    "PyTorch": ProbeResult("2.13.0+cpu"),
    "llama.cpp": ProbeResult("2026.10.11549"),
    "compiler": ProbeResult("g++ (Debian 12.2.0-14) 12.2.0"),
    "numactl": ProbeResult(),
    "MPI": Mpi("/home/student/labs/.venv/bin/mpirun", None),
    "network": ProbeResult("can create nodes with wires between them, without root"),
    "Slurm": ProbeResult("a cluster; nodes: 12, CPUs per node: 64"),
    "data": (a_file("intact"), a_file("missing", "not needed: MNIST is here without it", name="images.gz")),
}


LABS = catalogue.labs()
TWO_LABS = [lab for lab in LABS if lab.number in ("00", "07")]


def judged(labs=TWO_LABS, *, environ=(), **observed) -> Report:
    """Judge a good machine, except for these observations of checks."""
    return judge(Facts(observed.pop("machine", machine()), dict(environ), OBSERVED | observed), labs)


def finding(report: Report, name: str) -> Finding:
    return next(finding for finding in report.findings if finding.name == name)


def verdicts(report: Report) -> tuple[str, ...]:
    return tuple(verdict.status for verdict in report.verdicts)


def fixes(report: Report, lab: str) -> list[str]:
    return next(entry["fix"] for entry in report.as_dict()["labs"] if entry["lab"].startswith(lab))


def text(report: Report, width: int = 80, **options) -> str:
    output = io.StringIO()
    view.render(report, Console(file=output, width=width, force_jupyter=False, **options))
    return output.getvalue()


# --- Synthetic machines ---


def synthetic_limits(matmul: float, peak: float | None, others: Contention | None = None) -> Limits:
    """Return limits with these GFLOP/s for the fastest FP32 matmul and for its instruction's peak."""
    products = {dtype: [Matmul("TensorFlow", 4096, matmul)] for dtype in ("float32", "bfloat16", "int8")}
    instructions = {"float32": {"instruction": "AVX2 VFMADD", "speed": peak}} if peak else {}
    return Limits(products, instructions, {"read": 100.0}, others or Contention(), "2026-12-01 10:00", AVX2)


def failed(error: str) -> ProbeResult:
    return ProbeResult(error=error)


def with_free_memory(gib: float, free: float):
    return dataclasses.replace(machine(gib=gib), memory_free=int(free * GIB))


P_AND_E = dataclasses.replace(machine(cores=6, smt=2), unequal_cores=8)
ONE_CORE = machine(cores=1, smt=2)
NEON = ("NEON", "DotProd", "SVE")
TWO_NODES = machine(cores=8, numa=2)
FORBIDDEN = failed("failed\nset_mempolicy: Operation not permitted")
REBUILD = "rm -rf .venv && ./lab setup"
BUSY = Contention(share=0.5, busy=True)
SIGILL = failed("killed by SIGILL")
OTHER_MPI, UCX = Mpi("mpirun", "/opt/mpi/lib"), {"UCX_TLS": "", "UCX_NET": ""}
JEMALLOC = {"LD_PRELOAD": "libjemalloc.so.2"}
OTHER = a_file("missing", "", "bring it", name="images.gz")


def case(check: str, status: str, seen: str, fix: str = "", labs: str = "ok ok", **differences):
    """Return a case: a check's status, parts of its observation and remedy, and the verdicts on labs 00 and 07."""
    return pytest.param(check, status, seen, fix, labs, differences, id=f"{check}-{seen}")


CASES = [
    case("cores", "ok", "64 usable", machine=machine(cores=64, smt=2, numa=2)),
    case("cores", "warn", "1 usable;", "-c 2", "warn warn", machine=machine(cores=1)),
    case("cores", "warn", "8: the CPU quota is 1.5;", "quota", "warn warn", machine=machine(cores=8, quota=1.5)),
    case("cores", "ok", "2 usable of 8: the CPU quota is 2.5", machine=machine(cores=8, quota=2.5)),
    case("cores", "ok", "4 usable; 8 CPUs are their hardware threads", machine=machine(cores=4, smt=2)),
    case("cores", "warn", "1 usable; 2 CPUs are their hardware threads", "-c 2", "warn warn", machine=ONE_CORE),
    case("cores", "warn", "two are only 1.0× as fast as one", "whole cores", "warn warn", cores=1.04),
    case("cores", "ok", "2 usable", cores=1.9),
    case("cores", "ok", "6 usable; 12 CPUs are their hardware threads, which share", machine=P_AND_E),
    case("cores", "ok", "of a core; 8 more, faster or slower (P and E cores), are unused", machine=P_AND_E),
    case("NUMA", "ok", "2 nodes, 4 + 4 CPUs", machine=TWO_NODES),
    case("ISA", "ok", "AVX2, AVX-512, VNNI, BF16, AMX"),
    case("ISA", "ok", "AVX2; no AVX-512, VNNI, BF16, AMX", machine=machine(isa=AVX2)),
    case("ISA", "warn", "no AVX2", "AVX2", "ok warn", machine=machine(isa=("AVX",))),
    case("ISA", "ok", "NEON, DotProd, SVE (Arm); no AVX, VNNI, BF16 or AMX", machine=machine(isa=NEON)),
    case("memory", "fail", "4 ranks and a notebook", "at least 4 GiB of memory", "ok fail", machine=machine(gib=2)),
    case("memory", "warn", "8.0 GiB, 2.0 free", "shut down kernels", "ok warn", machine=with_free_memory(8, 2)),
    case("memory", "ok", "8.0 GiB", machine=machine(gib=8)),
    case("disk", "fail", "0.0 GiB free", "free 1 GiB", "fail fail", disk=GIB // 20),
    case("disk", "warn", "0.5 GiB free", "free 1 GiB", "warn warn", disk=GIB // 2),
    case("speed", "ok", "`./lab roofline`"),
    case(
        "speed", "ok", "240 GFLOP/s in FP32, 83% of the AVX2 VFMADD peak of 2 cores", speed=synthetic_limits(240, 289)
    ),
    case("speed", "warn", "at least 70% is usual", "power saving", speed=synthetic_limits(690, 1000)),
    case("speed", "warn", "other work", "`./lab roofline --again` while", speed=synthetic_limits(900, 1000, BUSY)),
    case("speed", "ok", "C compiler", speed=synthetic_limits(900, None)),
    case("TensorFlow", "fail", "SIGILL", "with AVX2", "fail fail", machine=machine(isa=()), TensorFlow=SIGILL),
    case("TensorFlow", "fail", "x.so", REBUILD, "fail fail", TensorFlow=failed("x.so: cannot open shared object")),
    case("TensorFlow", "warn", "oneDNN is disabled", "report it", "warn warn", TensorFlow=ProbeResult(ONEDNN_OFF)),
    case("TensorFlow", "ok", "2.21.0 with oneDNN 3.7.3, threadpool runtime, Intel AVX-512 with Intel DL"),
    case("Horovod", "fail", "not been built", REBUILD, "ok fail", Horovod=failed("it has not been built")),
    case("Horovod", "fail", "SIGKILL", "4 GiB", "ok fail", Horovod=failed("Rank 1 was killed by SIGKILL")),
    case("Horovod", "fail", "120 s", "again while nothing", "ok fail", Horovod=failed("Timed out after 120 s")),
    case("Horovod", "fail", "failed", "unset LD_LIBRARY_PATH", "warn fail", Horovod=failed("failed"), MPI=OTHER_MPI),
    case("Horovod", "fail", "failed", "unset UCX_NET UCX_TLS", "warn fail", Horovod=failed("failed"), environ=UCX),
    case("Horovod", "fail", "SIGBUS", "--shm-size", "ok fail", Horovod=failed("Rank 0 was killed by SIGBUS")),
    case("Horovod", "fail", "threads", "ulimit -u", "ok fail", Horovod=failed("Error: can't start new threads")),
    case("kernel", "fail", "No space", "df -i", "fail fail", kernel=failed("No space left on device")),
    case("kernel", "fail", "Read-only", "set TMPDIR", "fail fail", kernel=failed("Read-only file system: '/tmp/x'")),
    case("preload", "warn", "libjemalloc.so.2", "unset LD_PRELOAD", "warn warn", environ=JEMALLOC),
    case("daal4py", "fail", "Rank 0", "report it", daal4py=failed("Rank 0 failed")),
    case("MPI", "fail", "no mpirun in this", REBUILD, "fail fail", MPI=Mpi(None, None)),
    case("MPI", "warn", "/opt/mpi/lib/libmpi.so.12", "unset LD_LIBRARY_PATH", "warn warn", MPI=OTHER_MPI),
    case("MPI", "warn", "UCX_NET, UCX_TLS", "unset UCX_NET UCX_TLS", "warn warn", environ=UCX),
    case("kernel", "fail", "/old", REBUILD, "fail fail", kernel=failed("runs in /old, not in this environment")),
    case("kernel", "fail", "cpu-labs", REBUILD, "fail fail", kernel=failed("failed\nNo such kernel named cpu-labs")),
    case("JupyterLab", "fail", "No module", REBUILD, "fail fail", JupyterLab=failed("No module named jupyterlab")),
    case("numactl", "ok", "can interleave", machine=TWO_NODES),
    case("numactl", "warn", "not installed", "apt-get install numactl", machine=TWO_NODES, numactl=None),
    case("numactl", "warn", "not permitted", "--cap-add SYS_NICE", machine=TWO_NODES, numactl=FORBIDDEN),
    case("numactl", "ok", "not installed (no effect with 1 NUMA node)", numactl=None),
    case("network", "warn", "none", "As root: do", network=failed("none. As root: do.")),
    case("Slurm", "warn", "missing: munge", "Install it", Slurm=failed("missing: munge. Install it")),
    case("data", "ok", "mnist.npz, intact"),
    case("data", "warn", "no mnist.npz: the labs use built-in digits", MISSING.fix, data=(MISSING, OTHER)),
    case("data", "fail", "data/mnist.npz is damaged: 3 bytes instead", DAMAGED.fix, "ok fail", data=(OTHER, DAMAGED)),
    case("data", "fail", "/nowhere", "LAB_DATA", "ok fail", data="there is no data folder /nowhere"),
]


@pytest.mark.parametrize(("check", "status", "seen", "fix", "labs", "differences"), CASES)
def test_a_check_names_the_problem_its_remedy_and_the_affected_labs(check, status, seen, fix, labs, differences):
    report = judged(**differences)
    result = finding(report, check)
    assert result.status == status
    assert seen in result.seen
    assert fix in result.fix
    assert bool(fix) == bool(result.fix)
    assert verdicts(report) == tuple(labs.split())
    assert report.ok == ("fail" not in labs)


def test_a_good_machine_needs_nothing():
    assert {(result.status, result.fix) for result in judged(LABS).findings} == {("ok", "")}


@pytest.mark.parametrize(
    ("check", "labs"),
    [
        ("OpenVINO", {"04"}),
        ("daal4py", {"09"}),
        ("network", {"06", "07", "08", "11"}),
        ("Slurm", {"08"}),
        ("PyTorch", {"03", "07", "08", "11"}),
        ("llama.cpp", {"10"}),
    ],
)
def test_a_failure_affects_only_labs_that_use_the_feature(check, labs):
    report = judged(LABS, **{check: SIGILL})
    assert {verdict.lab[:2] for verdict in report.verdicts if verdict.because} == labs


@pytest.mark.parametrize("daal4py", [checks.NOT_TRIED, failed("exit code 1\nNo module named 'daal4py'")])
def test_on_arm64_all_labs_run_and_one_shows_recorded_results(daal4py):
    report = judged(LABS, system="Linux aarch64", machine=machine(isa=NEON), daal4py=daal4py)
    assert not [verdict.lab for verdict in report.verdicts if verdict.status == "fail"]
    assert {verdict.lab[:2] for verdict in report.verdicts if finding(report, "daal4py") in verdict.because} == {"09"}
    assert finding(report, "daal4py").seen.startswith("not available: it has no package for Arm")


@pytest.mark.parametrize("probe", [check.name for check in CHECKS if check.cost])
@pytest.mark.parametrize(
    ("error", "helps"),
    [
        ("failed\nModuleNotFoundError: No module named 'x'", True),
        ("failed\nImportError: libmpi.so.12: cannot open shared object file: No such file or directory", True),
        ("failed\nImportError: x.so: undefined symbol: _ZN3xla", True),
        ("failed\nImportError: x.so: file too short", True),
        ("killed by SIGSEGV", False),
        ("failed\nmpirun started no rank. If job 7 has ended, leave its shell or `unset ${!SLURM_*}`", False),
        ("failed\nImportError: /usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found", False),
        ("failed\nOSError: x.so: failed to map segment from shared object", False),
    ],
)
def test_rebuilding_the_environment_is_suggested_only_if_it_helps(probe, error, helps):
    report = judged(LABS, **{probe: failed(error)})
    advice = {fix for verdict in report.verdicts for fix in verdict.fixes}
    assert len(advice) == 1
    assert ("rm -rf .venv" in advice.pop()) == helps


@pytest.mark.parametrize(
    ("installed", "seen", "fix"),
    [
        (None, "PyTorch is not installed", "To install it (1 GB): ./lab setup --torch"),
        ("2.12.0+cpu", "PyTorch 2.12.0+cpu is out of date", "To update it (1 GB): ./lab setup --torch"),
        ("2.13.0+cpu", "2.13.0+cpu", ""),
    ],
)
def test_the_quick_check_reports_missing_and_outdated_optional_features(monkeypatch, tmp_path, installed, seen, fix):
    monkeypatch.setattr(torch_ranks, "FOLDER", torch_folder(tmp_path, wanted="2.13.0+cpu", installed=installed))
    monkeypatch.setattr(probes, "obstacle", lambda: "missing: iproute2. As root: `apt-get install iproute2`.")
    report = checks.examine(quick=True)
    assert finding(report, "PyTorch")[1:3] == ("warn" if fix else "ok", seen)
    assert finding(report, "PyTorch").fix.startswith(fix)
    assert finding(report, "network").fix == "As root: `apt-get install iproute2`"


def test_the_speed_check_only_reads_stored_results(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "CACHE", tmp_path)
    monkeypatch.setattr(measure, "_measure", lambda *_: pytest.fail("the doctor measures nothing"))
    assert checks._stored_limits() is None
    monkeypatch.setattr(measure, "SOFTWARE", ("no-such-package",))  # a broken environment is left to other checks
    assert checks._stored_limits() is None


# --- The table of labs, and the report ---


def test_labs_need_existing_checks():
    assert {name for lab in LABS for name in (*lab.needs, *lab.better_with)} <= {check.name for check in CHECKS}


def test_a_lab_runs_without_optional_features():
    feature = ("daal4py",)
    labs = [dataclasses.replace(LABS[0], needs=n, better_with=b) for n, b in ((feature, ()), ((), feature), ((), ()))]
    report = judged(labs, daal4py=ProbeResult(error="failed"))
    assert verdicts(report) == ("fail", "warn", "ok")
    assert [[f.name for f in verdict.because] for verdict in report.verdicts] == [["daal4py"], ["daal4py"], []]


def test_as_dict_can_be_json_and_has_stable_keys():
    report = judged(data=(DAMAGED,), machine=machine(cores=8, quota=1.5))
    content = json.loads(json.dumps(report.as_dict()))
    assert content.keys() == {"ok", "machine", "checks", "labs"}
    machine_keys = {"cpus", "cores", "quota", "memory", "memory_free", "isa", "numa", "model", "usable_cores"}
    machine_keys |= {"unequal_cores"}
    assert content["machine"].keys() == machine_keys
    assert content["machine"]["quota"] == 1.5
    assert content["ok"] is False
    assert [check["name"] for check in content["checks"]] == [check.name for check in CHECKS]
    assert all(check.keys() == {"name", "status", "seen", "fix"} for check in content["checks"])
    assert content["labs"][1] == {
        "lab": "07 · Horovod on the MNIST CNN: spot the fake",
        "status": "fail",
        "because": ["data"],
        "fix": [DAMAGED.fix],
    }


def test_the_report_is_readable_at_80_columns_without_colour():
    path = "/a/very/long/path" * 10
    observed = {"Horovod": failed(f"Rank 1 failed\n{path}"), "MPI": Mpi("mpirun", "/[b]apps[/b]")}
    report = judged(data=(DAMAGED,), machine=machine(cores=1), **observed)
    plain = text(report, color_system=None)
    assert path in "".join(plain.split())  # never truncated
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "\x1b" not in plain
    words = " ".join(plain.split())
    assert "fail data data/mnist.npz is damaged" in words
    assert "00 · Welcome: how fast is your machine? can run, but check: cores, MPI" in words
    assert "07 · Horovod on the MNIST CNN: spot the fake cannot run: Horovod, data" in words
    assert plain.count(DAMAGED.fix) == 1  # next to its check, not with each lab
    assert "labs can run" not in plain
    assert "puts /[b]apps[/b]/libmpi.so.12" in words  # markup is not interpreted


def test_a_terminal_shows_all_checks_and_the_affected_labs():
    report = judged(LABS, data=(MISSING,))
    plain = text(report, color_system=None)
    words = " ".join(plain.split())
    assert [line.split()[1] for line in plain.splitlines() if line.startswith("ok")] == [
        *("machine", "CPU", "Python", "packages", "parallel")
    ]
    assert "ok Python 3.11.9 in" in words
    assert all(result.seen in words for result in report.findings)
    assert "warn data no mnist.npz" in words
    assert " All labs can run. Optional, and missing: data (for 02, " in words


def test_a_notebook_shows_only_what_needs_attention():
    assert view.as_text(judged(LABS)).splitlines()[1:] == ["", "All labs can run."]
    missing = judged(data=(MISSING,))
    assert view.as_text(missing).splitlines()[2:] == [
        "warn  data  no mnist.npz: the labs use built-in digits instead",
        "            fix: `./lab data fetch` downloads it",
        "",
        "All labs can run.",
        "Optional, and missing: data (for 07). Labs then show recorded results, or use less data.",
    ]


def test_on_a_hub_remedies_are_for_its_administrator(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_USER", "seat-01")
    assert "for the hub's administrator: `./lab data fetch` downloads it" in view.as_text(judged(data=(MISSING,)))


# --- This machine ---


def test_a_shadowing_mpi(tmp_path):
    environment, other, empty = (tmp_path / name for name in ("environment", "other", "empty"))
    for folder in (environment, other, empty):
        folder.mkdir()
    for folder in (environment, other):
        (folder / "libmpi.so.12").touch()
    link = tmp_path / "link"
    link.symlink_to(environment)
    assert probes.shadowing_mpi("", environment) is None
    assert probes.shadowing_mpi(f"{empty}:/nowhere", environment) is None
    assert probes.shadowing_mpi(f"{empty}::{other}:{environment}", environment) == str(other)
    assert probes.shadowing_mpi(f"{link}:{other}", environment) is None


def test_python_that_fails_hangs_or_crashes(tmp_path):
    assert probes.try_python("-c", "print(1)") == ProbeResult("1")
    failed = probes.try_python("-c", "print('so far'); raise ImportError('no such thing')")
    assert failed.output == "so far"
    assert failed.error.endswith("ImportError: no such thing")
    assert probes.try_python("-c", "import time; time.sleep(60)", timeout=0.2).error == "Timed out after 0.2 s"
    crashed = probes.try_python("-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert crashed.error == "killed by SIGILL"


def test_ranks_that_fail_or_hang(tmp_path):
    script = tmp_path / "probe.py"
    script.write_text("raise SystemExit('This rank is alone')")
    assert probes.try_ranks(script).error.endswith("This rank is alone")
    script.write_text("import time; time.sleep(60)")
    assert probes.try_ranks(script, timeout=2).error.startswith("Timed out after 2 s")


@pytest.mark.slow
def test_a_probe_detects_a_rank_alone():
    """Under another MPI's mpirun, each process believes it is the only rank."""
    assert "This rank is alone" in probes.try_python("allreduce_daal4py.py").error


@pytest.mark.slow
def test_a_kernel_of_the_same_name_elsewhere_is_not_started(tmp_path, monkeypatch):
    for variable, folder in (("JUPYTER_PATH", tmp_path), ("JUPYTER_DATA_DIR", tmp_path / "data")):
        spec = folder / "kernels" / kernels.KERNEL["name"] / "kernel.json"
        spec.parent.mkdir(parents=True)
        spec.write_text(json.dumps({"argv": ["/old/bin/python"], "display_name": "old", "language": "python"}))
        monkeypatch.setenv(variable, str(folder))
    assert checks._try_kernel() == ProbeResult("runs in this environment")


@pytest.mark.slow
def test_this_machine_can_run_the_labs():
    """Run all real probes on the machine that runs the tests."""
    kernels.settle_environment(os.environ)
    steps = []
    report = judge(checks.observe(steps.append))
    assert len(steps) == 2
    assert finding(report, "Horovod").seen.endswith("sums correctly over 2 ranks")
    for name in ("system", "Python", "TensorFlow", "Horovod", "daal4py", "JupyterLab", "kernel"):
        assert finding(report, name).status == "ok", finding(report, name)


def test_a_quick_check_runs_no_probe_and_says_so(monkeypatch):
    monkeypatch.setattr(probes, "try_command", lambda *args, **_: pytest.fail("a probe ran"))
    monkeypatch.setattr(probes, "run_ranks", lambda *args, **_: pytest.fail("ranks ran"))
    report = checks.examine(quick=True)
    untried = {result.name for result in report.findings if result.seen == "not tried in a quick check"}
    assert untried == {check.name for check in CHECKS if check.cost}
    assert {finding(report, name).status for name in untried} == {"warn"}
    assert "`./lab doctor` tries it" in fixes(report, "00")


def test_a_summary_has_three_lines():
    damaged = {"Horovod": failed("Rank 0"), "numactl": None, "machine": machine(cores=8, numa=2)}
    untried = {check.name: checks.NOT_TRIED for check in CHECKS if check.cost == "seconds"}
    machine_line, attention, labs = view.summary(judged(LABS, **untried | damaged)).splitlines()
    assert machine_line.endswith(": cores 8 usable; AVX2, AVX-512, VNNI, BF16, AMX; 16.0 GiB of memory.")
    assert attention == (
        "Needs attention (./lab doctor): Horovod. Optional, and missing: numactl. "
        "Not tried yet: JupyterLab, kernel, TensorFlow, OpenVINO."
    )
    assert labs == "Labs: can run 00, 01, 02, 03, 04, 05, 06, 09, 10, 11; can't run 07, 08."
    assert view.summary(judged()).splitlines()[1:] == ["Nothing needs attention.", "Labs: can run 00, 07."]


@pytest.mark.slow
def test_a_disabled_onednn_is_detected(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    probe = probes.try_python("onednn.py")
    assert probe.error == ""
    assert "oneDNN is disabled" in finding(judged(TensorFlow=probe), "TensorFlow").seen
