import base64
import io
import json

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from labkit.display import plots
from labkit.display.results import Results, find_problem
from labkit.measure.figures import Measured
from labkit.system.load import BUSY_MARK, Contention


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("labkit.system.terminal._seen", set())
    monkeypatch.setattr("labkit.display.results._handed_in", {})
    return Results("02")


def stored(results):
    return json.loads(results.path.read_text())


def test_a_table_is_shown_and_stored_with_its_machine_and_software(results, capsys):
    measured = Measured(1234.5678, 1200, 1300.04, "images/s", digits=1)
    results.table("speed", [("this CNN", "", measured, "2,000 images/s"), ("its threads", "", "16 threads", "")])
    plain = {"busy": False, "missing": False}
    assert stored(results)["table"] == {
        "what": "speed",
        "rows": [
            plain
            | {
                "texts": ["this CNN", "", "1,234.6 images/s (1,200.0 to 1,300.0)", "2,000 images/s"],
                "numbers": {"value": 1234.6, "interval": [1200.0, 1300.0], "unit": "images/s"},
            },
            plain | {"texts": ["its threads", "", "16 threads", ""], "numbers": None},
        ],
        "notes": [],
    }
    assert find_problem(stored(results)) == ""
    assert stored(results)["on"]["cores"] >= 1
    assert "tensorflow-cpu 2." in stored(results)["on"]["software"]
    assert stored(results)["quick"] is False


def closing(results):
    """Make the table of a lab whose sections 4 and 6 are optional; return its rows' figures, and which are missing."""
    expected = [("small", "2×"), ("large", "")]
    results.table(
        "speed", [*results.handed_in("4", *expected), ("core", "", "1", ""), *results.handed_in("6", ("x", ""))]
    )
    rows = stored(results)["table"]["rows"]
    figures = {name: (published, measured) for name, published, measured, _ in (row["texts"] for row in rows)}
    return figures, [place for place, row in enumerate(rows) if row["missing"]]


def test_rows_of_skipped_sections_are_marked_not_measured(results):
    without = {
        "small": ("2×", "not measured (section 4)"),
        "large": ("", "not measured (section 4)"),
        "core": ("", "1"),
    }
    assert closing(results) == (without | {"x": ("", "not measured (section 6)")}, [0, 1, 3])
    results.hand_in("6", ("x", "", "5", ""))
    assert closing(results) == (without | {"x": ("", "5")}, [0, 1])
    assert find_problem(stored(results)) == ""


def test_a_repeated_section_replaces_its_rows(results):
    busy = Contention("section 4", share=0.31, busy=True)
    results.hand_in("4", ("small, 2 cores", "2×", "9", ""), ("large, 2 cores", "", "8", ""))
    results.hand_in("4", ("small, 4 cores", "2×", Measured(3, digits=0, contention=(busy,)), ""))
    assert closing(results)[0] == {
        "small, 4 cores": ("2×", f"3 {BUSY_MARK}"),
        "core": ("", "1"),
        "x": ("", "not measured (section 6)"),
    }


def test_handed_in_rows_last_until_the_kernel_restarts(results, monkeypatch):
    results.hand_in("4", ("small", "2×", "3", ""))
    assert closing(Results("02"))[1] == [2]
    assert closing(Results("02", quick=True))[1] == [0, 1, 3]
    assert closing(Results("03"))[1] == [0, 1, 3]
    monkeypatch.setattr("labkit.display.results._handed_in", {})  # a restarted kernel
    assert closing(Results("02"))[1] == [0, 1, 3]


def test_figures_of_a_busy_machine_are_marked_where_shown_and_stored(results, capsys):
    quiet, unknown = Contention("section 2", share=0.01), Contention("section 3", why="its jobs run elsewhere")
    busy = Contention("section 4", "run section 4 again", share=0.31, busy=True)
    rows = [
        ("published alone", "9", "", ""),
        ("quiet", "", Measured(1, digits=0, contention=(quiet,)), "2"),
        ("unknown", "", Measured(3, digits=0, contention=(unknown,)), ""),
        ("both", "", Measured(4, unit="×", digits=0, contention=(quiet, busy)), "5"),
        ("busy", "", Measured(6, digits=0, contention=(busy,)), ""),
        ("not measured", "", "", "7"),
    ]
    results.table("speed", rows)
    table = stored(results)["table"]
    assert [row["texts"][2] for row in table["rows"]] == ["", "1", "3", f"4× {BUSY_MARK}", f"6 {BUSY_MARK}", ""]
    assert [row["busy"] for row in table["rows"]] == [False, False, False, True, True, False]
    assert table["notes"] == [
        "section 3: whether other work used the cores meanwhile is unknown: its jobs run elsewhere.",
        "⚠ section 4: other work took 31% of the cores meanwhile. First run section 4 again when the machine is quiet, "
        "then make this table.",
    ]
    assert capsys.readouterr().out  # as IPython shows it outside a notebook


