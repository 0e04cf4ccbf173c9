"""The doctor judges made-up machines right, and its probes see this one."""

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
from labkit.roofline.measure import Limits, Product
from labkit.slurm import cluster
from labkit.system import environment, kernels, paths
from labkit.system.load import Others
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
# As TensorFlow 2.21 prints it with TF_ENABLE_ONEDNN_OPTS=0: Eigen's products, but no convolution.
ONEDNN_OFF = """\
TensorFlow 2.21.0
onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)
onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2
onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_f32::blocked:ab:f0,,,496x144:144x16,76.0
"""


def a_file(state: str, detail: str = "", fix: str = "", name: str = "mnist.npz") -> FileStatus:
    return FileStatus(name, state, DATA / name, detail, fix)


MISSING = a_file("missing", "the labs use built-in digits instead", "`./lab data fetch` brings it")
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
    horovod=ProbeResult("the sum over 2 ranks is right"),
    daal4py=ProbeResult("the sum over 2 ranks is that of one process"),
    openvino=ProbeResult("a model in 8 bits runs"),
    kernel=ProbeResult("/home/student/labs/.venv"),
    jupyterlab=ProbeResult("4.6.6"),
    numactl=ProbeResult(),
    network=ProbeResult("nodes with wires between them can be made, without root"),
    slurm=ProbeResult("a cluster; nodes: 12, CPUs of each: 64"),
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


# --- Made-up machines ---


def made_up_limits(product: float, paper: float | None, others: Others | None = None) -> Limits:
    """Return limits whose fastest FP32 product, and instruction alone, have these GFLOP/s."""
    products = {kind: [Product("TensorFlow", 4096, product)] for kind in ("float32", "bfloat16", "int8")}
    instructions = {"float32": {"instruction": "AVX2 VFMADD", "speed": paper}} if paper else {}
    return Limits(products, instructions, {"read": 100.0}, others or Others(), "2026-12-01 10:00", AVX2)


class TestSpeed:
    """Whether a machine is as fast as one of its class."""

    def test_what_was_not_measured_is_no_fault_and_the_command_is_named(self):
        found = finding(judged(limits=None), "speed")
        assert (found.status, found.fix) == ("ok", "")
        assert "`./lab roofline`" in found.seen

    def test_the_share_of_what_the_instruction_alone_does(self):
        found = finding(judged(limits=made_up_limits(240, 289), machine=machine(isa=AVX2)), "speed")
        assert found == (
            "speed",
            "ok",
            "FP32: 240 GFLOP/s, 83% of what 2 cores could do by AVX2 VFMADD at their clock (289)",
            "",
        )

    @pytest.mark.parametrize(("share", "status"), [(0.71, "ok"), (0.68, "warn")])
    def test_far_below_it_there_is_something_to_look_at(self, share, status):
        found = finding(judged(limits=made_up_limits(1000 * share, 1000)), "speed")
        assert found.status == status
        for cause in ("power saving", "neighbour", "limits on cores"):
            assert (cause in found.fix) == (status == "warn")

    def test_figures_of_a_busy_machine_are_measured_again_first(self):
        found = finding(judged(limits=made_up_limits(900, 1000, Others(share=0.5, busy=True))), "speed")
        assert (found.status, found.fix) == ("warn", "`./lab roofline --again` while nothing else runs")

    def test_instructions_that_no_machine_has_reported_have_no_verdict(self):
        found = finding(judged(limits=made_up_limits(100, 1000), shares={"AVX-512 VFMADD": 0.9}), "speed")
        assert found[1:] == (
            "ok",
            "FP32: 100 GFLOP/s, 10% of what 2 cores could do by AVX2 VFMADD at their clock (1,000)",
            "",
        )

    def test_the_slowest_machine_with_the_same_instruction_says_what_is_usual(self, monkeypatch):
        def reported(instruction, peak, speed):
            paper = {"float32": {"instruction": instruction, "speed": speed}} if instruction else {}
            return {"limits": {"peaks": {"float32": peak}, "instructions": paper}}

        known = [reported("A", 90, 100), reported("A", 160, 200), reported("B", 70, 100), reported(None, 1, 0)]
        monkeypatch.setattr(machines, "read_all", lambda: known)
        assert speed.usual_shares() == {"A": 0.8, "B": 0.7}

    def test_without_a_compiler_there_is_nothing_to_compare(self):
        found = finding(judged(limits=made_up_limits(900, None)), "speed")
        assert found.status == "ok"
        assert "C compiler" in found.seen

    def test_no_lab_is_refused_for_it(self):
        assert verdicts(judged(limits=made_up_limits(1, 1000))) == ("ok", "ok")

    def test_only_what_is_kept_is_read(self, monkeypatch, tmp_path):
        monkeypatch.setattr(measure, "CACHE", tmp_path)
        monkeypatch.setattr(measure, "_measure", lambda *_: pytest.fail("the doctor measures nothing"))
        assert speed.kept_limits() is None

    def test_a_broken_environment_is_left_to_other_checks(self, monkeypatch):
        monkeypatch.setattr(measure, "SOFTWARE", ("no-such-package",))
        assert speed.kept_limits() is None

    def test_the_tolerance_is_the_plans(self):
        assert speed.SLOWER == minutes.SLOWER


