import json
import re
from html.parser import HTMLParser

import pytest

from labkit import report, sources
from labkit.errors import LabError

ON = {"cpu": "A CPU <with> 2 cores & more", "cores": 2}
PIXEL = "iVBORw0KGgo="


def leave(folder, lab, **more):
    about = {"lab": lab, "quick": False, "when": "2026-01-31 12:00", "on": ON}
    (folder / f"results-{lab}.json").write_text(json.dumps(about | more))


class Page(HTMLParser):
    """The tags of a page, its text, and what it would load."""

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
    table = {"what": "speed", "rows": [["CNN", "4.6×", "2.1×", "<3×"]]}
    leave(tmp_path, "02", table=table, pictures=picture, exercises={"1": "passed", "2": "not yet"})
    leave(tmp_path, "07", exercises={"1": "passed"}, quick=True)
    return report.render(tmp_path)


def test_the_page_has_machine_figures_pictures_and_exercises(page):
    text = " ".join(Page(page).text.split())
    for told in ("A CPU <with> 2 cores & more", "02 · oneDNN under an MNIST CNN", "4.6×", "2.1×", "<3×"):
        assert told in text
    assert "Passed: 2 of 10 exercises" in text
    assert "1 passed · 2 not yet · 3 not attempted" in text
    assert 'alt="fast: &#34;2×&#34; &lt;more&gt;"' in page


def test_the_page_needs_no_other_file_and_no_network(page):
    assert Page(page).loads == [f"data:image/png;base64,{PIXEL}"]
    assert not {"script", "link", "iframe"} & set(Page(page).tags)
    assert not re.search(r"url\(|@import|https?:", page)


def test_small_runs_and_labs_to_come_are_told(page):
    text = Page(page).text
    assert text.count("A small run") == 1
    to_come = text.partition("Still to come")[2]
    titles = [sources.title(source) for source in sources.labs()]
    assert [title in to_come for title in titles] == [not title.startswith(("02", "07")) for title in titles]


def test_two_machines_are_told_apart(tmp_path):
    leave(tmp_path, "02")
    leave(tmp_path, "07", on={"cpu": "Another"})
    text = " ".join(Page(report.render(tmp_path)).text.split())
    assert "labs 02" in text
    assert "labs 07 cpu Another" in text


def test_no_results_and_damaged_results_say_what_to_do(tmp_path):
    with pytest.raises(LabError, match="no lab has left results"):
        report.render(tmp_path)
    for damaged in ("{", "[]", '{"lab": "02"}'):
        (tmp_path / "results-02.json").write_text(damaged)
        with pytest.raises(LabError, match=r"results-02\.json is damaged: delete it"):
            report.render(tmp_path)
