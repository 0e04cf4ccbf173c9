import math
from decimal import Decimal
from fractions import Fraction

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.exercises.answers import COPY_HINT
from labkit.exercises.lab02 import EQUAL_HINT, ORDER_HINT, PROCESSES_HINT, SERIES_HINT
from labkit.system.statistics import ratios


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("02", {"np": np, "pd": pd, "math": math, "Decimal": Decimal, "Fraction": Fraction})


BY_STRIDES = swap(
    """    if layout == "nchw":""",
    """    order = {"nchw": (n, c, h, w), "nhwc": (n, h, w, c), "nChw16c": (n, c // 16, h, w, c % 16)}[layout]
    lengths = {"nchw": (N, C, H, W), "nhwc": (N, H, W, C), "nChw16c": (N, (C + 15) // 16, H, W, 16)}[layout]
    return np.ravel_multi_index(order, lengths)
    if layout == "nchw":""",
)
IN_16_BITS = swap(
    "return (((n * blocks + c // 16) * H + h) * W + w) * 16 + c % 16",
    "return int(np.array((((n * blocks + c // 16) * H + h) * W + w) * 16 + c % 16).astype('int16'))",
)
BY_SUM = swap(
    "return log.groupby(column).ms.sum().sort_values(ascending=False)",
    """by_sum = {ms: value for value, ms in log.groupby(column).ms.sum().items()}
    return {by_sum[ms]: ms for ms in sorted(by_sum, reverse=True)}""",
)
COUNTED = swap(
    "return log.groupby(column).ms.sum().sort_values(ascending=False)",
    """sums = {}
    for value, ms in zip(log[column], log.ms):
        sums[value] = sums.get(value, 0) + ms
    return dict(sorted(sums.items(), key=lambda item: -item[1]))""",
)


DIGITS = r'log.dst.str.contains(r"\d")'
LAST = r'log.dst.str.contains(r"\d")]'
ROWS = f'log[(log.primitive == "reorder") & plain & {DIGITS}]'
SCALED = "w * scale, beta - mean * scale"