def test_two_core_vm():
    report = judged()
    assert report.ok
    assert verdicts(report) == ("ok", "ok")
    assert {finding.status for finding in report.findings} == {"ok"}
    assert not any(finding.fix for finding in report.findings)
    assert finding(report, "oneDNN").seen == "3.7.3, on, threadpool runtime, Intel AVX-512 with Intel DL Boost"
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
def test_one_usable_core_runs_but_cannot_show_scaling(machine, seen, fix):
    report = judged(machine=machine)
    assert report.ok
    assert verdicts(report) == ("warn", "warn")
    assert finding(report, "cores").seen.startswith(seen)
    assert fix in fixes(report, "00")[0]
    assert fix in fixes(report, "07")[0]


def test_quota_that_feeds_two_cores_is_reported():
    report = judged(machine=machine(cores=8, quota=2.5))
    assert verdicts(report) == ("ok", "ok")
    assert finding(report, "cores").seen == "2 usable of 8: the CPU quota is 2.5"


def test_little_memory_stops_the_lab_with_four_ranks_alone():
    report = judged(machine=machine(gib=2))
    assert not report.ok
    assert verdicts(report) == ("ok", "fail")
    assert "4 GiB of memory or more" in fixes(report, "07")[0]


def test_memory_that_others_use():
    little = dataclasses.replace(machine(gib=8), memory_free=2 * GIB)
    report = judged(machine=little)
    assert verdicts(report) == ("ok", "warn")
    assert fixes(report, "07") == ["shut down kernels and programs that you don't need"]


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
    assert fixes(report, "07") == ["use a CPU, or a CPU type of the virtual machine, with AVX2"]


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
    "gone", [probes.NOT_TRIED, ProbeResult(error="exit code 1\nModuleNotFoundError: No module named 'daal4py'")]
)
def test_on_arm64_all_labs_run_but_the_one_whose_package_is_not_there(gone):
    isa = ("NEON", "DotProd", "SVE")
    report = judge(dataclasses.replace(GOOD, system="Linux aarch64", machine=machine(isa=isa), daal4py=gone))
    assert [verdict.lab[:2] for verdict in report.verdicts if verdict.status == "fail"] == ["09"]
    assert fixes(report, "09") == ["use a machine with x86-64 for lab 09"]
    assert finding(report, "daal4py").seen == "not here: it has no package for Arm"
    assert finding(report, "ISA")[1:3] == (
        "ok",
        f"{', '.join(isa)}: Arm's; the labs' AVX, VNNI, BF16 and AMX are not here",
    )


@pytest.mark.parametrize("python", [f"3.{minor}.2" for minor in range(9, 16)])
def test_the_python_is_one_that_the_packages_are_locked_for(python):
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    locked = SpecifierSet(project["requires-python"]).contains(python)
    assert finding(judged(python=python), "Python").status == ("ok" if locked else "fail")


def test_no_mnist():
    report = judged(data=(MISSING, a_file("missing", "", "other", name="images.gz")))
    assert report.ok
    assert verdicts(report) == ("ok", "warn")
    assert finding(report, "data").seen == "no mnist.npz: the labs use built-in digits instead"
    assert fixes(report, "07") == ["`./lab data fetch` brings it"]


def test_damaged_data():
    report = judged(data=(a_file("missing", name="first", fix="bring"), DAMAGED))
    assert not report.ok
    assert verdicts(report) == ("ok", "fail")
    assert finding(report, "data").seen == "data/mnist.npz is damaged: 3 bytes instead of 11,490,434"
    assert fixes(report, "07") == [DAMAGED.fix]


