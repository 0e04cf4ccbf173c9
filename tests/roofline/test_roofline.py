"""The machine's limits are measured, kept for the right machine, and compared with as they should be."""

import dataclasses
import functools
import io
import json
import math
import sys

import numpy as np
import pytest
from machines import machine
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from labkit import cli
from labkit.roofline import instructions, measure, peaks, readers, together
from labkit.roofline.measure import Limits
from labkit.system import processes
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
HERE = dataclasses.replace(machine(2, gib=8, isa=LIMITS.isa), memory_free=4 * GIB)


class Measurements:
    """Stands in for the real measurement; counts, and gives a float32 peak of 101, 102, …"""

    def __init__(self):
        self.count = 0
        self.caps = []

    def __call__(self, isa: tuple[str, ...], cap: str | None, quick: bool) -> dict:
        self.count += 1
        self.caps.append(cap)
        float32 = [{"library": "TensorFlow", "n": 2048, "speed": 100.0 + self.count}]
        return MEASURED | {"products": MEASURED["products"] | {"float32": float32}}


@pytest.fixture
def measurements(monkeypatch) -> Measurements:
    monkeypatch.setattr(measure, "_measure", measurements := Measurements())
    monkeypatch.setattr(measure, "usable_machine", lambda: HERE)
    return measurements


# --- What is made of the limits ---


def test_the_roof_rises_with_intensity_up_to_the_peak():
    assert LIMITS.bandwidth == 20
    assert LIMITS.attainable(1) == 20
    assert LIMITS.attainable(9.5) == 190
    assert LIMITS.attainable(10) == LIMITS.attainable(1000) == LIMITS.attainable(math.inf) == 200
    assert LIMITS.attainable(10, "int8") == 200
    assert LIMITS.attainable(50, "int8") == 800
    assert [LIMITS.ridge(kind) for kind in measure.INSTRUCTIONS] == [10, 20, 40]


def test_a_limit_has_the_interval_of_its_repetitions_and_is_inside_it():
    runs = {"float32": [190.0, 195.0, 50.0, 200.0, 192.0], "memory": [20.0, 19.99, 19.98]}
    limits = dataclasses.replace(LIMITS, runs=runs)
    peak = limits.measured("float32")
    fast = [192.0, 195.0, 200.0]  # a slow run says nothing of a limit
    half = stats.t.ppf(0.975, 2) * np.log(fast).std(ddof=1) / math.sqrt(3)
    assert peak.value == limits.peak("float32") == 200
    assert peak.low == pytest.approx(stats.gmean(fast) * math.exp(-half))
    assert peak.high == pytest.approx(max(200, stats.gmean(fast) * math.exp(half)))
    memory = limits.measured("memory")
    assert memory.low < memory.value == 20 < memory.high
    assert (str(peak)[:12], str(memory)[:9]) == ("200 GFLOP/s ", "20.0 GB/s")
    assert str(limits.measured("int8")) == "800 GOP/s", "kept by an earlier version, without repetitions"


def test_the_limit_of_reading_is_the_fastest_reader_and_not_what_also_writes():
    limits = dataclasses.replace(LIMITS, runs={"reading": [17.9, 18.0, 17.8]})
    reading = limits.measured("reading")
    assert (limits.reader, reading.value, reading.unit) == ("four streams in C", 18, "GB/s")
    assert reading.low < 18 <= reading.high < limits.bandwidth
    text = shown(limits)
    assert "reading alone 18.0 GB/s" in text
    assert "the fastest reader: four streams in C" in text


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
def test_what_the_cpu_has_no_instructions_for_is_emulated(isa, emulated):
    limits = dataclasses.replace(LIMITS, isa=isa)
    assert limits.as_dict()["emulated"] == emulated
    assert (shown(limits).count("emulated"), shown(limits).count("no instructions")) == (len(emulated),) * 2


# --- What is kept ---


def test_measured_once_and_kept(measurements, tmp_path):
    first = measure.limits(folder=tmp_path)
    assert first.peak("float32") == 101
    assert measure.limits(folder=tmp_path) == first
    assert measurements.count == 1


