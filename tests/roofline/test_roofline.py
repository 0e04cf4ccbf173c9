"""Tests of measuring, caching and showing the machine's limits."""

import dataclasses
import functools
import io
import json
import sys

import numpy as np
import pytest
from machines import machine
from rich.console import Console
from typer.testing import CliRunner

from labkit import cli
from labkit.roofline import instructions, measure, peaks, readers
from labkit.roofline.measure import Limits
from labkit.system import compiler, processes
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit.system.processes import Completed

GIB = 2**30
MEASURED = {
    "products": {
        "float32": [{"library": "TensorFlow", "n": 2048, "speed": 200.0}],
        "bfloat16": [
            {"library": "TensorFlow", "n": 4096, "speed": 300.0},
            {"library": "OpenVINO", "n": 512, "speed": 400.0},
        ],
        "int8": [{"library": "OpenVINO", "n": 512, "speed": 800.0}],
    },
    "instructions": {
        "float32": {"instruction": "AVX-512 VFMADD", "speed": 250.0},
        "bfloat16": {"instruction": "AMX TDPBF16PS", "speed": 1000.0},
    },
    "streams": {"copy": 15.0, "add": 20.0, "NumPy's maximum": 16.0, "four streams in C": 18.0},
    "others": {"share": 0.0, "throttled": 0.0, "busy": False, "why": ""},
}
LIMITS = measure._limits(MEASURED | {"when": "2026-01-01 10:00"}, ("AVX", "AVX2", "AVX-512", "VNNI", "BF16"))
HOST = dataclasses.replace(machine(2, gib=8, isa=LIMITS.isa), memory_free=4 * GIB)


class Measurements:
    """A stub for the real measurement, which counts calls and returns a float32 peak of 101, 102, …"""

    def __init__(self):
        self.count = 0

    def __call__(self, isa: tuple[str, ...], quick: bool) -> dict:
        self.count += 1
        float32 = [{"library": "TensorFlow", "n": 2048, "speed": 100.0 + self.count}]
        return MEASURED | {"products": MEASURED["products"] | {"float32": float32}}


@pytest.fixture
def measurements(monkeypatch, tmp_path) -> Measurements:
    monkeypatch.setattr(measure, "_measure", measurements := Measurements())
    monkeypatch.setattr(measure, "CACHE", tmp_path)
    monkeypatch.setattr(measure, "usable_machine", lambda: HOST)
    return measurements


# --- Figures derived from the limits ---


def test_a_limit_is_the_fastest_repetition_with_the_interval_of_their_median():
    assert LIMITS.bandwidth == 20
    assert [LIMITS.ridge(dtype) for dtype in measure.INSTRUCTIONS] == [10, 20, 40]
    runs = {"float32": [190.0, 195.0, 50.0, 200.0, 192.0, 199.0], "memory": [20.0, 19.99, 19.98]}
    limits = dataclasses.replace(LIMITS, runs=runs)
    assert str(limits.measured("float32")) == "200 GFLOP/s (50 to 200)"
    assert str(limits.measured("memory")) == "20.0 GB/s"
    assert str(limits.measured("int8")) == "800 GOP/s", "cached by an earlier version, without repetitions"
    assert str(limits.measured("float32").source) == f"lab roofline, {LIMITS.when}"


@pytest.mark.parametrize(
    ("isa", "emulated"),
    [
        (("AVX", "AVX2"), ["bfloat16", "int8"]),
        (("AVX", "AVX2", "VNNI"), ["bfloat16"]),
        (("AVX", "AVX2", "AVX-512", "VNNI", "BF16"), []),
        (("AVX", "AMX"), []),
        (("NEON",), ["bfloat16", "int8"]),
        (("NEON", "DotProd", "SVE"), ["bfloat16"]),
    ],
)
def test_dtypes_without_instructions_are_emulated(isa, emulated):
    limits = dataclasses.replace(LIMITS, isa=isa)
    assert limits.as_dict()["emulated"] == emulated
    assert (shown(limits).count("emulated"), shown(limits).count("no instructions")) == (len(emulated),) * 2


# --- The cache ---


def test_limits_are_measured_once_for_each_machine_and_size_of_matmuls(measurements, monkeypatch):
    small = measure.limits(quick=True)
    assert measure.limits(quick=True) == small
    cached = measure.limits()
    assert (small.peak("float32"), cached.peak("float32")) == (101, 102)
    assert measure.limits() == measure.limits(quick=True) == cached
    for count, difference in enumerate(({"model": "Another CPU"}, {"isa": ("AVX", "AVX2")}, {"quota": 1.0}), 3):
        other = dataclasses.replace(HOST, **difference)
        monkeypatch.setattr(measure, "usable_machine", lambda other=other: other)
        assert measure.limits().peak("float32") == 100 + count
    monkeypatch.setattr(measure, "usable_machine", lambda: HOST)
    assert measure.limits() == cached