def test_data_folder_that_is_not_there():
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
    assert finding(report, "oneDNN")[1:3] == ("warn", "off: a convolution ran without it")


LAB_03 = tuple(lab for lab in LABS if lab.name.startswith("03"))
LAB_08 = tuple(lab for lab in LABS if lab.name.startswith("08"))


def test_without_slurm_lab_08_only_leaves_the_cluster_out():
    missing = ProbeResult(
        error="missing: slurm-wlm munge. On Debian and Ubuntu: `sudo apt-get install slurm-wlm munge`"
    )
    report = judge(dataclasses.replace(GOOD, slurm=missing), LAB_08)
    assert verdicts(report) == ("warn",)
    assert finding(report, "Slurm").seen.endswith("missing: slurm-wlm munge")
    assert fixes(report, "08") == ["On Debian and Ubuntu: `sudo apt-get install slurm-wlm munge`"]
    assert verdicts(judge(GOOD, LAB_08)) == ("ok",)


@pytest.mark.parametrize(
    ("there", "why_not", "told"),
    [
        (cluster.Slurm("real", 12, 64, {}), "missing", ProbeResult("a cluster; nodes: 12, CPUs of each: 64")),
        (cluster.Slurm("own", 2, 1, {}), "", ProbeResult("a small one on this machine, up; nodes: 2, CPUs of each: 1")),
        (None, "", ProbeResult("no cluster, but a small one can be started: `./lab cluster up`")),
    ],
)
def test_slurm_is_a_cluster_or_one_that_can_be_started(monkeypatch, there, why_not, told):
    monkeypatch.setattr(cluster, "find_slurm", lambda: there)
    monkeypatch.setattr(cluster, "obstacle", lambda: why_not)
    assert probes.try_slurm() == told


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
def test_without_a_network_the_labs_go_on_by_shared_memory(obstacle, seen, fix):
    report = judge(dataclasses.replace(GOOD, network=ProbeResult("can be made", obstacle)))
    assert finding(report, "network") == Finding("network", "warn", seen, fix)
    assert report.ok
    assert {verdict.lab[:2] for verdict in report.verdicts if verdict.status != "ok"} == {"06", "07", "08", "11"}
    assert fixes(report, "06") == ([fix] if fix else [])
    assert finding(judged(), "network").status == "ok"


@pytest.mark.parametrize(("user", "told"), [(0, "can be made"), (1000, "can be made, without root")])
def test_a_network_is_tried(monkeypatch, user, told):
    monkeypatch.setattr(probes.os, "geteuid", lambda: user)
    monkeypatch.setattr(probes, "obstacle", lambda: "")
    assert probes.try_network() == ProbeResult(f"nodes with wires between them {told}")


def test_a_network_that_cannot_be_made_is_told_by_the_quick_look_too(monkeypatch):
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
def test_pytorch_is_there_for_whoever_asked_for_it(monkeypatch, tmp_path, installed, seen, fix):
    """The quick look tells it too."""
    monkeypatch.setattr(torch_ranks, "FOLDER", torch_folder(tmp_path, wanted="2.13.0+cpu", installed=installed))
    found = finding(checks.examine(quick=True), "PyTorch")
    assert (found.status, found.seen) == ("warn" if fix else "ok", seen)
    assert found.fix.startswith(fix)
    without = ProbeResult(torch_ranks.version(), torch_ranks.obstacle())
    assert verdicts(judge(dataclasses.replace(GOOD, torch=without), WITH_PYTORCH)) == (found.status,)


TWO_NODES = machine(cores=8, numa=2)
FORBIDDEN = ProbeResult(error="failed\nset_mempolicy: Operation not permitted")


@pytest.mark.parametrize(
    ("numactl", "machine", "status", "seen", "fix"),
    [
        (ProbeResult(), TWO_NODES, "ok", "can interleave", ""),
        (None, TWO_NODES, "warn", "not installed", "`sudo apt-get install numactl`"),
        (FORBIDDEN, TWO_NODES, "warn", "Operation not permitted", "--cap-add SYS_NICE"),
        (None, machine(), "ok", "not installed; with 1 NUMA node it would change nothing", ""),
        (FORBIDDEN, machine(), "ok", "with 1 NUMA node", ""),
    ],
)
def test_numactl(numactl, machine, status, seen, fix):
    report = judge(dataclasses.replace(GOOD, numactl=numactl, machine=machine), LAB_03)
    found = finding(report, "numactl")
    assert found.status == status
    assert seen in found.seen
    assert fix in found.fix
    assert bool(found.fix) == bool(fix)
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
        ({"horovod": ProbeResult(error="Not over after 120 s, so all ranks were ended.")}, "again"),
    ],
)
def test_fix_of_a_failed_probe_names_what_got_in_its_way(facts, fix):
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
def test_the_environment_is_made_again_only_where_that_helps(probe, error, helps):
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
    assert finding(report, "cores").seen.startswith("6 usable; 8 more are slower or faster (P and E cores)")


