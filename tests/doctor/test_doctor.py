"""Tests of the doctor: its verdicts on synthetic machines, and its probes on this one."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import tomllib

import pytest
from machines import machine
from packaging.specifiers import SpecifierSet
from rich.console import Console
from torch_folder import torch_folder

from labkit.data.mnist import FileStatus
from labkit.display import machines
from labkit.doctor import checks, probes, speed, view
from labkit.doctor.checks import Finding, Report, judge
from labkit.doctor.labs import LABS, Lab
from labkit.doctor.probes import Facts, ProbeResult
from labkit.exercises import catalogue
from labkit.mpi import torch_ranks
from labkit.roofline import measure
from labkit.roofline.measure import Limits, Matmul
from labkit.slurm import cluster
from labkit.system import environment, kernels, paths
from labkit.system.load import Contention
from labkit.system.paths import DATA
from labkit_author import minutes

GIB = 2**30
AVX2 = ("AVX", "AVX2")
FULL = (*AVX2, "AVX-512", "VNNI", "BF16", "AMX")

ONEDNN_ON = """\
TensorFlow 2.21.0
onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost\x20
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward_training,src:f32::blocked:acdb::f0,,3.2
"""
# Printed by TensorFlow 2.21 with TF_ENABLE_ONEDNN_OPTS=0: Eigen's matmuls, but no convolution.
ONEDNN_OFF = """\
TensorFlow 2.21.0
onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2
onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_f32::blocked:ab:f0,,,496x144:144x16,76.0
"""


def a_file(state: str, detail: str = "", fix: str = "", name: str = "mnist.npz") -> FileStatus:
    return FileStatus(name, state, DATA / name, detail, fix)


MISSING = a_file("missing", "the labs use built-in digits instead", "`./lab data fetch` downloads it")
DAMAGED = a_file("damaged", "3 bytes instead of 11,490,434", "`./lab data fetch` replaces it, or delete it")

GOOD = Facts(
    system="Linux x86_64",
    python="3.11.9",
    prefix="/home/student/labs/.venv",
    environ={"HOME": "/home/student"},
    machine=machine(),
    disk_free=20 * GIB,
    mpirun="/home/student/labs/.venv/bin/mpirun",
    other_mpi=None,
    data=(a_file("intact"), a_file("missing", "not needed: MNIST is here without it", name="images.gz")),
    onednn=ProbeResult(ONEDNN_ON),
    horovod=ProbeResult("0.28.1, sums correctly over 2 ranks"),
    daal4py=ProbeResult("2026.2.0, sums correctly over 2 ranks"),
    openvino=ProbeResult("runs an 8-bit model (OpenVINO GenAI 2026.4.1.0-3408-ab01d1771e4, NNCF 3.4.0)"),
    kernel=ProbeResult("/home/student/labs/.venv"),
    jupyterlab=ProbeResult("4.6.6"),
    numactl=ProbeResult(),
    network=ProbeResult("can create nodes with wires between them, without root"),
    slurm=ProbeResult("a cluster; nodes: 12, CPUs per node: 64"),
    torch=ProbeResult("2.13.0+cpu"),
    shares={"AVX2 VFMADD": 0.91},
)


TWO_LABS = tuple(lab for lab in LABS if lab.name[:2] in ("00", "07"))


def judged(**differences) -> Report:
    return judge(dataclasses.replace(GOOD, **differences), TWO_LABS)


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


class TestSpeed:
    """Tests of the speed check, which compares this machine with others of its class."""

    def test_without_measurements_it_passes_and_names_the_command(self):
        result = finding(judged(limits=None), "speed")
        assert (result.status, result.fix) == ("ok", "")
        assert "`./lab roofline`" in result.seen

    def test_it_reports_the_share_of_the_instructions_peak(self):
        result = finding(judged(limits=synthetic_limits(240, 289), machine=machine(isa=AVX2)), "speed")
        assert result == (
            "speed",
            "ok",
            "240 GFLOP/s in FP32, 83% of the AVX2 VFMADD peak of 2 cores (289)",
            "",
        )

    @pytest.mark.parametrize(("share", "status"), [(0.71, "ok"), (0.68, "warn")])
    def test_a_share_far_below_the_usual_is_a_warning_with_likely_causes(self, share, status):
        result = finding(judged(limits=synthetic_limits(1000 * share, 1000)), "speed")
        assert result.status == status
        for cause in ("power saving", "other VMs on the same host", "limits on cores"):
            assert (cause in result.fix) == (status == "warn")

    def test_figures_from_a_busy_machine_must_be_measured_again(self):
        result = finding(judged(limits=synthetic_limits(900, 1000, Contention(share=0.5, busy=True))), "speed")
        assert (result.status, result.fix) == ("warn", "`./lab roofline --again` while nothing else runs")

    def test_an_instruction_without_known_machines_gives_no_warning(self):
        result = finding(judged(limits=synthetic_limits(100, 1000), shares={"AVX-512 VFMADD": 0.9}), "speed")
        assert result[1:] == ("ok", "100 GFLOP/s in FP32, 10% of the AVX2 VFMADD peak of 2 cores (1,000)", "")

    def test_the_usual_share_is_that_of_the_slowest_known_machine(self, monkeypatch):
        def report(instruction, matmul, peak):
            instructions = {"float32": {"instruction": instruction, "speed": peak}} if instruction else {}
            return {"limits": {"peaks": {"float32": matmul}, "instructions": instructions}}

        reports = [report("A", 90, 100), report("A", 160, 200), report("B", 70, 100), report(None, 1, 0)]
        monkeypatch.setattr(machines, "read_all", lambda: reports)
        assert speed.usual_shares() == {"A": 0.8, "B": 0.7}

    def test_without_a_compiler_it_passes_and_says_so(self):
        result = finding(judged(limits=synthetic_limits(900, None)), "speed")
        assert result.status == "ok"
        assert "C compiler" in result.seen

    def test_a_slow_machine_stops_no_lab(self):
        assert verdicts(judged(limits=synthetic_limits(1, 1000))) == ("ok", "ok")

    def test_it_only_reads_stored_results(self, monkeypatch, tmp_path):
        monkeypatch.setattr(measure, "CACHE", tmp_path)
        monkeypatch.setattr(measure, "_measure", lambda *_: pytest.fail("the doctor measures nothing"))
        assert speed.stored_limits() is None

    def test_a_broken_environment_is_left_to_other_checks(self, monkeypatch):
        monkeypatch.setattr(measure, "SOFTWARE", ("no-such-package",))
        assert speed.stored_limits() is None

    def test_the_tolerance_equals_that_of_the_time_plans(self):
        assert speed.MAX_SLOWDOWN == minutes.MAX_SLOWDOWN


def test_two_core_vm():
    report = judged()
    assert report.ok
    assert verdicts(report) == ("ok", "ok")
    assert {finding.status for finding in report.findings} == {"ok"}
    assert not any(finding.fix for finding in report.findings)
    assert finding(report, "oneDNN").seen == "3.7.3, enabled, threadpool runtime, Intel AVX-512 with Intel DL Boost"
    assert finding(report, "TensorFlow").seen == "2.21.0"
    assert finding(report, "data").seen == "mnist.npz, intact"


def test_big_machine():
    report = judged(machine=machine(cores=64, smt=2, numa=2, gib=512))
    assert verdicts(report) == ("ok", "ok")
    assert finding(report, "cores").seen == "64 usable"
    assert finding(report, "NUMA").seen == "2 nodes, 64 + 64 CPUs"
    assert finding(report, "ISA").seen == "AVX2, AVX-512, VNNI, BF16, AMX"


def test_four_cores_8_gb_without_avx512():
    report = judged(machine=machine(cores=4, gib=8, isa=AVX2))
    assert verdicts(report) == ("ok", "ok")
    assert finding(report, "ISA") == Finding("ISA", "ok", "AVX2; no AVX-512, VNNI, BF16, AMX", "")
    assert finding(report, "memory").status == "ok"


@pytest.mark.parametrize(
    ("machine", "seen", "fix"),
    [
        (machine(cores=1), "1 usable;", "-c 2"),
        (machine(cores=1, smt=2), "1 usable;", "-c 2"),
        (machine(cores=8, quota=1.5), "1 usable of 8: the CPU quota is 1.5;", "raise the CPU quota"),
    ],
)
def test_one_usable_core_is_a_warning(machine, seen, fix):
    report = judged(machine=machine)
    assert report.ok
    assert verdicts(report) == ("warn", "warn")
    assert finding(report, "cores").seen.startswith(seen)
    assert fix in fixes(report, "00")[0]
    assert fix in fixes(report, "07")[0]


def test_a_quota_of_two_cores_is_reported():
    report = judged(machine=machine(cores=8, quota=2.5))
    assert verdicts(report) == ("ok", "ok")
    assert finding(report, "cores").seen == "2 usable of 8: the CPU quota is 2.5"


def test_little_memory_stops_only_the_lab_with_four_ranks():
    report = judged(machine=machine(gib=2))
    assert not report.ok
    assert verdicts(report) == ("ok", "fail")
    assert "at least 4 GiB of memory" in fixes(report, "07")[0]


def test_memory_used_by_other_programs_is_a_warning():
    busy = dataclasses.replace(machine(gib=8), memory_free=2 * GIB)
    report = judged(machine=busy)
    assert verdicts(report) == ("ok", "warn")
    assert fixes(report, "07") == ["shut down kernels and programs you don't need"]


@pytest.mark.parametrize(("free", "status"), [(0.05, "fail"), (0.5, "warn"), (5, "ok")])
def test_disk(free, status):
    report = judged(disk_free=int(free * GIB))
    assert finding(report, "disk").status == status
    assert verdicts(report) == (status, status)
    assert bool(fixes(report, "00")) == (status != "ok")


def test_cpu_without_avx():
    crash = ProbeResult(error="killed by SIGILL")
    report = judged(machine=machine(isa=()), onednn=crash)
    assert verdicts(report) == ("ok", "fail")
    assert fixes(report, "07") == ["use a CPU (or, in a virtual machine, a CPU type) with AVX2"]


def test_cpu_without_avx2():
    report = judged(machine=machine(isa=("AVX",)))
    assert report.ok
    assert finding(report, "ISA").status == "warn"
    assert verdicts(report) == ("ok", "warn")


@pytest.mark.parametrize("system", ["Linux riscv64", "Darwin arm64", "Darwin x86_64"])
def test_other_systems(system):
    report = judged(system=system)
    assert verdicts(report) == ("fail", "fail")
    assert "Linux on x86-64 or Arm64" in fixes(report, "00")[0]


@pytest.mark.parametrize(
    "daal4py", [probes.NOT_TRIED, ProbeResult(error="exit code 1\nModuleNotFoundError: No module named 'daal4py'")]
)
def test_on_arm64_all_labs_run_except_the_one_without_a_package(daal4py):
    isa = ("NEON", "DotProd", "SVE")
    report = judge(dataclasses.replace(GOOD, system="Linux aarch64", machine=machine(isa=isa), daal4py=daal4py))
    assert [verdict.lab[:2] for verdict in report.verdicts if verdict.status == "fail"] == ["09"]
    assert fixes(report, "09") == ["use an x86-64 machine for lab 09"]
    assert finding(report, "daal4py").seen == "not available: it has no package for Arm"
    assert finding(report, "ISA")[1:3] == (
        "ok",
        f"{', '.join(isa)} (Arm); no AVX, VNNI, BF16 or AMX, which some labs use",
    )


@pytest.mark.parametrize("python", [f"3.{minor}.2" for minor in range(9, 16)])
def test_supported_pythons_are_those_the_packages_are_locked_for(python):
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    locked = SpecifierSet(project["requires-python"]).contains(python)
    assert finding(judged(python=python), "Python").status == ("ok" if locked else "fail")


def test_no_mnist():
    report = judged(data=(MISSING, a_file("missing", "", "other", name="images.gz")))
    assert report.ok
    assert verdicts(report) == ("ok", "warn")
    assert finding(report, "data").seen == "no mnist.npz: the labs use built-in digits instead"
    assert fixes(report, "07") == ["`./lab data fetch` downloads it"]


def test_damaged_data():
    report = judged(data=(a_file("missing", name="first", fix="bring"), DAMAGED))
    assert not report.ok
    assert verdicts(report) == ("ok", "fail")
    assert finding(report, "data").seen == "data/mnist.npz is damaged: 3 bytes instead of 11,490,434"
    assert fixes(report, "07") == [DAMAGED.fix]


def test_missing_data_folder():
    report = judged(data="There is no data folder /nowhere")
    assert verdicts(report) == ("ok", "fail")
    assert "LAB_DATA" in fixes(report, "07")[0]


def test_tensorflow_that_does_not_import():
    report = judged(
        onednn=ProbeResult(error="failed\nImportError: libtensorflow_framework.so.2: cannot open shared object file")
    )
    assert not report.ok
    assert verdicts(report) == ("ok", "fail")
    assert finding(report, "TensorFlow").seen.endswith("libtensorflow_framework.so.2: cannot open shared object file")
    assert finding(report, "oneDNN").seen == "not tried, as TensorFlow failed"
    assert "./lab setup" in fixes(report, "07")[0]
    assert len(fixes(report, "07")) == 1


def test_onednn_off():
    report = judged(onednn=ProbeResult(ONEDNN_OFF))
    assert report.ok
    assert verdicts(report) == ("ok", "warn")
    assert finding(report, "oneDNN")[1:3] == ("warn", "disabled: a convolution ran without it")


LAB_03 = tuple(lab for lab in LABS if lab.name.startswith("03"))
LAB_08 = tuple(lab for lab in LABS if lab.name.startswith("08"))


def test_without_slurm_lab_08_still_runs():
    missing = ProbeResult(
        error="missing: slurm-wlm munge. On Debian and Ubuntu: `sudo apt-get install slurm-wlm munge`"
    )
    report = judge(dataclasses.replace(GOOD, slurm=missing), LAB_08)
    assert verdicts(report) == ("warn",)
    assert finding(report, "Slurm").seen.endswith("missing: slurm-wlm munge")
    assert fixes(report, "08") == ["On Debian and Ubuntu: `sudo apt-get install slurm-wlm munge`"]
    assert verdicts(judge(GOOD, LAB_08)) == ("ok",)


@pytest.mark.parametrize(
    ("slurm", "obstacle", "result"),
    [
        (cluster.Slurm("real", 12, 64, {}), "missing", ProbeResult("a cluster; nodes: 12, CPUs per node: 64")),
        (
            cluster.Slurm("own", 2, 1, {}),
            "",
            ProbeResult("a small cluster on this machine; nodes: 2, CPUs per node: 1"),
        ),
        (None, "", ProbeResult("no cluster; `./lab cluster up` starts one on this machine")),
    ],
)
def test_slurm_is_a_cluster_or_one_that_can_be_started(monkeypatch, slurm, obstacle, result):
    monkeypatch.setattr(cluster, "find_slurm", lambda: slurm)
    monkeypatch.setattr(cluster, "obstacle", lambda: obstacle)
    assert probes.try_slurm() == result


@pytest.mark.parametrize(
    ("obstacle", "seen", "fix"),
    [
        (
            "the kernel allows no network namespaces. As root: `sysctl -w user.max_net_namespaces=10000`.",
            "no nodes with wires between them: the kernel allows no network namespaces",
            "As root: `sysctl -w user.max_net_namespaces=10000`",
        ),
        (
            "unshare of util-linux 2.36 or later is needed (`unshare --version`).",
            "no nodes with wires between them: unshare of util-linux 2.36 or later is needed (`unshare --version`)",
            "",
        ),
    ],
)
def test_without_a_network_the_labs_run_in_shared_memory(obstacle, seen, fix):
    report = judge(dataclasses.replace(GOOD, network=ProbeResult("can create nodes", obstacle)))
    assert finding(report, "network") == Finding("network", "warn", seen, fix)
    assert report.ok
    assert {verdict.lab[:2] for verdict in report.verdicts if verdict.status != "ok"} == {"06", "07", "08", "11"}
    assert fixes(report, "06") == ([fix] if fix else [])
    assert finding(judged(), "network").status == "ok"


@pytest.mark.parametrize(("user", "rights"), [(0, ""), (1000, ", without root")])
def test_a_network_is_tried(monkeypatch, user, rights):
    monkeypatch.setattr(probes.os, "geteuid", lambda: user)
    monkeypatch.setattr(probes, "obstacle", lambda: "")
    assert probes.try_network() == ProbeResult(f"can create nodes with wires between them{rights}")


def test_the_quick_check_reports_an_impossible_network_too(monkeypatch):
    monkeypatch.setattr(probes, "obstacle", lambda: "missing: iproute2. As root: `apt-get install iproute2`.")
    report = checks.examine(quick=True)
    assert finding(report, "network")[1:] == (
        "warn",
        "no nodes with wires between them: missing: iproute2",
        "As root: `apt-get install iproute2`",
    )


WITH_PYTORCH = (Lab("11 After the all-reduce", (), better_with=("PyTorch",)),)


@pytest.mark.parametrize(
    ("installed", "seen", "fix"),
    [
        (None, "PyTorch is not installed", "To install it (1 GB): ./lab setup --torch"),
        ("2.12.0+cpu", "PyTorch 2.12.0+cpu is out of date", "To update it (1 GB): ./lab setup --torch"),
        ("2.13.0+cpu", "2.13.0+cpu", ""),
    ],
)
def test_the_quick_check_reports_a_missing_or_outdated_pytorch(monkeypatch, tmp_path, installed, seen, fix):
    monkeypatch.setattr(torch_ranks, "FOLDER", torch_folder(tmp_path, wanted="2.13.0+cpu", installed=installed))
    result = finding(checks.examine(quick=True), "PyTorch")
    assert (result.status, result.seen) == ("warn" if fix else "ok", seen)
    assert result.fix.startswith(fix)
    torch = ProbeResult(torch_ranks.version(), torch_ranks.obstacle())
    assert verdicts(judge(dataclasses.replace(GOOD, torch=torch), WITH_PYTORCH)) == (result.status,)


TWO_NODES = machine(cores=8, numa=2)
FORBIDDEN = ProbeResult(error="failed\nset_mempolicy: Operation not permitted")


@pytest.mark.parametrize(
    ("numactl", "machine", "status", "seen", "fix"),
    [
        (ProbeResult(), TWO_NODES, "ok", "can interleave", ""),
        (None, TWO_NODES, "warn", "not installed", "`sudo apt-get install numactl`"),
        (FORBIDDEN, TWO_NODES, "warn", "Operation not permitted", "--cap-add SYS_NICE"),
        (None, machine(), "ok", "not installed (no effect with 1 NUMA node)", ""),
        (FORBIDDEN, machine(), "ok", "with 1 NUMA node", ""),
    ],
)
def test_numactl(numactl, machine, status, seen, fix):
    report = judge(dataclasses.replace(GOOD, numactl=numactl, machine=machine), LAB_03)
    result = finding(report, "numactl")
    assert result.status == status
    assert seen in result.seen
    assert fix in result.fix
    assert bool(result.fix) == bool(fix)
    assert verdicts(report) == (status,)


def test_horovod_that_fails():
    error = "Rank 1 failed. Its last lines:\n  ImportError: Extension horovod.tensorflow has not been built"
    report = judged(horovod=ProbeResult(error=error))
    assert not report.ok
    assert verdicts(report) == ("ok", "fail")
    assert finding(report, "Horovod").seen == error
    assert "./lab setup" in fixes(report, "07")[0]
    assert "has not been built" in text(report, width=120)


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        ({"other_mpi": "/opt/mpi/lib"}, "unset LD_LIBRARY_PATH"),
        ({"environ": {"UCX_TLS": "rc"}}, "unset UCX_TLS"),
        ({"horovod": ProbeResult(error="Rank 1 was killed by SIGKILL (did memory run out?)")}, "4 GiB"),
        ({"horovod": ProbeResult(error="Timed out after 120 s, and all ranks were ended.")}, "again"),
    ],
)
def test_the_fix_for_a_failed_probe_names_the_cause(facts, fix):
    report = judged(**({"horovod": ProbeResult(error="Rank 0 failed")} | facts))
    assert fix in finding(report, "Horovod").fix
    assert fix in "".join(fixes(report, "07"))


PROBES = ("onednn", "horovod", "daal4py", "openvino", "jupyterlab", "kernel")


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    ("error", "helps"),
    [
        ("failed\nModuleNotFoundError: No module named 'x'", True),
        ("failed\nImportError: libmpi.so.12: cannot open shared object file: No such file or directory", True),
        ("failed\nImportError: x.so: undefined symbol: _ZN3xla", True),
        ("failed\nImportError: x.so: file too short", True),
        ("killed by SIGSEGV", False),
        ("killed by SIGBUS", False),
        ("failed\nOSError: [Errno 28] No space left on device", False),
        ("failed\nImportError: /usr/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found", False),
        ("failed\nOSError: x.so: failed to map segment from shared object", False),
        ("failed\nPermissionError: [Errno 13] Permission denied: '/dev/shm/x'", False),
    ],
)
def test_rebuilding_the_environment_is_suggested_only_if_it_helps(probe, error, helps):
    report = judge(dataclasses.replace(GOOD, **{probe: ProbeResult(error=error)}))
    advice = {fix for verdict in report.verdicts for fix in verdict.fixes}
    assert len(advice) == 1
    assert ("rm -rf .venv" in advice.pop()) == helps


def test_labs_04_and_10_need_openvino():
    report = judge(dataclasses.replace(GOOD, openvino=ProbeResult(error="killed by SIGILL")))
    assert [verdict.lab[:2] for verdict in report.verdicts if verdict.status != "ok"] == ["04", "10"]


def test_p_and_e_cores_are_reported():
    report = judged(machine=dataclasses.replace(machine(cores=6, smt=2), unequal_cores=8))
    assert verdicts(report) == ("ok", "ok")
    assert finding(report, "cores").seen.startswith("6 usable; 8 more, faster or slower (P and E cores), are unused")


def test_a_daal4py_failure_stops_no_lab_that_does_not_use_it():
    report = judged(daal4py=ProbeResult(error="Rank 0 failed"))
    assert finding(report, "daal4py").status == "fail"
    assert verdicts(report) == ("ok", "ok")


@pytest.mark.parametrize(
    ("facts", "status", "seen", "fix"),
    [
        ({"mpirun": None}, "fail", "no mpirun in this", "./lab setup"),
        ({"other_mpi": "/opt/mpi/lib"}, "warn", "/opt/mpi/lib/libmpi.so.12", "unset LD_LIBRARY_PATH"),
        ({"environ": {"UCX_TLS": "", "UCX_NET": ""}}, "warn", "UCX_NET, UCX_TLS", "unset UCX_NET UCX_TLS"),
    ],
)
def test_mpi(facts, status, seen, fix):
    report = judged(**facts)
    assert verdicts(report) == (status, status)
    assert seen in finding(report, "MPI").seen
    assert fix in fixes(report, "00")[0]


@pytest.mark.parametrize(
    "kernel", [ProbeResult("/old/.venv"), ProbeResult(error="failed\nNoSuchKernel: No such kernel named cpu-labs")]
)
def test_wrong_kernel(kernel):
    report = judged(kernel=kernel)
    assert verdicts(report) == ("fail", "fail")
    assert "./lab setup" in fixes(report, "00")[0]


def test_jupyterlab_that_does_not_start():
    report = judged(jupyterlab=ProbeResult(error="failed\nNo module named jupyterlab"))
    assert verdicts(report) == ("fail", "fail")
    assert "./lab setup" in fixes(report, "00")[0]


# --- The table of labs, and the report ---


def test_every_lab_has_a_line_and_names_existing_checks():
    assert [lab.name[:2] for lab in LABS] == [lab.number for lab in catalogue.labs()]
    assert {name for lab in LABS for name in (*lab.needs, *lab.better_with)} <= checks.CHECKS.keys()


def test_each_check_is_in_one_group_of_the_report():
    assert sorted(name for names in view.GROUPS.values() for name in names) == sorted(checks.CHECKS)


def test_a_lab_runs_without_optional_features():
    labs = (Lab("needs it", ("daal4py",)), Lab("better with it", ("system",), ("daal4py",)), Lab("neither", ()))
    report = judge(dataclasses.replace(GOOD, daal4py=ProbeResult(error="failed")), labs)
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
    assert [check["name"] for check in content["checks"]] == list(checks.CHECKS)
    assert all(check.keys() == {"name", "status", "seen", "fix"} for check in content["checks"])
    assert content["labs"][1] == {
        "lab": "07 Horovod on the MNIST CNN",
        "status": "fail",
        "because": ["data"],
        "fix": [DAMAGED.fix],
    }


def test_the_report_is_readable_at_80_columns_without_colour():
    report = judged(data=(DAMAGED,), machine=machine(cores=1), other_mpi="/[b]apps[/b]")
    plain = text(report, color_system=None)
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "\x1b" not in plain
    words = " ".join(plain.split())
    assert "fail data data/mnist.npz is damaged" in words
    assert "00 Welcome can run, but check: MPI, cores" in words
    assert "07 Horovod on the MNIST CNN cannot run: data" in words
    assert plain.count(DAMAGED.fix) == 1  # next to its check, not with each lab
    assert "labs can run" not in plain
    assert "puts /[b]apps[/b]/libmpi.so.12" in words  # markup is not interpreted


def test_the_report_never_truncates_long_paths():
    path = "/a/very/long/path" * 10
    report = judged(horovod=ProbeResult(error=f"Rank 1 failed\n{path}/mpi_lib.so"))
    assert f"{path}/mpi_lib.so" in "".join(text(report, color_system=None).split())


def test_a_terminal_shows_all_checks_and_the_affected_labs():
    report = judge(dataclasses.replace(GOOD, data=(MISSING,)))
    plain = text(report, color_system=None)
    words = " ".join(plain.split())
    assert [line.split()[1] for line in plain.splitlines() if line.startswith("ok")] == [*view.GROUPS][:-1]
    assert "ok Python 3.11.9 in" in words
    assert all(result.seen in words for result in report.findings)
    assert "warn data no mnist.npz" in words
    assert "02 oneDNN under an MNIST CNN  can run, but check: data" in plain
    assert plain.endswith("\n8 other labs can run.\n")


@pytest.mark.parametrize("facts", [GOOD, dataclasses.replace(GOOD, limits=synthetic_limits(240, 289))])
def test_the_report_on_a_healthy_machine_is_short(facts):
    lines = text(judge(facts), width=100, color_system=None).splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= 100
    assert lines[-1] == "All labs can run."


def test_a_notebook_shows_only_what_needs_attention():
    assert view.as_text(judge(GOOD)).splitlines()[1:] == ["", "All labs can run."]
    missing = judged(data=(MISSING,))
    assert view.as_text(missing).splitlines()[2:] == [
        "warn  data  no mnist.npz: the labs use built-in digits instead",
        "            fix: `./lab data fetch` downloads it",
        "",
        "07 Horovod on the MNIST CNN  can run, but check: data",
        "1 other lab can run.",
    ]


# --- This machine ---


def test_other_mpi(tmp_path):
    environment, other, empty = (tmp_path / name for name in ("environment", "other", "empty"))
    for folder in (environment, other, empty):
        folder.mkdir()
    for folder in (environment, other):
        (folder / "libmpi.so.12").touch()
    link = tmp_path / "link"
    link.symlink_to(environment)
    assert probes.other_mpi("", environment) is None
    assert probes.other_mpi(f"{empty}:/nowhere", environment) is None
    assert probes.other_mpi(f"{empty}::{other}:{environment}", environment) == str(other)
    assert probes.other_mpi(f"{link}:{other}", environment) is None


def test_python_that_fails_hangs_or_crashes(tmp_path):
    assert probes.try_python("-c", "print(1)") == ProbeResult("1")
    failed = probes.try_python("-c", "print('so far'); raise ImportError('no such thing')")
    assert failed.output == "so far"
    assert failed.error.endswith("ImportError: no such thing")
    assert probes.try_python("-c", "import time; time.sleep(60)", timeout=0.2).error == "Timed out after 0.2 s"
    crashed = probes.try_python("-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert crashed.error == "killed by SIGILL"


def test_a_failed_probe_keeps_how_it_ended_and_its_last_lines():
    lines = "\n".join(f"raise ValueError({n})" for n in range(20))
    error = probes.try_python(
        "-c", f"import sys; print({lines!r}, '  ^^^^', '', file=sys.stderr, sep='\\n'); sys.exit(3)"
    ).error
    assert error.splitlines() == ["failed", *(f"raise ValueError({n})" for n in (17, 18, 19))]


def test_a_missing_program():
    result = probes.try_command("/nowhere/python", "-c", "1")
    assert result == ProbeResult(error="cannot start /nowhere/python: No such file or directory.")


def test_ranks_that_fail_or_hang(tmp_path):
    script = tmp_path / "probe.py"
    script.write_text("raise SystemExit('This rank is alone')")
    assert probes.try_ranks(script).error.endswith("This rank is alone")
    script.write_text("import time; time.sleep(60)")
    assert probes.try_ranks(script, timeout=2).error.startswith("Timed out after 2 s")


@pytest.mark.slow
def test_a_probe_detects_a_rank_alone():
    """Under another MPI's mpirun, each process believes it is the only rank."""
    assert "This rank is alone" in probes.try_python(probes.SCRIPTS / "allreduce_daal4py.py").error