def test_a_picture_is_stored_under_its_title_and_replaced_when_redrawn(results):
    for text in ("one", "two"):
        figure, axis = plt.subplots()
        axis.set_title("Speed")
        plots.show(figure, alt=text, keep=results)
    assert list(stored(results)["pictures"]) == ["Speed"]
    picture = stored(results)["pictures"]["Speed"]
    assert picture["alt"] == "two"
    assert Image.open(io.BytesIO(base64.b64decode(picture["png"]))).format == "PNG"


def test_passed_exercises_stay_passed(results):
    for verdict in ("not attempted", "not yet", "passed", "not attempted"):
        results.exercise(3, verdict)
    results.exercise(4, "not yet")
    assert stored(results)["exercises"] == {"3": "passed", "4": "not yet"}


NUMBERS = {"value": 1.5, "interval": None, "unit": "×"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"texts": ["name", "", "1"]},
        {"texts": ["name", "", 1, ""]},
        {"numbers": {}},
        {"numbers": NUMBERS | {"value": float("inf")}},
        {"numbers": NUMBERS | {"unit": "\ud800"}},
        {"numbers": NUMBERS | {"interval": [1]}},
        {"missing": 0},
    ],
)
def test_malformed_rows_are_a_problem(results, wrong):
    closing(results)
    whole = stored(results)
    whole["table"]["rows"][0] |= {"numbers": NUMBERS}
    assert find_problem(whole) == ""
    whole["table"]["rows"][0] |= wrong
    assert "'table' is malformed" in find_problem(whole)


PIXEL = "iVBORw0KGgo="
ODD = (None, True, 3, 1.5, "text", "\ud800", [], [3], [["a", None]], {}, {"a": 3}, {"a": []}, {"1": {"png": 3}})


def do_all(results):
    results.exercise(2, "passed")
    results.picture("New", PIXEL, "alt")
    results.table("speed", [("a", "b", "c", "d")])


@pytest.mark.parametrize("key", ["lab", "quick", "when", "on", "table", "pictures", "exercises", "guesses"])
def test_a_lab_continues_with_a_damaged_file_and_keeps_its_valid_parts(results, key):
    results.exercise(1, "passed")
    results.picture("Old", PIXEL, "alt")
    do_all(results)
    whole = stored(results)
    assert find_problem(whole) == ""
    for odd in ODD:
        results.path.write_text(json.dumps(whole | {key: odd}))
        do_all(results)
        repaired = stored(results)
        assert find_problem(repaired) == ""
        if key != "exercises":
            assert repaired["exercises"] == {"1": "passed", "2": "passed"}
        if key != "pictures":
            assert list(repaired["pictures"]) == ["Old", "New"]
        assert [row["texts"] for row in repaired["table"]["rows"]] == [["a", "b", "c", "d"]]


@pytest.mark.parametrize("text", ["[]", "null", "3", "[" * 100_000, "\x00", ""])
def test_a_lab_replaces_a_file_that_is_not_results(results, text):
    results.path.parent.mkdir()
    results.path.write_text(text)
    do_all(results)
    assert stored(results)["exercises"] == {"2": "passed"}


def full(*args):
    raise OSError(28, "No space left on device")


def test_failed_writes_give_one_warning_and_keep_earlier_results(results, capsys, monkeypatch):
    results.exercise(1, "passed")
    before = results.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        do_all(results)
        do_all(results)
    warnings = capsys.readouterr().err
    assert warnings.startswith("Warning: cannot write ")
    assert "work/results-02.json: No space left on device. Free some space" in warnings
    assert warnings.count("\n") == 1
    assert results.path.read_bytes() == before
    assert [file.name for file in results.path.parent.iterdir()] == ["results-02.json"]
    do_all(results)
    assert stored(results)["exercises"] == {"1": "passed", "2": "passed"}


@pytest.mark.parametrize(
    ("text", "answer"), [("  arithmetic ", "arithmetic"), (..., ""), (7, "7"), ("lone \ud800", "lone ?")]
)
def test_answers_are_shown_and_stored(results, capsys, text, answer):
    results.answer(1, "What limits it?", text)
    assert stored(results)["answers"] == {"1": {"question": "What limits it?", "answer": answer}}
    assert find_problem(stored(results)) == ""
    assert (answer or "Replace the three dots") in capsys.readouterr().out
