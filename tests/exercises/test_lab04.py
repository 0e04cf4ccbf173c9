import math
import re

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import ThreeWays

from labkit.display.measured import Measured
from labkit.roofline.measure import Limits, Product
from labkit.system.load import Others
from labkit.system.statistics import Ratio, ratios


class TestExercises(ThreeWays):
    lab = "04"
    names = {"np": np, "math": math}


# --- What is said of results: played invented ones ---

FASTER, SLOWER, UNKNOWN, ONCE = Ratio(1.5, 1.2, 1.9), Ratio(0.5, 0.4, 0.6), Ratio(1.2, 0.9, 1.6), Ratio(1.5)


@pytest.mark.parametrize(
    ("times", "isa", "said"),
    [
        (FASTER, ("AVX2",), "has no BF16 instructions"),
        (FASTER, ("AVX-512", "BF16"), "multiplies BF16 in hardware"),
        (FASTER, ("AVX-512", "AMX"), "multiplies BF16 in hardware"),
        (SLOWER, ("AVX-512", "BF16"), "cost more than they gain"),
        (UNKNOWN, ("AVX-512", "BF16"), "not known: no difference beyond chance."),
        (ONCE, ("AVX-512", "BF16"), "not known: one round only"),
    ],
)
def test_training_in_bfloat16_is_explained_by_its_interval(times, isa, said):
    assert said in lab_cells.functions("04", "explain")["explain"](times, isa)


@pytest.mark.parametrize(
    ("gained", "lost", "verdict"),
    [
        (0, 0, "no difference beyond chance"),
        (3, 1, "no difference beyond chance"),
        (60, 20, "more accurate"),
        (0, 81, "less accurate"),
    ],
)
def test_a_difference_of_accuracy_comes_with_its_noise(gained, lost, verdict):
    compare = lab_cells.functions("04", "compare_answers", np=np, Measured=Measured)["compare_answers"]
    correct, reference = np.ones(4000, bool), np.ones(4000, bool)
    reference[:gained] = False
    correct[gained : gained + lost] = False
    measured, said = compare(correct, reference)
    points, low, high = measured.value, measured.low, measured.high
    assert said == verdict
    assert low < points < high
    assert points == pytest.approx((gained - lost) / 40, abs=0.006)
    if gained + lost > 50:  # where the textbook's interval for pairs holds
        half = 196 * math.sqrt((gained + lost) / 4000 - ((gained - lost) / 4000) ** 2) / math.sqrt(4000)
        assert high - low == pytest.approx(2 * half, rel=0.03)


INTEL, AMD = "vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n"
AVX512 = "avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16"


@pytest.mark.parametrize(
    ("cpuinfo", "here", "said"),
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
def test_amx_is_found_or_missed_for_a_reason(cpuinfo, here, said):
    found, why = lab_cells.functions("04", "find_amx", re=re)["find_amx"](cpuinfo)
    assert found is here
    assert said in why


def limits(float32: float, bfloat16: float, int8: float) -> Limits:
    speeds = {"float32": float32, "bfloat16": bfloat16, "int8": int8}
    products = {kind: [Product("OpenVINO", 512, speed)] for kind, speed in speeds.items()}
    return Limits(products, {}, {"read": 100.0}, Others(), "now", ("AVX-512", "VNNI", "BF16", "AMX"))


def test_amx_is_told_with_what_it_gains_or_loudly_missed(capsys):
    tell = lab_cells.functions("04", "tell_amx")["tell_amx"]
    tell(True, "It is listed.", limits(3000, 40_000, 80_000), limits(3000, 6000, 12_000))
    told = capsys.readouterr().out
    assert "6,000 without it,    40,000 with it: 6.7 times. Against FP32: 13.3 times." in told
    assert "12,000 without it,    80,000 with it: 6.7 times. Against FP32: 26.7 times." in told
    tell(False, "It is an older CPU.", None, None)
    told = capsys.readouterr().out
    assert told.startswith("⚠ AMX IS NOT HERE")
    assert "It is an older CPU." in told


def test_what_an_instruction_set_is_worth_does_not_depend_on_a_slow_process():
    given = lab_cells.functions("04", "against_fp32", "between_caps", np=np, ratios=ratios)
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
    vnni = given["between_caps"](capped, "INT8", "AVX512_CORE_VNNI", "AVX512_CORE")
    assert vnni.value == pytest.approx(1.5, rel=0.02)
    assert (vnni.verdict, vnni.high - vnni.low < 0.1) == ("faster", True)
    assert given["against_fp32"](capped["AVX512_CORE"])["INT8"].value == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("second", "throughput", "latency"),
    [
        ((1200.0, 2.0), "faster", "longer"),
        ((800.0, 0.5), "slower", "shorter"),
        ((1000.0, 1.0), "no difference beyond chance", "no difference beyond chance"),
    ],
)
def test_streams_are_told_by_throughput_and_latency(second, throughput, latency, capsys):
    tell = lab_cells.functions("04", "tell_streams", ratios=ratios)["tell_streams"]
    noise = [(1.0, 1.0), (1.02, 0.97), (0.99, 1.01), (0.98, 1.02)]
    rounds = [
        {
            "1:1": {"images/s": 1000 * a, "p50 ms": 0.9, "p99 ms": 1.0 * b},
            "2:2": {"images/s": second[0] * b, "p50 ms": 1.5, "p99 ms": second[1] * a},
        }
        for a, b in noise
    ]
    rate = tell(rounds)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "2 streams, 2 clients, against 1 of each:"
    assert f" times: {throughput}" in told[1]
    assert f" times: {latency}" in told[2]
    assert rate["2:2"].value == pytest.approx(second[0] / 1000, rel=0.02)


@pytest.mark.parametrize(
    ("int8", "near", "fp32_share", "int8_share"),
    [([1.0, 1.0, 1.0], 1, 67, 33), ([1.0, 0.25, 0.25], 3, 100, 100), ([4.0, 1.0, 1.0], 0, 0, 0)],
)
def test_which_layers_come_near_the_limit(int8, near, fp32_share, int8_share, capsys):
    tell = lab_cells.functions("04", "tell_layers")["tell_layers"]
    layers = pd.DataFrame({"FP32": [4.0, 1.0, 1.0], "INT8": int8})
    tell(layers.assign(gain=layers.FP32 / layers.INT8), 4.0)
    told = capsys.readouterr().out
    assert f"{near} of 3 layers reach 80% of the products' 4.0 times" in told
    assert f"They take {fp32_share}% of FP32's time and {int8_share}% of INT8's." in told