@pytest.mark.slow
def test_a_kernel_of_the_same_name_elsewhere_is_not_started(tmp_path, monkeypatch):
    for variable, folder in (("JUPYTER_PATH", tmp_path), ("JUPYTER_DATA_DIR", tmp_path / "data")):
        spec = folder / "kernels" / kernels.KERNEL["name"] / "kernel.json"
        spec.parent.mkdir(parents=True)
        spec.write_text(json.dumps({"argv": ["/old/bin/python"], "display_name": "old", "language": "python"}))
        monkeypatch.setenv(variable, str(folder))
    assert probes.try_python(probes.SCRIPTS / "kernel.py") == ProbeResult(os.path.realpath(sys.prefix))


@pytest.mark.slow
def test_the_kernel_probe_prints_no_warnings_and_leaves_no_files(tmp_path):
    command, environ = [sys.executable, probes.SCRIPTS / "kernel.py"], os.environ | {"TMPDIR": str(tmp_path)}
    probe = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert (probe.returncode, probe.stderr, list(tmp_path.iterdir())) == (0, "", [])


@pytest.mark.slow
def test_this_machine_can_run_the_labs():
    """Run all real probes on the machine that runs the tests."""
    environment.settle(os.environ)
    steps = []
    facts = probes.gather(steps.append)
    report = judge(facts)
    assert len(steps) == 2
    for probe in (facts.onednn, facts.horovod, facts.daal4py, facts.kernel, facts.jupyterlab):
        assert probe.error == ""
    assert facts.horovod.output.endswith("sums correctly over 2 ranks")
    assert facts.kernel.output == os.path.realpath(sys.prefix)
    for name in ("system", "Python", "TensorFlow", "Horovod", "daal4py", "JupyterLab", "kernel"):
        assert finding(report, name).status == "ok", finding(report, name)


def test_a_quick_check_runs_no_probe_and_says_so(monkeypatch):
    for name in ("try_python", "try_ranks"):
        monkeypatch.setattr(probes, name, lambda *args: pytest.fail("a probe ran"))
    report = checks.examine(quick=True)
    untried = {result.name for result in report.findings if result.seen == "not tried in a quick check"}
    assert untried == checks.PROBE_OF.keys()
    assert {finding(report, name).status for name in untried} == {"warn"}
    assert "`./lab doctor` tries it" in fixes(report, "00")


@pytest.mark.slow
def test_a_disabled_onednn_is_detected(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    probe = probes.try_python(probes.SCRIPTS / "onednn.py")
    assert probe.error == ""
    assert finding(judged(onednn=probe), "oneDNN").seen.startswith("disabled")
