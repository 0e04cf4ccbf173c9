import math

import numpy as np
import pytest
from labs import Bench, ThreeWays, same, swap


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Bench("02", {"np": np, "math": math})


BY_STRIDES = swap(
    """    if layout == "nchw":""",
    """    order = {"nchw": (n, c, h, w), "nhwc": (n, h, w, c), "nChw16c": (n, c // 16, h, w, c % 16)}[layout]
    lengths = {"nchw": (N, C, H, W), "nhwc": (N, H, W, C), "nChw16c": (N, (C + 15) // 16, H, W, 16)}[layout]
    return np.ravel_multi_index(order, lengths)
    if layout == "nchw":""",
)
COUNTED = swap(
    "return log.groupby(column).ms.sum().sort_values(ascending=False)",
    """sums = {}
    for value, ms in zip(log[column], log.ms):
        sums[value] = sums.get(value, 0) + ms
    return dict(sorted(sums.items(), key=lambda item: -item[1]))""",
)


class TestExercises(ThreeWays):
    lab = "02"
    mistakes = [
        (1, swap("w * scale, beta - mean * scale", "w * scale"), "two things, the weights and the bias"),
        (1, swap("return w * scale, beta - mean * scale", "w * scale"), "None: does it return?"),
        (1, swap("beta - mean * scale", "beta"), "the bias that batch norm makes of an input of 0"),
        (1, swap("w * scale,", "w,"), "as with the batch norm; it gave"),
        (1, swap("np.sqrt(variance + epsilon)", "np.sqrt(variance)"), "the bias that batch norm makes"),
        (1, swap("w * scale", "w * scale[:, :, None]"), "raised IndexError: too many indices"),
        (1, swap("w * scale,", "(w * scale).sum(axis=3),"), "weights of the shape (1, 1, 3, 5)"),
        (2, swap("((n * C + c) * H + h) * W + w", "((n * C + c) * W + h) * W + w"), '"nchw") to be'),
        (2, swap("((n * H + h) * W + w) * C + c", "((n * C + c) * H + h) * W + w"), '"nhwc") to be 32; it is 1'),
        (2, swap("-(-C // 16)", "C // 16"), '(2, 20, 3, 3), "nChw16c") to be'),
        (2, swap("* 16 + c % 16", "* 16 + c"), '"nChw16c") to be'),
        (2, swap("-(-C // 16)", "C / 16"), "to be a whole number"),
        (3, swap(".sort_values(ascending=False)", ""), "to begin with the largest"),
        (3, swap(".sum()", ".mean()"), "299.0 ms for 'reorder'; it has 59.8"),
        (3, swap("groupby(column)", 'groupby("primitive")'), 'time_by(log, "implementation") to have'),
        (3, swap("return log", "log"), "None: does it return?"),
        (4, swap("plain & ", ""), "there is also the reorder from ABcd16b16a to Acdb16a"),
        (4, swap(r' & log.dst.str.contains(r"\d")', ""), "there is also the reorder from acdb to abcd"),
        (
            4,
            swap(r'log.dst.str.contains(r"\d")', 'log.dst.str.startswith("Acdb")'),
            "missing is the reorder from cdba to ABcd16b16a",
        ),
        (4, swap("return log[", "return log.ms["), "rows of the log"),
        (5, swap("2 * ", ""), "to be 2; it is 1"),
        (5, swap(" * kh * kw", ""), "it is 3,211,264"),
        (5, swap("oh * ow", "oh * oh"), "oh=7, ow=11"),
        (5, swap("return", "total ="), "to be a number; it is None"),
    ]
    right = [
        (1, same),
        (1, swap("gamma / np.sqrt(variance + epsilon)", "gamma * (variance + epsilon) ** -0.5")),
        (2, same),
        (2, BY_STRIDES),
        (3, same),
        (3, COUNTED),
        (4, same),
        (4, swap('plain = log.src.str.islower() & ~log.src.str.contains(r"\\d")', "plain = log.src.str.isalpha()")),
        (5, same),
        (5, swap("2 * mb * oc * oh * ow * ic * kh * kw", "2 * math.prod((mb, oc, oh, ow, ic, kh, kw))")),
    ]