def test_small_products_are_not_kept(measurements, tmp_path):
    assert measure.limits(folder=tmp_path, quick=True).peak("float32") == 101
    assert not list(tmp_path.iterdir())
    kept = measure.limits(folder=tmp_path)
    assert measure.limits(folder=tmp_path, quick=True) == kept


@pytest.mark.parametrize(
    "other",
    [
        {"model": "Another CPU"},
        {"isa": ("AVX", "AVX2")},
        {"cores": ((0,), (1,), (2,), (3,))},
        {"quota": 1.0},
        {"numa": ((0,), (1,))},
    ],
    ids=lambda other: next(iter(other)),
)
def test_kinds_of_machine_that_share_a_folder_are_not_mixed_up(measurements, tmp_path, monkeypatch, other):
    measure.limits(folder=tmp_path)
    monkeypatch.setattr(measure, "usable_machine", lambda: dataclasses.replace(HERE, **other))
    assert measure.limits(folder=tmp_path).peak("float32") == 102
    monkeypatch.setattr(measure, "usable_machine", lambda: HERE)
    assert measure.limits(folder=tmp_path).peak("float32") == 101
    assert measurements.count == 2


def test_what_the_machine_could_do_without_newer_instructions_is_kept_apart(measurements, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "usable_machine", lambda: dataclasses.replace(HERE, isa=(*HERE.isa, "AMX")))
    own = measure.limits(folder=tmp_path)
    capped = measure.limits(folder=tmp_path, cap="AVX512_CORE_BF16")
    assert measurements.caps == [None, "AVX512_CORE_BF16"]
    assert (capped.peak("float32"), capped.isa) == (102, HERE.isa)
    assert measure.limits(folder=tmp_path, cap="AVX512_CORE_BF16") == capped
    assert measure.limits(folder=tmp_path) == own
    assert measure.limits(folder=tmp_path, cap="AVX512_CORE").as_dict()["emulated"] == ["bfloat16", "int8"]
    with pytest.raises(LabError, match="no cap 'AVX'"):
        measure.limits(folder=tmp_path, cap="AVX")


