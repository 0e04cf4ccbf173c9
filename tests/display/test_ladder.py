import json
import re

import matplotlib.pyplot as plt
import pytest

from labkit.display import ladder, plots
from labkit.display.measured import Measured
from labkit.display.results import Results, find_problem
from labkit.display.speedups import STEPS
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK, Others
from labkit_author import sources


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Results("03").step("threads", Measured(1.31, 1.2, 1.4, "×"), share=37.04)
    Results("02").step("onednn", Measured(4.2, unit="×"), Others("section 5", share=0.5, busy=True))
    return tmp_path / "work"


def test_steps_of_all_labs_are_read_in_their_order(folder):
    taken = ladder.read(folder)
    assert list(taken) == ["onednn", "threads"]
    assert taken["threads"] == {
        "text": "1.31× (1.20 to 1.40)",
        "numbers": {"value": 1.31, "interval": [1.2, 1.4], "unit": "×"},
        "busy": False,
        "share": 37.0,
    }
    assert all(find_problem(json.loads(file.read_text())) == "" for file in folder.iterdir())


def test_in_words_each_step_has_its_factor_or_is_named_as_not_taken(folder):
    words = ladder.describe(ladder.read(folder))
    taken, to_come = words.split("Not taken yet: ")
    assert "threads set beside the default 1.31× (1.20 to 1.40), 37% of the limit" in taken
    assert f"oneDNN beside Eigen 4.20× {BUSY_MARK}" in taken
    assert all(to_come.count(step.what) == (name not in ("onednn", "threads")) for name, step in STEPS.items())


def test_the_picture_has_a_point_for_each_step_taken_inside_its_axes(folder):
    figure = ladder.draw(ladder.read(folder))
    axes = figure.axes[0]
    points = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert points == [4.2, 1.31]
    assert all(axes.get_xlim()[0] < point < axes.get_xlim()[1] for point in points)
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("not taken yet") == len(STEPS) - 2
    plt.close(figure)


def test_before_the_first_step_there_is_a_ladder_too(tmp_path):
    assert ladder.read(tmp_path) == {}
    assert plots.png(ladder.draw({})).startswith(b"\x89PNG")
    assert ladder.describe({}).startswith("No step taken yet.")


@pytest.mark.parametrize("damaged", ["no JSON", "[]", '{"lab": "03"}'])
def test_a_damaged_file_has_no_steps(folder, damaged):
    (folder / "results-03.json").write_text(damaged)
    assert list(ladder.read(folder)) == ["onednn"]


def test_an_unknown_step_is_refused():
    with pytest.raises(LabError, match="no step 'magic', only graph, onednn"):
        Results("03").step("magic", Measured(1.0))


def test_each_step_is_taken_by_its_lab():
    for name, step in STEPS.items():
        calls = re.findall(r'results\.step\(\s*"(\w+)"', sources.find(step.lab).read_text())
        assert name in calls, f"lab {step.lab} does not take the step {name!r}"
