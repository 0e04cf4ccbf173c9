import math
import re

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import ThreeWays

from labkit.display import consistency
from labkit.display.consistency import Limit
from labkit.display.measured import Measured
from labkit.roofline.measure import Limits, Matmul
from labkit.system.load import Contention
from labkit.system.statistics import Ratio, ratios


class TestExercises(ThreeWays):
    lab = "04"
    names = {"np": np, "math": math}


# --- The lab's sentences about its measurements, for synthetic results ---

FASTER, SLOWER, UNKNOWN, ONCE = Ratio(1.5, 1.2, 1.9), Ratio(0.5, 0.4, 0.6), Ratio(1.2, 0.9, 1.6), Ratio(1.5)


@pytest.mark.parametrize(
    ("times", "isa", "text"),
    [
        (FASTER, ("AVX2",), "has no BF16 instructions"),
        (FASTER, ("AVX-512", "BF16"), "multiplies BF16 in hardware"),
        (FASTER, ("AVX-512", "AMX"), "multiplies BF16 in hardware"),
        (SLOWER, ("AVX-512", "BF16"), "cost more than they save"),
        (UNKNOWN, ("AVX-512", "BF16"), "not known: not significant."),
        (ONCE, ("AVX-512", "BF16"), "not known: one round only"),
    ],
)
def test_bfloat16_training_is_explained_by_its_interval(times, isa, text):
    assert text in lab_cells.functions("04", "explain")["explain"](times, isa)


@pytest.mark.parametrize(
    ("gained", "lost", "verdict"),
    [
        (0, 0, "not significant"),
        (3, 1, "not significant"),
        (60, 20, "significant"),
        (0, 81, "significant"),
    ],
)
def test_difference_in_accuracy_has_an_interval(gained, lost, verdict):
    compare = lab_cells.functions("04", "compare_answers", np=np, Measured=Measured)["compare_answers"]
    correct, reference = np.ones(4000, bool), np.ones(4000, bool)
    reference[:gained] = False
    correct[gained : gained + lost] = False
    measured, text = compare(correct, reference)
    points, low, high = measured.value, measured.low, measured.high
    assert text == verdict
    assert low < points < high
    assert points == pytest.approx((gained - lost) / 40, abs=0.006)
    if gained + lost > 50:  # where the textbook's interval for pairs holds
        half = 196 * math.sqrt((gained + lost) / 4000 - ((gained - lost) / 4000) ** 2) / math.sqrt(4000)
        assert high - low == pytest.approx(2 * half, rel=0.03)


INTEL, AMD = "vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n"
AVX512 = "avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16"


@pytest.mark.parametrize(
    ("cpuinfo", "present", "text"),
    [
        (
            f"{INTEL}flags\t\t: fpu {AVX512} avx512_fp16 amx_bf16 amx_tile amx_int8\n",
            True,
            "lists amx_tile, amx_bf16",
        ),
        (f"{INTEL}flags\t\t: fpu {AVX512} avx512_fp16\n", False, "So something hides it"),
        (f"{INTEL}flags\t\t: fpu {AVX512} amx_tile\n", False, "does not list amx_bf16, amx_int8. Intel's Xeons have"),
        (f"{INTEL}flags\t\t: fpu avx2\n", False, "older, or of another kind"),
        (f"{AMD}flags\t\t: fpu {AVX512}\n", False, "AMD's CPUs up to Zen 6 have no AMX"),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False, "amx_tile, amx_bf16, amx_int8"),
    ],
)
def test_presence_of_amx_is_explained(cpuinfo, present, text):
    result, reason = lab_cells.functions("04", "find_amx", re=re)["find_amx"](cpuinfo)
    assert result is present
    assert text in reason


def machine_limits(isa=("AVX-512", "VNNI", "BF16"), alone=None, **speeds) -> Limits:
    """Return limits with a matmul speed for each dtype, and instruction speeds for some."""
    products = {dtype: [Matmul("OpenVINO", 512, speed)] for dtype, speed in speeds.items()}
    instructions = {dtype: {"instruction": "VFMADD", "speed": speed} for dtype, speed in (alone or {}).items()}
    return Limits(products, instructions, {"read": 100.0}, Contention(), "now", isa)


def limit_functions(limits: Limits):
    dtypes = {"FP32": "float32", "BF16": "bfloat16", "INT8": "int8"}
    return lab_cells.functions(
        "04", "limit_of", "speedup_limit", limits=limits, DTYPES=dtypes, Measured=Measured, Limit=Limit
    )


@pytest.mark.parametrize(
    ("isa", "alone", "name", "speed", "reached_by"),
    [
        (("AVX-512", "BF16"), {}, "BF16", 1000, "OpenVINO's matmul"),
        (("AVX-512", "BF16"), {"float32": 570.0}, "FP32", 570, "VFMADD"),
        (("AVX-512", "BF16"), {"float32": 400.0}, "FP32", 500, "OpenVINO's matmul"),
        (("AVX-512",), {"float32": 1200.0}, "BF16", 1200, "VFMADD"),  # emulated with the FP32 instruction
    ],
)
def test_limit_of_a_format_is_the_fastest_measurement(isa, alone, name, speed, reached_by):
    limits = machine_limits(isa, alone, float32=500.0, bfloat16=1000.0, int8=2000.0)
    limit, source = limit_functions(limits)["limit_of"](name)
    assert (limit.value, source) == (speed, reached_by)