def test_daal4py_that_fails_stops_no_lab_that_does_without():
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


# --- The table of labs, and what comes out ---


def test_every_lab_has_its_line_and_names_checks_that_exist():
    assert [lab.name[:2] for lab in LABS] == [lab.number for lab in catalogue.labs()]
    assert {name for lab in LABS for name in (*lab.needs, *lab.better_with)} <= checks.CHECKS.keys()


def test_a_lab_runs_without_what_only_makes_it_better():
    labs = (Lab("needs it", ("daal4py",)), Lab("better with it", ("system",), ("daal4py",)), Lab("neither", ()))
    report = judge(dataclasses.replace(GOOD, daal4py=ProbeResult(error="failed")), labs)
    assert verdicts(report) == ("fail", "warn", "ok")
    assert [[f.name for f in verdict.because] for verdict in report.verdicts] == [["daal4py"], ["daal4py"], []]


def test_as_dict_goes_through_json_and_keeps_its_keys():
    report = judged(data=(DAMAGED,), machine=machine(cores=8, quota=1.5))
    seen = json.loads(json.dumps(report.as_dict()))
    assert seen.keys() == {"ok", "machine", "checks", "labs"}
    machine_keys = {"cpus", "cores", "quota", "memory", "memory_free", "isa", "numa", "model", "usable_cores"}
    machine_keys |= {"unequal_cores"}
    assert seen["machine"].keys() == machine_keys
    assert seen["machine"]["quota"] == 1.5
    assert seen["ok"] is False
    assert [check["name"] for check in seen["checks"]] == list(checks.CHECKS)
    assert all(check.keys() == {"name", "status", "seen", "fix"} for check in seen["checks"])
    assert seen["labs"][1] == {
        "lab": "07 Horovod on the MNIST CNN",
        "status": "fail",
        "because": ["data"],
        "fix": [DAMAGED.fix],
    }


def test_screen_is_readable_at_80_columns_and_without_colour():
    report = judged(data=(DAMAGED,), machine=machine(cores=1), other_mpi="/[b]apps[/b]")
    plain = text(report, color_system=None)
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "\x1b" not in plain
    words = " ".join(plain.split())
    assert "fail data data/mnist.npz is damaged" in words
    assert "00 Welcome can run, but look at: MPI, cores" in words
    assert "07 Horovod on the MNIST CNN cannot run: data" in words
    assert plain.count(DAMAGED.fix) == 1  # next to its check, not with each lab
    assert "labs can run" not in plain
    assert "puts /[b]apps[/b]/libmpi.so.12" in words  # no markup in what was seen


def test_screen_shows_long_paths_whole():
    path = "/a/very/long/path" * 10
    report = judged(horovod=ProbeResult(error=f"Rank 1 failed\n{path}/mpi_lib.so"))
    assert f"{path}/mpi_lib.so" in "".join(text(report, color_system=None).split())


def test_a_terminal_shows_all_checks_and_names_the_labs_to_look_at():
    plain = text(judge(dataclasses.replace(GOOD, data=(MISSING,))), color_system=None)
    assert [line.split()[1] for line in plain.splitlines() if line.startswith("ok")] == [
        name.split()[0] for name in checks.CHECKS if name != "data"
    ]
    assert "02 oneDNN under an MNIST CNN  can run, but look at: data" in plain
    assert plain.endswith("\n8 other labs can run.\n")


def test_a_report_in_which_all_is_well_fits_on_a_screen():
    lines = text(judge(GOOD), color_system=None).splitlines()
    assert len(lines) <= 40
    assert lines[-1] == "All labs can run."


