import json
import os
import re
from html.parser import HTMLParser

import pytest

from labkit.display.results import NotMeasured, row
from labkit.exercises import catalogue
from labkit.measure.figures import Measured
from labkit.report.page import render
from labkit.system.errors import LabError
from labkit.system.load import BUSY_MARK, Contention

ON = {"cpu": "A CPU <with> 2 cores & more", "cores": 2}
PIXEL = "iVBORw0KGgo="
TWICE = Measured(2.1, 1.9, 2.3, "×", digits=1)
BUSY = Contention("section 8", share=0.9, busy=True)


def table(*rows, notes=()):
    return {"what": "speed", "rows": [row(*values) for values in rows], "notes": list(notes)}


def write_results(folder, lab, **more):
    about = {"lab": lab, "quick": False, "when": "2026-01-31 12:00", "on": ON}
    (folder / f"results-{lab}.json").write_text(json.dumps(about | more))


class Page(HTMLParser):
    """The tags of a page, its text, and the resources it would load."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.loads = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]

    def handle_data(self, data):
        self.text += f" {data}"


@pytest.fixture
def page(tmp_path):
    picture = {"Speed": {"png": PIXEL, "alt": 'fast: "2×" <more>'}}
    write_results(
        tmp_path,
        "02",
        table=table(("CNN", "4.6×", TWICE, "<3×")),
        pictures=picture,
        exercises={"1": "passed", "2": "not yet"},
    )
    write_results(tmp_path, "07", exercises={"1": "passed"}, quick=True)
    return render(tmp_path)


def test_the_page_has_machine_figures_pictures_and_exercises(page):
    text = " ".join(Page(page).text.split())
    for part in ("A CPU <with> 2 cores & more", "02 · oneDNN under an MNIST CNN", "4.6×", "2.1× (1.9 to 2.3)", "<3×"):
        assert part in text
    in_both = sum(len(catalogue.find(lab).exercises) for lab in ("02", "07"))
    assert f"Exercises passed: 2 of {in_both}." in text
    assert "1: passed · 2: not yet · 3: not attempted" in text
    assert 'alt="fast: &#34;2×&#34; &lt;more&gt;"' in page
    assert "Speed-ups on this machine" not in page
    assert "Guesses and measurements" not in page


def test_the_page_needs_no_other_file_and_no_network(page):
    assert Page(page).loads == [f"data:image/png;base64,{PIXEL}"]
    assert not {"script", "link", "iframe"} & set(Page(page).tags)
    assert not re.search(r"url\(|@import|https?:", page)


def test_empty_columns_are_left_out(tmp_path):
    write_results(tmp_path, "02", table=table(("CNN", "", TWICE, ""), ("more", "", "3×", "")))
    shown = Page(render(tmp_path)).text.partition("02 · ")[2].partition("07 · ")[0]
    assert "this machine" in shown
    assert "published" not in shown


def test_rows_that_were_not_measured_are_marked(tmp_path):
    write_results(tmp_path, "02", table=table(("CNN", "4×", NotMeasured("4"), ""), ("more", "", "3×", "")))
    page = render(tmp_path)
    assert page.count('<tr class="missing"><th scope="row">CNN</th>') == page.count('<tr class="missing">') == 1
    assert "not measured (section 4)" in Page(page).text


def test_small_runs_and_labs_to_come_are_reported(page):
    text = Page(page).text
    assert text.count("A small test run") == 1
    to_come = text.partition("Still to come")[2]
    titles = [lab.title for lab in catalogue.labs()]
    assert [title in to_come for title in titles] == [not title.startswith(("02", "07")) for title in titles]


def test_figures_of_a_busy_machine_are_marked_and_reported_at_the_top(tmp_path):
    write_results(tmp_path, "02", table=table(("CNN", "", TWICE, ""), notes=["section 1: unknown whether."]))
    assert "they are unreliable" not in Page(render(tmp_path)).text
    disturbed = Measured(96, unit="×", digits=0, contention=(BUSY,))
    rows = ("CNN", "", disturbed, ""), ("quiet", "", "2×", "")
    write_results(tmp_path, "09", table=table(*rows, notes=["⚠ section 8: run it <again>."]))
    text = " ".join(Page(render(tmp_path)).text.split())
    before, _, after = text.partition("02 · ")
    assert f"Figures marked “{BUSY_MARK}” (lab 09) were measured while other work used the cores" in before
    assert "lab 09: CNN" in before
    assert "quiet" not in before
    assert f"96× {BUSY_MARK}" in after
    assert "⚠ section 8: run it <again>." in after
    assert "section 1: unknown whether." in after


def test_each_machine_lists_its_labs(tmp_path):
    write_results(tmp_path, "02")
    write_results(tmp_path, "07", on={"cpu": "Another"})
    text = " ".join(Page(render(tmp_path)).text.split())
    assert "labs 02" in text
    assert "labs 07 cpu Another" in text


def test_missing_and_damaged_results_are_refused_with_a_remedy(tmp_path):
    with pytest.raises(LabError, match="there are no results in"):
        render(tmp_path)
    other_lab = {"lab": "03", "quick": False, "when": "", "on": {}}
    malformed = other_lab | {"lab": "02", "exercises": {"1": 1}}
    for damaged in ("{", "[]", '{"lab": "02"}', "[" * 100_000, json.dumps(other_lab), json.dumps(malformed)):
        (tmp_path / "results-02.json").write_text(damaged)
        with pytest.raises(LabError, match=r"results-02\.json is damaged \(.*\): delete it"):
            render(tmp_path)


def test_unknown_labs_are_reported(tmp_path):
    write_results(tmp_path, "77")
    with pytest.raises(LabError, match=r"results-77\.json belongs to a lab that doesn't exist"):
        render(tmp_path)


def test_special_files_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "results-03.json")
    with pytest.raises(LabError, match=r"cannot read .*results-03\.json: I.*\. Move it away"):
        render(tmp_path)


def test_a_rooms_results_appear_next_to_guesses(tmp_path):
    guess = {"question": "threads", "guess": "2×", "here": "1.31×", "values": [2.0, 1.31]}
    write_results(tmp_path, "03", guesses={"1": guess, "2": guess})
    html = render(tmp_path, {("03", "2"): "median 1.3× (1 to <2>), 5 machines", ("07", "1"): "of another lab"})
    assert html.count('<th scope="col">the room</th>') == 1
    assert re.findall(r'<td data-head="the room">(.*?)</td>', html) == ["", "median 1.3× (1 to &lt;2&gt;), 5 machines"]
    for room in (None, {}):
        assert "the room" not in render(tmp_path, room)
    assert "no results yet" in render(tmp_path, {}, "The room has no results yet.")


def test_speed_ups_come_first_and_guesses_appear_with_their_figures(tmp_path):
    step = {"text": "1.31× (1.20 to 1.40)", "numbers": TWICE.numbers(), "busy": False, "share": 37.0}
    guess = {"question": "threads <2>", "guess": "2×", "here": "1.31× (1.20 to 1.40)", "values": [2.0, 1.31]}
    none = {"question": "", "guess": "", "here": "", "values": [None, None]}
    write_results(tmp_path, "03", steps={"threads": step}, guesses={"1": guess, "2": none})
    page = render(tmp_path)
    assert page.index("Speed-ups on this machine") < page.index(catalogue.find("03").title)
    assert "threads set vs default (lab 03): 2.10× (1.90 to 2.30), 37% of limit." in page
    assert page.count('<td data-head="you">') == 1
    assert "threads &lt;2&gt;" in page


def test_answers_appear_with_their_questions(tmp_path):
    question = "What limits <conv2>?"
    answers = {"1": {"question": question, "answer": "memory & <luck>"}, "2": {"question": "And then?", "answer": ""}}
    write_results(tmp_path, "03", answers=answers)
    page = render(tmp_path)
    assert "What limits &lt;conv2&gt;?" in page
    assert "memory &amp; &lt;luck&gt;" in page
    assert "And then?" not in page
