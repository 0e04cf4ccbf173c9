import base64
import io
import json

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from labkit import plots
from labkit.results import Results


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Results("02")


def kept(results):
    return json.loads(results.path.read_text())


def test_a_table_is_shown_and_kept_with_what_it_was_measured_on(results, capsys):
    results.table("speed", [("this CNN", "", "100 images/s", "200 images/s")])
    assert kept(results)["table"] == {"what": "speed", "rows": [["this CNN", "", "100 images/s", "200 images/s"]]}
    assert kept(results)["on"]["cores"] >= 1
    assert "tensorflow-cpu 2." in kept(results)["on"]["software"]
    assert kept(results)["quick"] is False


def test_a_picture_is_kept_under_its_title_and_replaced_when_drawn_again(results):
    for text in ("one", "two"):
        figure, axis = plt.subplots()
        axis.set_title("Speed")
        plots.show(figure, alt=text, keep=results)
    assert list(kept(results)["pictures"]) == ["Speed"]
    picture = kept(results)["pictures"]["Speed"]
    assert picture["alt"] == "two"
    assert Image.open(io.BytesIO(base64.b64decode(picture["png"]))).format == "PNG"


def test_a_picture_without_a_title_can_be_shown(results):
    plots.show(plt.figure(), alt="nothing yet")
    assert not results.path.exists()


def test_what_was_passed_stays_passed(results):
    for verdict in ("not attempted", "not yet", "passed", "not attempted"):
        results.exercise(3, verdict)
    results.exercise(4, "not yet")
    assert kept(results)["exercises"] == {"3": "passed", "4": "not yet"}


def test_another_notebook_of_the_same_lab_goes_on_with_the_file(results):
    results.exercise(1, "passed")
    Results("02", quick=True).table("speed", [])
    assert kept(results)["exercises"] == {"1": "passed"}
    assert kept(results)["quick"] is True


def test_a_damaged_file_does_not_stop_the_lab(results):
    results.path.parent.mkdir()
    results.path.write_text('{"lab": "0')
    results.exercise(1, "passed")
    assert kept(results)["exercises"] == {"1": "passed"}
    assert [file.name for file in results.path.parent.iterdir()] == ["results-02.json"]