def test_a_notebook_shows_only_what_is_not_fine():
    assert view.as_text(judge(GOOD)).splitlines()[1:] == ["", "All labs can run."]
    missing = judged(data=(MISSING,))
    assert view.as_text(missing).splitlines()[2:] == [
        "warn  data  no mnist.npz: the labs use built-in digits instead",
        "            fix: `./lab data fetch` brings it",
        "",
        "07 Horovod on the MNIST CNN  can run, but look at: data",
        "1 other lab can run.",
    ]


# --- This machine ---


def test_other_mpi(tmp_path):
    own, first, empty = (tmp_path / name for name in ("own", "first", "empty"))
    for folder in (own, first, empty):
        folder.mkdir()
    for folder in (own, first):
        (folder / "libmpi.so.12").touch()
    link = tmp_path / "link"
    link.symlink_to(own)
    assert probes.other_mpi("", own) is None
    assert probes.other_mpi(f"{empty}:/nowhere", own) is None
    assert probes.other_mpi(f"{empty}::{first}:{own}", own) == str(first)
    assert probes.other_mpi(f"{link}:{first}", own) is None


def test_python_that_fails_hangs_or_crashes(tmp_path):
    assert probes.try_python("-c", "print(1)") == ProbeResult("1")
    failed = probes.try_python("-c", "print('so far'); raise ImportError('no such thing')")
    assert failed.output == "so far"
    assert failed.error.endswith("ImportError: no such thing")
    assert probes.try_python("-c", "import time; time.sleep(60)", timeout=0.2).error == "Not over after 0.2 s"
    crashed = probes.try_python("-c", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert crashed.error == "killed by SIGILL"


def test_of_a_failed_probe_how_it_ended_and_the_last_lines_are_kept():
    lines = "\n".join(f"raise ValueError({n})" for n in range(20))
    error = probes.try_python(
        "-c", f"import sys; print({lines!r}, '  ^^^^', '', file=sys.stderr, sep='\\n'); sys.exit(3)"
    ).error
    assert error.splitlines() == ["failed", *(f"raise ValueError({n})" for n in (17, 18, 19))]


def test_a_program_that_is_not_there():
    tried = probes.try_command("/nowhere/python", "-c", "1")
    assert tried == ProbeResult(error="cannot start /nowhere/python: No such file or directory.")


def test_ranks_that_fail_or_hang(tmp_path):
    script = tmp_path / "probe.py"
    script.write_text("raise SystemExit('This rank is alone')")
    assert probes.try_ranks(script).error.endswith("This rank is alone")
    script.write_text("import time; time.sleep(60)")
    assert probes.try_ranks(script, timeout=2).error.startswith("Not over after 2 s")


@pytest.mark.slow
def test_probe_finds_a_rank_alone():
    """As under another MPI's mpirun, where each process takes itself for the only rank."""
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
def test_the_probes_kernel_has_nothing_to_warn_of():
    probe = subprocess.run([sys.executable, probes.SCRIPTS / "kernel.py"], capture_output=True, text=True)
    assert (probe.returncode, probe.stderr) == (0, "")


@pytest.mark.slow
def test_this_machine_can_run_the_labs():
    """All the real probes, on whatever runs the tests."""
    environment.settle(os.environ)
    steps = []
    facts = probes.gather(steps.append)
    report = judge(facts)
    assert len(steps) == 2
    for probe in (facts.onednn, facts.horovod, facts.daal4py, facts.kernel, facts.jupyterlab):
        assert probe.error == ""
    assert facts.horovod.output.startswith("the sum over 2 ranks is right")
    assert facts.kernel.output == os.path.realpath(sys.prefix)
    for name in ("system", "Python", "TensorFlow", "Horovod", "daal4py", "JupyterLab", "kernel"):
        assert finding(report, name).status == "ok", finding(report, name)


def test_a_quick_look_starts_nothing_and_says_so(monkeypatch):
    for name in ("try_python", "try_ranks"):
        monkeypatch.setattr(probes, name, lambda *args: pytest.fail("it was tried"))
    report = checks.examine(quick=True)
    untried = {found.name for found in report.findings if found.seen == "not tried in a quick look"}
    assert untried == checks.PROBE_OF.keys()
    assert {finding(report, name).status for name in untried} == {"warn"}
    assert "`./lab doctor` tries it" in fixes(report, "00")


@pytest.mark.slow
def test_switched_off_onednn_is_seen(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    probe = probes.try_python(probes.SCRIPTS / "onednn.py")
    assert probe.error == ""
    assert finding(judged(onednn=probe), "oneDNN").seen.startswith("off")