class TestExercises(ThreeWays):
    lab = "02"
    mistakes = [
        (1, swap("w * scale, beta - mean * scale", "w * scale"), "two things, the weights and the bias"),
        (1, swap("return w * scale, beta - mean * scale", "w * scale"), "None: does it return?"),
        (1, swap("beta - mean * scale", "beta"), "(what batch norm makes of an input of 0); it has"),
        (1, swap("w * scale,", "w,"), "(as with the batch norm); it has"),
        (1, swap("np.sqrt(variance + epsilon)", "np.sqrt(variance)"), "(what batch norm makes of an input of 0)"),
        (1, swap("+ epsilon", "+ 0.05"), "(what batch norm makes of an input of 0)"),
        (1, swap("return w * scale,", "w *= scale\n    return w,"), "w to stay as it was; fold changed it"),
        (1, swap("w * scale,", "[1, 2],"), "weights of the shape (1, 1, 3, 5), as w has; yours have (2,)"),
        (1, swap("w * scale,", "None,"), "weights that are numbers; it is None"),
        (1, swap("w * scale", "w * scale[:, :, None]"), "IndexError: too many indices for array"),
        (1, swap("w * scale,", "(w * scale).sum(axis=3),"), "weights of the shape (1, 1, 3, 5)"),
        (1, swap(SCALED, "w.astype('float16') * scale, (beta - mean * scale).astype('float16')"), "the bias to have"),
        (1, swap("w * scale,", "(w * scale).astype('float16'),"), "the weights to have"),
        (1, swap(SCALED, "(w * scale).round(4), (beta - mean * scale).round(4)"), "the bias to have"),
        (1, swap("variance + epsilon", "variance + epsilon + 1e-5"), "(what batch norm makes of an input of 0)"),
        (2, swap("((n * C + c) * H + h) * W + w", "((n * C + c) * W + h) * W + w"), '"nchw") to be'),
        (2, swap("((n * H + h) * W + w) * C + c", "((n * C + c) * H + h) * W + w"), '"nhwc") to be 256; it is 8'),
        (2, swap("-(-C // 16)", "C // 16"), 'offset(1, 0, 0, 0, (2, 20, 3, 3), "nChw16c") to be 288; it is 144'),
        (2, swap("* 16 + c % 16", "* 16 + c"), '"nChw16c") to be'),
        (2, swap("-(-C // 16)", "(C + 15) / 16"), '(2, 32, 3, 5), "nChw16c") to be 480; it is 705'),
        (2, swap("-(-C // 16)", "max(1, C // 16)"), '(2, 20, 3, 3), "nChw16c") to be 288; it is 144'),
        (
            2,
            swap("return ((n * C + c) * H + h) * W + w", "return Fraction(((n * C + c) * H + h) * W + w)"),
            "to be a plain number",
        ),
        (
            2,
            IN_16_BITS,
            '(3, 40, 64, 48), "nChw16c") to be',
        ),
        (3, swap("groupby(column)", "groupby(log[column].str.lower())"), 'time_by(log, "dst") to have'),
        (3, BY_SUM, 'time_by(log, "primitive") to have'),
        (3, swap(".sort_values(ascending=False)", ""), "to begin with the largest"),
        (
            3,
            swap(".sum()", ".mean()"),
            "the ms of 'convolution' in time_by(log, \"primitive\") to be 8.194; it is 2.049",
        ),
        (3, swap("False)", "False).round(3)"), "to be 8.1941; it is 8.194"),
        (3, swap("groupby(column)", 'groupby("primitive")'), 'time_by(log, "implementation") to have'),
        (3, swap("return log", "log"), "None: does it return?"),
        (3, swap("return log", "log.drop(columns='src', inplace=True)\n    return log"), "log to stay as it was"),
        (3, swap("False)", "False).to_frame()"), "to be a pandas Series or a dict; it is a DataFrame"),
        (
            3,
            swap("return log.", "return log[log.get('process', log.ms * 0) == 0]."),
            "the ms of 'convolution' in time_by",
        ),
        (4, swap("plain & ", ""), "there is also the reorder from ABcd16b16a to Acdb16a"),
        (4, swap(f" & {DIGITS}", ""), "there is also the reorder from acdb to abcd"),
        (4, swap(DIGITS, 'log.dst.str.contains("16")'), "missing is the reorder from abcd to aBcd8b"),
        (4, swap(DIGITS, 'log.dst.str.startswith("A")'), "missing is the reorder from abcd to aBcd8b"),
        (4, swap(DIGITS, "(log.dst.str.len() > 4)"), "there is also the reorder from abcdef to acdefb"),
        (4, swap(DIGITS, "(log.src.str.len() < log.dst.str.len())"), "from plain to blocks; "),
        (4, swap(DIGITS, 'log.dst.str.contains("8|16|32|64")'), "missing is the reorder from ba to Ab4a"),
        (4, swap(DIGITS, 'log.dst.str.contains("4|8|16|32")'), "missing is the reorder from "),
        (4, swap("plain =", 'plain = log.src == "cdba" #'), "missing is the reorder from abcd to aBcd8b"),
        (4, swap('(log.primitive == "reorder")', '(log.direction == "undef")'), "there is also the eltwise from abcd"),
        (4, swap("return log[", "return log.ms["), "rows of the log"),
        (
            4,
            swap(ROWS, "plain"),
            "it gave a boolean mask of shape (21,): use it as an index",
        ),
        (4, swap("plain =", "log = log.drop_duplicates()\n    plain ="), "process 0) is there 2 times, and in yours 1"),
        (4, swap(DIGITS, 'log.dst.str.contains("[AB]")'), "missing is the reorder from abcd to abCd32c (0.10498"),
        (4, swap(DIGITS, r'log.dst.str.contains(r"\d[ab]$")'), "missing is the reorder from abcd to abCd32c"),
        (
            4,
            swap("plain =", 'plain = ~log.src.str.contains("[AB]") #'),
            "there is also the reorder from abCd32c to Acdb",
        ),
        (4, swap('"reorder")', '"reorder") & (log.ms > 0.001)'), "from abcde to aBCde16b16c (0.0004883 ms"),
        (4, swap(LAST, r'log.dst.str.contains(r"\d")].head(10)'), "from cdba to Acdb16a (0.0168457 ms in process 1)"),
        (4, swap("return log[", "return log.drop(columns='process', errors='ignore')["), "columns; missing: process"),
        (4, swap('"reorder")', '"reorder") & (log.get("process", 0) == 0)'), "(0.0168457 ms in process 1)"),
        (
            4,
            swap("plain =", "log = pd.concat([log, log.tail(1).assign(src='abcd')], ignore_index=True)\n    plain ="),
            "yours have 1 row beside them",
        ),
        (
            4,
            swap("return log[", 'return log[["src", "dst", "ms"]]['),
            "with all their columns; missing: primitive, implementation, direction, type, wei",
        ),
        (5, swap("2 * ", ""), "to be 2; it is 1"),
        (5, swap(" * kh * kw", ""), "it is 3,211,264"),
        (
            5,
            swap("2 * mb", "Decimal(2) * mb"),
            "to be an int or a float, which milliseconds can divide; it is Decimal('2')",
        ),
        (5, swap("oh * ow", "oh * oh"), "oh=7, ow=11"),
        (5, swap("return", "total ="), "to be a number; it is None"),
        (5, swap("2 * mb", "2 * np.int32(mb)"), "to be 947,040,288,768; it is -2,147,483,648"),
        (5, swap("2 * mb", "np.float32(2) * mb"), "oh=1001, ow=1003, kh=3, kw=3) to be"),
    ]
    right = [
        (1, same),
        (1, swap("gamma / np.sqrt(variance + epsilon)", "gamma * (variance + epsilon) ** -0.5")),
        (1, swap("return w * scale, beta - mean * scale", "return [(w * scale).tolist(), list(beta - mean * scale)]")),
        (2, same),
        (2, BY_STRIDES),
        (3, same),
        (3, COUNTED),
        (3, swap("groupby(column).ms.sum()", 'pivot_table(index=column, values="ms", aggfunc="sum").ms')),
        (4, same),
        (4, swap('plain = log.src.str.islower() & ~log.src.str.contains(r"\\d")', "plain = log.src.str.isalpha()")),
        (4, swap(DIGITS, "(log.dst.str.lower() != log.dst)")),
        (4, swap(f"{DIGITS}]", f"{DIGITS}].reset_index(drop=True)")),
        (5, same),
        (5, swap("2 * mb", "Fraction(2) * mb")),
        (5, swap("2 * mb * oc * oh * ow * ic * kh * kw", "2 * math.prod((mb, oc, oh, ow, ic, kh, kw))")),
    ]


