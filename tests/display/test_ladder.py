import itertools
import json
import re

import matplotlib.pyplot as plt
import pytest

from labkit.display import ladder, plots
from labkit.display.results import Results, find_problem
from labkit.display.speedups import STEPS
from labkit.measure.figures import Measured
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK, Contention
from labkit_author import sources


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Results("03").step("threads", Measured(1.31, 1.2, 1.4, "×"), share=37.04)
    busy = Contention("section 5", share=0.5, busy=True)
    Results("02").step("onednn", Measured(4.2, unit="×", contention=(busy,)))
    return tmp_path / "work"


def test_steps_of_all_labs_are_read_in_ladder_order(folder):
    taken = ladder.read(folder)
    assert list(taken) == ["onednn", "threads"]
    assert taken["threads"] == {
        "text": "1.31× (1.20 to 1.40)",
        "numbers": {"value": 1.31, "interval": [1.2, 1.4], "unit": "×"},
        "busy": False,
        "share": 37.0,
    }
    assert all(find_problem(json.loads(file.read_text())) == "" for file in folder.iterdir())


def test_the_description_has_each_steps_speed_up_or_names_it_as_not_taken(folder):
    words = ladder.describe(ladder.read(folder))
    taken, to_come = words.split("Not taken yet: ")
    assert f"{STEPS['threads'].what} (lab 03): 1.31× (1.20 to 1.40), 37% of limit" in taken
    assert f"oneDNN vs Eigen (lab 02): 4.20× {BUSY_MARK}, no interval" in taken
    assert all(to_come.count(step.what) == (name not in ("onednn", "threads")) for name, step in STEPS.items())
    assert "multipl" not in words


def test_the_picture_has_a_point_for_each_step_taken(folder):
    figure = ladder.draw(ladder.read(folder))
    axes = figure.axes[0]
    points = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert points == [4.2, 1.31]
    assert all(axes.get_xlim()[0] < point < axes.get_xlim()[1] for point in points)
    texts = labels(figure)[1]
    assert texts.count(ladder.NOT_YET) == len(STEPS) - 2
    plt.close(figure)


def labels(figure):
    """Return the texts to the left and to the right of the rows."""
    texts = figure.axes[0].texts
    return [
        [text.get_text().replace("\n", " ") for text in texts if (text.get_position()[0] > 0.5) is right]
        for right in (False, True)
    ]


def taken(**measured):
    numbers = {name: figure.numbers() for name, figure in measured.items()}
    return {name: {"text": "", "numbers": numbers[name], "busy": False, "share": None} for name in measured}


@pytest.mark.parametrize(
    ("measured", "colour", "words"),
    [
        (Measured(1.37, 1.1, 2.47, "×"), plots.BLUE, "1.37× (1.10 to 2.47)"),
        (Measured(0.37, 0.2, 0.6, "×"), plots.BLUE, "0.37× (0.20 to 0.60)"),
        (Measured(1.37, 0.76, 2.47, "×"), ladder.GREY, "1.37× (0.76 to 2.47) not significant"),
        (Measured(1.37, unit="×"), ladder.GREY, "1.37× no interval"),
        (Measured(120, 99.5, 140, "×"), plots.BLUE, "120.0× (99.5 to 140.0)"),
        (Measured(2, -1, 5, "×"), ladder.GREY, "2.00× (-1.00 to 5.00) not significant"),
    ],
)
def test_insignificant_steps_are_grey_and_labelled(measured, colour, words):
    figure = ladder.draw(taken(threads=measured))
    (point,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert point.get_color() == colour
    assert (point.get_markerfacecolor() == "white") is (colour == ladder.GREY), "not by colour alone"
    assert words in labels(figure)[1]
    assert plots.png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("factors", [(1.1, 1.3), (0.5, 4), (0.9, 11), (0.05, 300)])
def test_the_axis_has_several_tick_labels_that_do_not_touch(factors):
    figure = ladder.draw(taken(graph=Measured(sum(factors) / 2, *factors, "×")))
    axes = figure.axes[0]
    assert "speed-up" in axes.get_xlabel()
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    inside = [
        label for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True) if low <= tick <= high
    ]
    assert len(inside) >= 3
    ends = [(box.x0, box.x1) for box in (label.get_window_extent() for label in inside)]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    plt.close(figure)


def test_without_steps_training_and_inference_are_separate_groups(tmp_path):
    for damaged in ("no JSON", "[]", '{"lab": "03"}'):
        (tmp_path / "results-03.json").write_text(damaged)
        assert ladder.read(tmp_path) == {}
    assert ladder.describe({}).startswith("No steps taken yet.")
    names = labels(figure := ladder.draw({}))[0]
    training, inference = names.index("Training steps"), names.index("Inference steps")
    for step in STEPS.values():
        place = names.index(f"{step.what} (lab {step.lab})")
        assert (place > inference) is (step.work == "inference")
        assert place > training
    assert {step.work for step in STEPS.values()} == {"training", "inference"}
    plt.close(figure)


def test_an_unknown_step_is_refused():
    with pytest.raises(LabError, match="no step 'magic': choose from graph, onednn"):
        Results("03").step("magic", Measured(1.0))


def test_each_step_is_taken_by_its_lab():
    for name, step in STEPS.items():
        calls = re.findall(r'results\.step\(\s*"(\w+)"', sources.find(step.lab).read_text())
        assert name in calls, f"lab {step.lab} does not take the step {name!r}"
