import math
import re

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.display.measured import Measured
from labkit.roofline.measure import Limits, Product
from labkit.system.load import Others
from labkit.system.statistics import Ratio, ratios


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("04", {"np": np, "math": math})


IN_PLACE = swap(
    '    true = [g.astype("float32") / scale for g in gradients]\n',
    """    for place, g in enumerate(gradients):
        gradients[place] = g.astype("float32") / scale
    true = gradients
""",
)
NORMAL = "return sign * (1 + fraction / 2**f) * 2.0 ** (exponent - bias)"
BY_LDEXP = swap(
    "    if exponent == 0:\n",
    """    if exponent:
        return math.ldexp(sign * (2**f + fraction), exponent - bias - f)
    if exponent == 0:
""",
)
IN_FRACTIONS = swap(
    "    if exponent == 0:\n",
    """    from fractions import Fraction
    sign, fraction = int(sign), Fraction(fraction)
    if exponent:
        return sign * (1 + fraction / 2**f) * Fraction(2) ** (exponent - bias)
    if exponent == 0:
""",
)
IN_STEPS = swap(
    """    sums = a.astype("int32") @ b.astype("int32")
""",
    """    a, b = a.astype("int32"), b.astype("int32")
    sums = np.zeros((a.shape[0], b.shape[1]), "int32")
    for k in range(a.shape[1]):
        sums += np.outer(a[:, k], b[k]).astype("int32")
""",
)
BY_LOOPS = swap(
    "    from_b = ",
    """    bound = np.empty((len(a), b.shape[1]))
    half_b = np.broadcast_to(half_b, b.shape[1])
    for i, j in np.ndindex(*bound.shape):
        moved = (np.abs(a[i]) + half_a) * (np.abs(b[:, j]) + half_b[j])
        bound[i, j] = np.sum(moved - np.abs(a[i] * b[:, j]))
    return bound
    from_b = """,
)
BY_PRODUCTS = swap("    from_b = ", "    return (abs(a) + half_a) @ (abs(b) + half_b) - abs(a) @ abs(b)\n    from_b = ")