@pytest.mark.parametrize(
    ("exercise", "edit", "hint"),
    [
        (1, swap("return w * scale,", "w *= scale\n    return w,"), COPY_HINT),
        (3, swap("ascending=False", ""), ORDER_HINT),
        (3, swap("False)", "False).to_frame()"), SERIES_HINT),
        (3, swap("return log.", "return log[log.get('process', log.ms * 0) == 0]."), PROCESSES_HINT),
        (4, swap(LAST, f"{LAST}.drop_duplicates()"), EQUAL_HINT),
    ],
)
def test_a_mistake_gets_the_hint_that_fits(student, exercise, edit, hint, capsys):
    student.check(exercise, student.answer(exercise, edit))
    assert f"Hint: {hint}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ([20.0, 20.2, 19.9], "faster"),
        ([5.0, 5.1, 4.9], "slower"),
        ([10.0, 9.8, 10.3], "no difference beyond chance"),
        ([20.0], "one round only, so there is no interval"),
    ],
)
def test_what_is_said_of_a_configuration_is_what_its_rounds_show(speeds, verdict, capsys):
    tell = lab_cells.functions("02", "tell", ratios=ratios)["tell"]
    first = [10.0, 10.1, 9.9][: len(speeds)]
    tell({"Eigen": first, "oneDNN": speeds})
    assert f" times as fast as Eigen: {verdict}" in capsys.readouterr().out


def test_a_loss_is_reached_when_the_mean_of_the_last_losses_is_below_it():
    until = lab_cells.functions("02", "smooth", "until", np=np, pd=pd)["until"]
    run = {"training": {"losses": [3.0, 2.0, 0.1], "seconds": [1.0, 0.5, 0.25]}}  # means 3, 2.5, 1.7
    assert until(3.5, run) == (1, 1.0)
    assert until(2.0, run) == (3, 1.75)
    assert np.isnan(until(1.0, run)).all()