DAMAGE = {
    "truncated": lambda text: text[: len(text) // 2],
    "of another machine": lambda text: text.replace("Synthetic CPU", "Another CPU"),
    "not a number": lambda text: text.replace("400.0", '"fast"'),
    "a figure missing": lambda text: text.replace('"int8"', '"int4"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_measured_again(measurements, tmp_path, damage):
    measure.limits()
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    assert text != DAMAGE[damage](text)
    file.write_text(DAMAGE[damage](text))
    assert measure.limits().peak("float32") == 102
    assert measure.limits().peak("float32") == 102


def test_a_lab_continues_if_limits_cannot_be_cached(measurements, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(measure, "CACHE", tmp_path / "file")
    for count in (1, 2):
        assert measure.limits().peak("float32") == 100 + count
    warnings = capsys.readouterr().err
    assert warnings.startswith("Warning: cannot write ")
    assert warnings.count("\n") == 1


# --- The measuring process ---


def test_the_callers_settings_do_not_reach_the_measurement(monkeypatch):
    calls = []

    def run(argv, env, timeout, on_line):
        calls.append((argv, env))
        for line in lines:
            on_line(line)
        return Completed(lines, 0, 1.0)

    lines = ("a warning", "Measuring …", json.dumps(MEASURED))
    monkeypatch.setattr(processes, "run", run)
    for name in ("ONEDNN_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/inherited")
    assert measure._measure(("AVX2", "AMX"), quick=False) == MEASURED
    ((argv, env),) = calls
    assert argv == [sys.executable, "-m", "labkit.roofline.peaks", "AVX2", "AMX"]
    assert env["ONEDNN_MAX_CPU_ISA"] is env["TF_NUM_INTRAOP_THREADS"] is env["OMP_NUM_THREADS"] is None
    assert env["TF_ENABLE_ONEDNN_OPTS"] == 1
    assert "LD_LIBRARY_PATH" not in env


@pytest.mark.parametrize(
    ("completed", "message"),
    [
        (Completed(("Measuring …", "MemoryError"), 1, 2.0), r"\(exit status 1: MemoryError\)"),
        (Completed((), -9, 2.0), r"did memory run out\?"),
        (Completed(("Measuring …",), None, 300.0), "timed out after 300 s"),
        (Completed((), 0, 2.0), "it printed no figures"),
    ],
)
def test_a_failed_measurement_is_a_one_line_error_and_not_cached(monkeypatch, tmp_path, completed, message):
    monkeypatch.setattr(processes, "run", lambda *args, **kwargs: completed)
    monkeypatch.setattr(measure, "CACHE", tmp_path)
    with pytest.raises(LabError, match=message) as error:
        measure.limits()
    assert "\n" not in str(error.value)
    assert "./lab doctor" in str(error.value)
    assert list(tmp_path.iterdir()) == []


REAL = """
import openvino
from labkit.roofline import peaks
from labkit.system.machine import this_machine
peaks.main(this_machine().isa, quick=True)
compiled = openvino.Core().compile_model(peaks.chain(256, quantised=True), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
dtypes = [info["runtimePrecision"].astype(str) for info in infos if info["layerType"].astype(str) == "FullyConnected"]
print("matmuls in", *dtypes)
"""


@pytest.mark.slow
def test_a_small_real_measurement():
    completed = processes.run([sys.executable, "-c", REAL], env={"TF_ENABLE_ONEDNN_OPTS": 1}, timeout=200)
    assert not completed.failure, completed.lines
    figures = next(json.loads(line) for line in completed.lines if line.startswith("{"))
    limits = measure._limits(figures | {"when": "now"}, this_machine().isa)
    assert min(*(limits.peak(dtype) for dtype in measure.INSTRUCTIONS), *limits.streams.values()) > 0
    assert all(limits.measured(what).low > 0 for what in ("memory", *measure.INSTRUCTIONS))
    assert all(max(runs) == limits.measured(what).value for what, runs in limits.runs.items())
    assert limits.others.share is None or 0 <= limits.others.share <= 1
    assert limits.streams.keys() == {"copy", "add", readers.MATMUL, *readers.by_core()}
    assert [line for line in completed.lines if line.startswith("Measuring")] != []
    assert all(0 < instruction["speed"] < 1e7 for instruction in limits.instructions.values())
    assert set(limits.instructions) <= {dtype for dtype in measure.INSTRUCTIONS if not limits.emulated(dtype)}
    if not limits.emulated("int8"):
        assert f"matmuls in{' u8' * peaks.CHAIN_LENGTH}" in completed.lines


# --- Methods ---


@pytest.mark.parametrize(
    ("isa", "names"),
    [
        (("AVX", "AVX2", "AVX-512", "VNNI", "BF16", "AMX"), ("AVX-512", "AMX", "AMX")),
        (("AVX", "AVX2", "AVX-512", "VNNI"), ("AVX-512", None, "AVX-512")),
        (("AVX", "AVX2", "VNNI"), ("AVX2", None, "AVX")),
        (("AVX", "AVX2"), ("AVX2", None, None)),
        (("AVX",), (None, None, None)),
    ],
)
def test_instructions_that_the_cpu_lacks_are_not_tried(isa, names, monkeypatch, capsys):
    tried = []

    def speed(function, operations, machine):
        tried.append(function.__name__)
        return float(operations)

    monkeypatch.setattr(instructions, "speed", speed)
    instructions.main(isa)
    fastest = json.loads(capsys.readouterr().out)
    for dtype, name in zip(measure.INSTRUCTIONS, names, strict=True):
        assert (name is None) == (dtype not in fastest)
        assert name is None or fastest[dtype]["instruction"].split()[0] == name
    assert not [name for name in tried if name.endswith("avx512") and "AVX-512" not in isa]
    assert not [name for name in tried if name.endswith("amx") and "AMX" not in isa]


def test_without_a_compiler_only_numpy_reads_and_the_instruction_peak_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(compiler, "library", lambda source: None)
    assert readers.by_core().keys() == {readers.MAXIMUM}
    instructions.main(["AVX2"])
    assert json.loads(capsys.readouterr().out) == {}
    text = shown(dataclasses.replace(LIMITS, instructions={}))
    assert "no C compiler" in text
    assert "instruction peak," not in text


def test_sizes_that_do_not_fit_into_memory_are_left_out(monkeypatch):
    sizes = []
    monkeypatch.setattr(peaks, "MIN_DURATION_S", 0)
    host = dataclasses.replace(HOST, memory_free=4 * 16 * 2048**2)
    peaks.peak(lambda n: (functools.partial(sizes.append, n), 1e9), host, sizes=(512, 2048, 4096))
    assert sorted(set(sizes)) == [512, 2048]


def test_every_reader_reads_the_whole_array():
    array = np.random.default_rng(0).random(64 * 100, np.float32)
    for name, reader in readers.by_core().items():
        expected = array.max() if name == readers.MAXIMUM else array.sum()
        assert reader(array) == pytest.approx(float(expected), rel=1e-4), name


def test_read_speed_is_that_of_the_fastest_reader(monkeypatch):
    monkeypatch.setattr(readers, "SETTLE_S", 0)
    memory = readers.Memory(this_machine(), 2**22)
    speeds = memory.speeds(2)
    assert speeds.keys() == {readers.MATMUL, *readers.by_core()}
    monkeypatch.setattr(memory, "speeds", lambda rounds: {"a": [3.0, 2.0], "b": [1.0, 4.0]})
    assert memory.read() == 4


def test_last_level_caches_are_counted_once_each(tmp_path):
    def cache(cpu: int, index: int, level: int, size: str, sharers: str) -> None:
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", sharers)):
            (folder / name).write_text(f"{text}\n")

    for cpu in range(4):
        cache(cpu, 0, 1, "32K", str(cpu))
        cache(cpu, 1, 1, "32K", str(cpu))
        cache(cpu, 2, 2, "1024K", str(cpu))
        cache(cpu, 3, 3, "16384K", "0-1" if cpu < 2 else "2-3")
    assert peaks.last_level_cache(range(4), tmp_path) == 32 * 2**20
    assert peaks.last_level_cache([0], tmp_path) == 16 * 2**20
    assert peaks.last_level_cache([9], tmp_path) == peaks.DEFAULT_CACHE_BYTES


# --- Output ---


def shown(limits: Limits) -> str:
    output = io.StringIO()
    measure.render(limits, Console(file=output, width=80, color_system=None, force_jupyter=False))
    assert max(len(line) for line in output.getvalue().splitlines()) <= 80
    return " ".join(output.getvalue().split())


def test_limits_are_shown_with_explanations_and_a_warning_if_the_machine_was_busy():
    text = shown(LIMITS)
    assert "300 GFLOP/s TensorFlow, n = 4,096" in text
    assert "1,000 GFLOP/s instruction peak, AMX TDPBF16PS; the matmul reaches 40%" in text
    for part in ("200 GFLOP/s", "800 GOP/s", "20.0 GB/s", "4.0 × float32", "10 in float32, 20 in bfloat16, 40 in int8"):
        assert part in text
    assert "--again" not in text
    others = {"share": 0.63, "throttled": 0.0, "busy": True, "why": ""}
    text = shown(measure._limits(MEASURED | {"when": "now", "others": others}, LIMITS.isa))
    assert "⚠ Meanwhile, other work took 63% of the cores." in text
    assert "run ./lab roofline --again when the machine is quiet" in text


def test_the_json_output_is_complete(monkeypatch):
    calls = []
    monkeypatch.setattr(measure, "limits", lambda again: calls.append(again) or LIMITS)
    result = CliRunner().invoke(cli.application(), ["roofline", "--json", "--again"])
    assert (result.exit_code, calls) == (0, [True])
    assert json.loads(result.stdout) == json.loads(json.dumps(LIMITS.as_dict()))
    assert json.loads(result.stdout)["bandwidth"] == 20
    assert "200 GFLOP/s" in CliRunner().invoke(cli.application(), ["roofline"]).stdout