def test_limit_of_a_speedup_is_relative_to_the_measured_fp32_speed():
    limits = machine_limits(float32=500.0, bfloat16=1000.0, int8=2000.0)
    limit = limit_functions(limits)["speedup_limit"]("INT8", 250.0)  # FP32 at half of its limit
    assert limit.measured.value == pytest.approx(8)
    assert limit.share(Measured(6.0, unit="×")).value == pytest.approx(75)  # 1,500 of 2,000
    assert "OpenVINO's matmul" in limit.describe(Measured(9.0, 8.8, 9.2, "×"))


def test_instruction_sets_are_compared_within_processes():
    functions = lab_cells.functions("04", "relative_to_fp32", "between_caps", np=np, ratios=ratios)
    slow = 0.3  # one process had a third of the cores
    capped = {
        "AVX512_CORE": {
            "FP32": [[100, 101], [99 * slow, 100 * slow], [100, 100]],
            "INT8": [[200, 201], [199 * slow, 200 * slow], [201, 200]],
            "BF16": [[30, 31], [30 * slow, 30 * slow], [30, 30]],
        },
        "AVX512_CORE_VNNI": {
            "FP32": [[100, 100], [101, 100], [100, 99]],
            "INT8": [[301, 300], [300, 299], [300, 300]],
        },
    }
    vnni = functions["between_caps"](capped, "INT8", "AVX512_CORE_VNNI", "AVX512_CORE")
    assert vnni.value == pytest.approx(1.5, rel=0.02)
    assert (vnni.verdict, vnni.high - vnni.low < 0.1) == ("faster", True)
    assert functions["relative_to_fp32"](capped["AVX512_CORE"])["INT8"].value == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("second", "throughput", "latency"),
    [
        ((1200.0, 2.0), "faster", "longer"),
        ((800.0, 0.5), "slower", "shorter"),
        ((1000.0, 1.0), "not significant", "not significant"),
    ],
)
def test_streams_are_compared_by_throughput_and_latency(second, throughput, latency, capsys):
    compare = lab_cells.functions("04", "compare_streams", ratios=ratios, Measured=Measured)["compare_streams"]
    noise = [(1.0, 1.0), (1.02, 0.97), (0.99, 1.01), (0.98, 1.02)]
    rounds = [
        {
            "1:1": {"images/s": 1000 * a, "p50 ms": 0.9, "p99 ms": 1.0 * b},
            "2:2": {"images/s": second[0] * b, "p50 ms": 1.5, "p99 ms": second[1] * a},
        }
        for a, b in noise
    ]
    rate = compare(rounds)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 streams, 2 clients vs 1 of each:"
    assert re.search(rf"throughput  \d\.\d{{3}}× \(.*\): {throughput}", lines[1])
    assert re.search(rf"p99 latency \d\.\d{{3}}× \(.*\): {latency}", lines[2])
    assert rate["2:2"].value == pytest.approx(second[0] / 1000, rel=0.02)


def test_layers_that_are_slower_or_above_the_limit_are_explained(capsys):
    functions = lab_cells.functions(
        "04", "layer_table", "describe_layers", np=np, pd=pd, batch=10, consistency=consistency
    )
    fp32_layers = [("Convolution", "f", 4.0), ("MaxPool", "f", 1.0), ("Convolution", "f", 4.0), ("MaxPool", "f", 2.0)]
    int8_layers = [("Convolution", "i", 1.0), ("MaxPool", "ref", 2.0), ("Convolution", "i", 0.8), ("MaxPool", "i", 0.4)]
    # Operations per image: the first convolution runs at 100 GOP/s in INT8, the second at 125.
    table = functions["layer_table"](fp32_layers, int8_layers, (10e6, 10e6), tops=(50.0, 120.0))
    assert table["INT8 share"].dropna().tolist() == pytest.approx([83.3, 104.2], rel=0.01)
    assert table["FP32 share"].dropna().tolist() == pytest.approx([50, 50])
    functions["describe_layers"](table, 4.5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "2 of 4 layers reach 80% of INT8's limit. They take",
        "  73% of FP32's time and 43% of INT8's.",
    ]
    assert lines[2:] == [
        "Layer 1, MaxPool: slower in INT8, by ref",
        "Layer 2, Convolution: more than the limits' 4.5 ×, as it reaches 50% of the limit in FP32, 104% in INT8",
        "Layer 2, Convolution: above a limit (50% of the limit in FP32, 104% in INT8),",
        "  which was measured in a slower phase or with a slower kernel",
        "Layer 3, MaxPool: multiplies nothing, so bytes decide, not the instructions",
    ]


@pytest.mark.parametrize(
    ("isa", "caps"),
    [
        (("AVX", "AVX2"), {"AVX2": ["INT8"]}),
        (("AVX", "AVX2", "VNNI"), {"AVX2": ["INT8"], "AVX2_VNNI": ["INT8"]}),
        (
            ("AVX2", "AVX-512", "VNNI", "BF16"),
            {"AVX512_CORE": ["INT8", "BF16"], "AVX512_CORE_VNNI": ["INT8"]},
        ),
        (
            ("AVX2", "AVX-512", "VNNI", "BF16", "AMX"),
            {
                "AVX512_CORE": ["INT8", "BF16"],
                "AVX512_CORE_VNNI": ["INT8"],
                "AVX512_CORE_BF16": ["INT8", "BF16"],
                "AVX512_CORE_AMX": ["INT8", "BF16"],
            },
        ),
    ],
)
def test_caps_cover_the_instruction_sets_of_the_cpu(isa, caps):
    assert lab_cells.functions("04", "caps_for")["caps_for"](isa) == caps