DAMAGE = {
    "empty": lambda text: "",
    "cut off": lambda text: text[: len(text) // 2],
    "of another machine": lambda text: text.replace("Made-up CPU", "Another CPU"),
    "no number": lambda text: text.replace("400.0", '"fast"'),
    "a figure missing": lambda text: text.replace('"int8"', '"int4"'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_measured_anew(measurements, tmp_path, damage):
    measure.limits(folder=tmp_path)
    (file,) = tmp_path.iterdir()
    sound = file.read_text()
    assert sound != DAMAGE[damage](sound)
    file.write_text(DAMAGE[damage](sound))
    assert measure.limits(folder=tmp_path).peak("float32") == 102
    assert measure.limits(folder=tmp_path).peak("float32") == 102


def test_a_lab_goes_on_with_limits_that_cannot_be_kept(measurements, tmp_path, capsys):
    (tmp_path / "file").touch()
    for count in (1, 2):
        assert measure.limits(folder=tmp_path / "file").peak("float32") == 100 + count
    told = capsys.readouterr().err
    assert told.startswith("Warning: cannot write ")
    assert told.count("\n") == 1


# --- The process that measures ---


def test_it_is_free_of_the_callers_settings(monkeypatch):
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
    monkeypatch.setenv("LD_LIBRARY_PATH", "/kept")
    assert measure._measure(("AVX2", "AMX"), None, quick=False) == MEASURED
    ((argv, env),) = calls
    assert argv == [sys.executable, "-m", "labkit.roofline.peaks", "AVX2", "AMX"]
    assert env["ONEDNN_MAX_CPU_ISA"] is env["TF_NUM_INTRAOP_THREADS"] is env["OMP_NUM_THREADS"] is None
    assert env["TF_ENABLE_ONEDNN_OPTS"] == 1
    assert "LD_LIBRARY_PATH" not in env
    measure._measure((), "AVX512_CORE", quick=False)
    assert calls[1][1]["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE"


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (Completed(("Measuring …", "MemoryError"), 1, 2.0), r"\(exit status 1: MemoryError\)"),
        (Completed((), -9, 2.0), r"did memory run out\?"),
        (Completed(("Measuring …",), None, 300.0), "not over after 300 s"),
        (Completed((), 0, 2.0), "it printed no figures"),
    ],
)
def test_a_measurement_that_fails_is_reported_in_one_line_and_nothing_is_kept(monkeypatch, tmp_path, ended, told):
    monkeypatch.setattr(processes, "run", lambda *args, **more: ended)
    with pytest.raises(LabError, match=told) as error:
        measure.limits(folder=tmp_path)
    assert "\n" not in str(error.value)
    assert "./lab doctor" in str(error.value)
    assert list(tmp_path.iterdir()) == []


REAL = """
import openvino
from labkit.roofline import peaks
from labkit.system.machine import this_machine
peaks.main(this_machine().isa, quick=True)
compiled = openvino.Core().compile_model(peaks.chain(256, quantised=True), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
ran = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
kinds = [info["runtimePrecision"].astype(str) for info in ran if info["layerType"].astype(str) == "FullyConnected"]
print("products in", *kinds)
"""


@pytest.mark.slow
def test_a_small_real_measurement():
    ended = processes.run([sys.executable, "-c", REAL], env={"TF_ENABLE_ONEDNN_OPTS": 1}, timeout=200)
    assert not ended.failure, ended.lines
    found = next(json.loads(line) for line in ended.lines if line.startswith("{"))
    limits = measure._limits(found | {"when": "now"}, this_machine().isa)
    assert min(*(limits.peak(kind) for kind in measure.INSTRUCTIONS), *limits.streams.values()) > 0
    assert all(limits.measured(what).low > 0 for what in ("memory", "reading", *measure.INSTRUCTIONS))
    assert all(max(runs) == limits.measured(what).value for what, runs in limits.runs.items())
    assert limits.others.share is None or 0 <= limits.others.share <= 1
    assert limits.streams.keys() == {"copy", "add", readers.MATMUL, *readers.by_core()}
    assert [line for line in ended.lines if line.startswith("Measuring")] != []
    assert all(0 < each["speed"] < 1e7 for each in limits.instructions.values())
    assert set(limits.instructions) <= {kind for kind in measure.INSTRUCTIONS if not limits.emulated(kind)}
    if not limits.emulated("int8"):
        assert f"products in{' u8' * peaks.CHAIN_LENGTH}" in ended.lines


# --- How it is measured ---


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
def test_no_instruction_is_tried_that_the_cpu_lacks(isa, names, monkeypatch, capsys):
    tried = []

    def speed(function, operations, machine):
        tried.append(function.__name__)
        return float(operations)

    monkeypatch.setattr(instructions, "speed", speed)
    instructions.main(isa)
    found = json.loads(capsys.readouterr().out)
    for kind, name in zip(measure.INSTRUCTIONS, names, strict=True):
        assert (name is None) == (kind not in found)
        assert name is None or found[kind]["instruction"].split()[0] == name
    assert not [name for name in tried if name.endswith("avx512") and "AVX-512" not in isa]
    assert not [name for name in tried if name.endswith("amx") and "AMX" not in isa]


def test_without_a_compiler_the_peak_on_paper_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(instructions.preload, "library", lambda source, spare: None)
    instructions.main(["AVX2"])
    assert json.loads(capsys.readouterr().out) == {}
    text = shown(dataclasses.replace(LIMITS, instructions={}))
    assert "no C compiler" in text
    assert "on paper," not in text


def a_product(seconds: float, ran: list[int], monkeypatch):
    """Give products of n³ operations that take `seconds` for n = 1, and a clock that goes with them."""
    clock = [0.0]
    monkeypatch.setattr(peaks.time, "perf_counter", lambda: clock[0])

    def product(n: int):
        def multiply() -> None:
            ran.append(n)
            clock[0] += seconds * n**3

        return multiply, 1e9 * n**3

    return product


def test_sizes_grow_until_a_product_takes_long(monkeypatch):
    ran = []
    product = a_product(0.02, ran, monkeypatch)
    speeds, n = peaks.peak(product, HERE, sizes=(1, 2, 4, 8))
    assert (max(speeds), n) == (pytest.approx(50), 1)
    assert sorted(set(ran)) == [1, 2]  # 0.02 s and 0.16 s
    assert ran.count(1) == len(speeds) + 1, "one run that does not count"
    assert ran.count(2) == peaks.MIN_RUNS + 1


def test_sizes_that_do_not_fit_into_memory_are_left_out(monkeypatch):
    ran = []
    product = a_product(1e-12, ran, monkeypatch)
    monkeypatch.setattr(peaks, "MIN_DURATION_S", 0)
    peaks.peak(product, dataclasses.replace(HERE, memory_free=4 * 16 * 2048**2), sizes=(512, 2048, 4096))
    assert sorted(set(ran)) == [512, 2048]


def test_runs_of_a_team_alternate_and_each_of_its_threads_has_its_own_core_and_memory():
    two, ran = dataclasses.replace(HERE, quota=2.0), []  # with a quota, no thread is bound to a core

    def prepare(place: int) -> together.Runs:
        return {name: functools.partial(ran.append, (place, name)) for name in ("one", "other")}

    seconds = together.Team(two, prepare).seconds(3)
    assert {name: len(times) for name, times in seconds.items()} == {"one": 3, "other": 3}
    assert min(*seconds["one"], *seconds["other"]) > 0
    for place in range(2):
        assert [name for thread, name in ran if thread == place] == ["one", "other"] * 3


def test_every_reader_reads_the_whole_array():
    array = np.random.default_rng(0).random(64 * 100, np.float32)
    for name, reader in readers.by_core().items():
        expected = array.max() if name == readers.MAXIMUM else array.sum()
        assert reader(array) == pytest.approx(float(expected), rel=1e-4), name


def test_without_a_compiler_numpy_reads(monkeypatch):
    monkeypatch.setattr(readers.preload, "library", lambda source, spare: None)
    assert readers.by_core().keys() == {readers.MAXIMUM}


def test_the_speed_of_memory_is_that_of_its_fastest_reader(monkeypatch):
    monkeypatch.setattr(readers, "SETTLE_S", 0)
    memory = readers.Memory(this_machine(), 2**22)
    assert [memory.read() for _ in range(3)] == [max(speeds.values()) for speeds in memory.rounds]
    assert all(speeds.keys() == {readers.MATMUL, *readers.by_core()} for speeds in memory.rounds)
    memory.rounds = [{"one": 3.0, "other": 2.0}, {"one": 1.0, "other": 2.0}, {"one": 1.0, "other": 3.0}]
    assert memory.fastest == "other"


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


# --- What is shown ---


def shown(limits: Limits) -> str:
    output = io.StringIO()
    measure.render(limits, Console(file=output, width=80, color_system=None, force_jupyter=False))
    assert max(len(line) for line in output.getvalue().splitlines()) <= 80
    return " ".join(output.getvalue().split())


def test_the_screen_tells_figures_and_what_they_mean():
    text = shown(LIMITS)
    assert "300 GFLOP/s TensorFlow, n = 4,096" in text
    assert "1,000 GFLOP/s the instruction's peak, AMX TDPBF16PS, of which the product reaches 40%" in text
    for told in ("200 GFLOP/s", "800 GOP/s", "20.0 GB/s", "4.0 × float32", "10 in float32, 20 in bfloat16, 40 in int8"):
        assert told in text
    assert "--again" not in text


def test_figures_of_a_busy_machine_are_marked_so():
    others = {"share": 0.63, "throttled": 0.0, "busy": True, "why": ""}
    text = shown(measure._limits(MEASURED | {"when": "now", "others": others}, LIMITS.isa))
    assert "⚠ Meanwhile, other work took 63% of the cores." in text
    assert "run ./lab roofline --again when the machine is quiet" in text


def test_the_command_gives_programs_all_of_it(monkeypatch):
    asked = []
    monkeypatch.setattr(measure, "limits", lambda again: asked.append(again) or LIMITS)
    done = CliRunner().invoke(cli.application(), ["roofline", "--json", "--again"])
    assert (done.exit_code, asked) == (0, [True])
    assert json.loads(done.stdout) == json.loads(json.dumps(LIMITS.as_dict()))
    assert json.loads(done.stdout)["bandwidth"] == 20
    assert "200 GFLOP/s" in CliRunner().invoke(cli.application(), ["roofline"]).stdout