class TestExercises(ThreeWays):
    lab = "04"
    mistakes = [
        (1, swap("1 + fraction / 2**f", "fraction / 2**f"), "decode(0x3c00, 5, 10), a normal number, to be 1; it is 0"),
        (1, swap("2 ** (e - 1) - 1\n", "2 ** (e - 1)\n"), "decode(0x3c00, 5, 10), a normal number, to be 1; it is 0.5"),
        (1, swap("2.0 ** (1 - bias)", "2.0 ** -bias"), "subnormal, to be 5.96e-08; it is 2.98e-08"),
        (1, swap("    if exponent == 0:\n", "    if pattern == 0:\n"), "subnormal, to be"),
        (1, swap("if fraction == 0 else np.nan", ""), "not a number, to be nan; it is inf"),
        (1, swap("if exponent == 2**e - 1", "if False"), "an infinity, to be inf; it is 6.554e+04"),
        (1, swap("-1.0 if pattern >> (e + f) else 1.0", "1.0"), "a negative number, to be -1; it is 1"),
        (1, swap("bias = 2 ** (e - 1) - 1", "bias = 15"), "0x3f80, 8, 7), a normal number, to be 1; it is"),
        (1, swap(NORMAL, NORMAL.removeprefix("return ")), "to be a number; it is None: does it return?"),
        (1, swap("pattern & (2**f - 1)", "pattern & (2**f - 2)"), "to be 1.001; it is 1."),
        (
            1,
            swap("bias = 2 ** (e - 1) - 1", "bias = {2: 1, 5: 15, 8: 127}.get(e, 0)"),
            "decode(0x81, 4, 3), subnormal, to be -0.001953",
        ),
        (
            2,
            swap('g.astype("float32") / scale', "g / scale"),
            "to be an array of float32; it is an array of shape (1, 2), float16",
        ),
        (
            2,
            swap('g.astype("float32") / scale', "g.astype(float) / scale"),
            "float32; it is an array of shape (1, 2), float64",
        ),
        (2, swap('g.astype("float32") / scale', '(g / scale).astype("float32")'), "at [0]; it has 0 there"),
        (2, IN_PLACE, "Expected gradients to stay as it was; settle changed it"),
        (
            2,
            swap("np.isfinite(g).all()", "np.isfinite(g.sum())"),
            "in which everything is finite, such as [[[65504.0, 65504.0]]]",
        ),
        (2, swap(" / scale for", " for"), "to have 0.1875 at [0, 0]; it has 1.5 there"),
        (2, swap("np.isfinite(g).all()", "not np.isinf(g).any()"), "since gradient 0 has nan in it"),
        (2, swap("for g in gradients):", "for g in gradients[:1]):"), "since gradient 1 has inf in it"),
        (2, swap("None, scale / 2, 0", "None, scale / 2, calm"), "the calm steps after an overflow to be 0; it is 9"),
        (
            2,
            swap("None, scale / 2, 0", "None, scale, 0"),
            "to be 512 (half of scale 1024 after an overflow); it is 1024",
        ),
        (2, swap("None, scale / 2, 0", "gradients, scale / 2, 0"), "None, since gradient"),
        (
            2,
            swap("scale * 2, 0", "scale * 2, calm + 1"),
            "(the count starts again when the scale is doubled); it is 10",
        ),
        (2, swap('g.astype("float32") / scale', "g / scale"), "Hint 2 of 3"),
        (2, swap("scale, calm + 1", "scale, calm"), "Hint 3 of 3"),
        (2, swap("scale * 2, 0", "scale, 0"), "to be 32 (twice the scale, at calm step 10); it is 16"),
        (2, swap("calm + 1 == patience", "calm == patience"), "to be 32 (twice the scale, at calm step 10)"),
        (2, swap("scale, calm + 1", "scale, calm"), "patience 10 to be 1 (this one is calm as well); it is 0"),
        (2, swap("return true, scale, calm + 1", "return true"), "three things, the gradients or None"),
        (
            2,
            swap("    true = [", "    scale *= 2 if calm + 1 == patience else 1\n    true = ["),
            "to have 0.09375 at [0, 0]; it has 0.04688 there",
        ),
        (3, swap("/ 255", "/ 256"), "the scale of scale_and_zero(0.0, 1.0) to be 0.003922 (255 steps"),
        (3, swap("low, high = min(low, 0.0), max(high, 0.0)", "pass"), "the scale of scale_and_zero(2.0, 6.0) to be"),
        (3, swap("max(high, 0.0)", "high"), "Hint 3 of 3: First low, high = min(low, 0), max(high, 0)"),
        (3, swap("round(-low / scale)", "-low / scale"), "the code of 0.0, to be a whole number; it is 127.5"),
        (3, swap("round(-low / scale)", "round(low / scale)"), "the code nearest to 127.50; it is -128"),
        (3, swap("round(-low / scale)", "128"), "the code nearest to 0.00; it is 128"),
        (3, swap("round(-low / scale)", "int(-low / scale)"), "the code nearest to 58.85; it is 58"),
        (3, swap("round(-low / scale)", "int(np.ceil(-low / scale))"), "the code nearest to 194.29; it is 195"),
        (3, swap(", round(-low / scale)", ""), "to return scale and zero"),
        (
            4,
            swap('a.astype("int32") @ b.astype("int32")', "a @ b"),
            "sums of type int32, as the CPU computes them; yours are int16",
        ),
        (
            4,
            swap('a.astype("int32") @ b.astype("int32")', '(a @ b).astype("int32")'),
            "to have 2,072,640 at [0, 0] (sums of 64 products); it has",
        ),
        (
            4,
            swap('a.astype("int32") @', 'a.view("int8").astype("int32") @'),
            "to have 32,385 at [0, 0] (sums of 1 product); it has -127",
        ),
        (4, swap(" - zero_a * columns", ""), "(zero_a = 131, one scale_b)"),
        (4, swap(" - zero_a * columns", ""), "Hint 2 of 3"),
        (4, swap("int32", "int64"), "Hint 1 of 3: numpy's product has the type of its matrices"),
        (4, swap("scale_a * scale_b", "0.5 * scale_b"), "(zero_a = 0, one scale_b)"),
        (
            4,
            swap('a.astype("int32") @ b.astype("int32")', '(a.astype("f4") @ b.astype("f4")).astype("int32")'),
            "(sums of 1001",
        ),
        (4, swap("return sums", "b *= 2\n    return sums"), "Expected b to stay as it was; int8_product changed it"),
        (
            4,
            swap('b.astype("int32").sum(axis=0)', 'a.astype("int32").sum(axis=1, keepdims=True)'),
            "(zero_a = 131, one scale_b)",
        ),
        (
            4,
            swap("scale_a * scale_b * (", "scale_a * np.mean(scale_b) * ("),
            "(zero_a = 0, a scale_b for each column)",
        ),
        (4, swap("scale_a * scale_b", "scale_b"), "to have 323.9 at [0, 0]"),
        (4, swap("return sums, ", "return "), "two things, the sums and the product"),
        (5, swap(" + a.shape[1] * half_a * half_b", ""), "terms is off by"),
        (5, swap("a.shape[1] * half_a", "half_a"), "no error above the bound"),
        (5, swap("np.abs(a)", "a"), "to have 0.2368 at [0, 0] (each of its 3 terms as far off as it can be)"),
        (
            5,
            swap("scale_a / 2, scale_b / 2", "scale_a, scale_b"),
            "(each of its 3 terms as far off as it can be); it has",
        ),
        (5, swap("scale_a / 2, scale_b / 2", "scale_a / 4, scale_b / 4"), "no error above the bound"),
        (5, swap("sum(axis=1, keepdims=True)", "sum()"), "(each of its 3 terms as far off as it can be)"),
        (5, swap("return from_b + from_a + a.shape[1] * half_a * half_b", "return (from_b + from_a).max()"), "(2, 2)"),
    ]
    right = [
        (1, same),
        (1, BY_LDEXP),
        (1, IN_FRACTIONS),
        (2, same),
        (2, swap('g.astype("float32") / scale', 'np.float32(1 / scale) * g.astype("float32")')),
        (2, swap("return true, scale, calm + 1", "return tuple(true), np.float64(scale), np.int64(calm + 1)")),
        (3, same),
        (3, swap("round(-low / scale)", "int(255 - np.floor(high / scale + 0.5))")),
        (3, swap("round(-low / scale)", "np.floor(-low / scale + 0.5)")),
        (4, same),
        (4, IN_STEPS),
        (
            4,
            swap(
                "scale_a * scale_b * (sums - zero_a * columns)",
                "scale_a * scale_b * sums - scale_a * scale_b * zero_a * columns",
            ),
        ),
        (4, swap('a.astype("int32") @ b.astype("int32")', '(a.astype(float) @ b.astype(float)).astype("int32")')),
        (5, same),
        (5, BY_LOOPS),
        (5, BY_PRODUCTS),
    ]


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
