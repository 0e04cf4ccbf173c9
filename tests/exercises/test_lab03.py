import re
from collections import Counter
from types import SimpleNamespace

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import ThreeWays

from labkit.bench.config import BenchConfig
from labkit.bench.configurations import Comparison
from labkit.display.measured import Measured


class TestExercises(ThreeWays):
    lab = "03"
    names = {"np": np, "Counter": Counter}


def comparison(speeds):
    """Return a comparison of configurations with these speeds in six rounds."""
    return Comparison({name: [{"images_per_second": speed}] * 6 for name, speed in speeds.items()}, {})


def cells(*names, **variables):
    return lab_cells.functions("03", *names, np=np, Measured=Measured, **variables)


def test_fit_recovers_the_time_per_step_and_per_image():
    """A fixed 0.2 s plus 0.1 s per image."""
    sizes = [1, 2, 4, 8]
    speeds = {f"float32, batch {size}": size / (0.2 + 0.1 * size) for size in sizes}
    times = cells("fit")["fit"](comparison(speeds), "float32", sizes)
    assert times == pytest.approx([0.2, 0.1], rel=0.01)


def test_closing_table_marks_missing_measurements():
    gained = cells("gained")["gained"]
    assert gained(comparison({"new": 20.0}), "new", "old") == "not measured here"
    assert str(gained(comparison({"old": 10.0, "new": 20.0}), "new", "old", "why")).startswith(
        "10.0 → 20.0 images/s: 2.00×"
    )


# --- The breakdown of a step ---


@pytest.mark.parametrize(
    ("primitive", "problem", "kind"),
    [
        ("reorder", "256x64x1x1", "weight reorder"),
        ("reorder", "64x256x56x56", "reorder"),
        ("convolution", "mb4_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1", "3×3 convolution"),
    ],
)
def test_reorders_of_weights_are_a_separate_kind(primitive, problem, kind):
    variables = {"re": re, "pd": pd, "Counter": Counter, "BYTES": {"f32": 4}, "WEIGHT_REORDER": "weight reorder"}
    work_of = cells("work_of", WEIGHT_SHAPES={(256, 64, 1, 1)}, **variables)["work_of"]
    row = SimpleNamespace(primitive=primitive, problem=problem, direction="forward_training", type="f32")
    assert work_of(row).kind == kind


def test_time_outside_onednn_excludes_its_primitives():
    timeline = [
        {"ph": "X", "name": "_MklNativeConv2D", "args": {"name": "conv"}, "dur": 9000},
        {"ph": "X", "name": "Mul", "args": {"name": "decay"}, "dur": 2000},
        {"ph": "X", "name": "AddV2", "args": {"name": "shortcut"}, "dur": 1000},
        {"ph": "M", "name": "process_name", "args": {"name": "a device"}},
    ]
    bound = SimpleNamespace(
        operations=lambda config, limits: {"decay": SimpleNamespace(family="weights")},
        family=lambda kind: "other",
        WEIGHTS="weights",
    )
    variables = {"Counter": Counter, "BenchConfig": BenchConfig, "step_bound": bound, "limits": None}
    run = {"network": "resnet50", "batch_size": 4, "batch": 4, "timelines": {"float32": timeline}}
    outside = cells("outside", UPDATE="update", OTHER="others", **variables, **run)["outside"]
    assert outside("float32") == {"update": 2.0, "others": 1.0}
