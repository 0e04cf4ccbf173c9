import math

import lab_cells
import numpy as np
import pytest
from labs import ThreeWays

from labkit.display.consistency import Limit
from labkit.display.measured import Measured
from labkit.roofline.measure import Limits, Matmul
from labkit.system.load import Contention
from labkit.system.statistics import ratios


class TestExercises(ThreeWays):
    lab = "04"
    names = {"np": np, "math": math}


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
    ("isa", "caps"),
    [
        (("AVX", "AVX2", "VNNI"), {"AVX2": ["INT8"], "AVX2_VNNI": ["INT8"]}),
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
