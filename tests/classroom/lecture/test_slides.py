"""Slides have the point of a lab and what its stored run showed, in its order, on one page that needs nothing else."""

import base64
import html
import itertools
import json
import re
from datetime import date, time
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.exercises import catalogue
from labkit.exercises.catalogue import Exercise, LabInfo, Section
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_classroom.lecture import agenda, labs, prose, routes, slides
from labkit_classroom.lecture.prose import Block

LABS = catalogue.labs()
PNG = "data:image/png;base64,iVBORw0KGgo="
PICTURE = f'<img src="{PNG}" alt="Two bars, &quot;a&quot; &amp; b.">'
PLAN = (Section("1", read=3, do=5, wait=0.5), Section("questions", read=1))
BEGIN = "# 42 · A lab\n\n**You will** learn."
SECTION = r"""## 1 · Begin with [**ranks**](../docs/glossary.md#rank)

The point of it is in the first sentence, which is long enough to stand alone on a slide. The rest is for the notes of
the speaker, as it goes on and on.

$$y = \frac{a}{b}$$

<div class="alert alert-block alert-info" style="color: black">

**Guess first.** How many?

</div>"""
EXERCISE = """### Exercise 1 · Add `two`

Write `two()`. It takes nothing, and returns an `int`, which is the only even prime number of all. Don't count."""
QUESTIONS = "## Questions\n\n1. Why?"


class Page(HTMLParser):
    """Finds a page's slides: class, heading's level, and texts shown and for the notes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.slides, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        if tag == "section" and (has.get("class") or "").startswith("slide "):
            self.slides.append({"kind": has["class"].split()[1], "levels": [], "shown": "", "notes": "", "alt": []})
        if tag == "img" and self.slides:
            self.slides[-1]["alt"].append(has.get("alt", ""))
        if re.fullmatch(r"h\d", tag) and "aside" not in self.open and self.slides:
            self.slides[-1]["levels"].append(int(tag[1]))
        if tag in ("aside", "script", "style"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        if self.slides and not {"script", "style"} & set(self.open):
            self.slides[-1]["notes" if "aside" in self.open else "shown"] += data


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Store a lab of these cells, prose or code, whose cell `draw()` has an output."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)

    def stored(*cells, output=PICTURE):
        v4 = nbformat.v4
        notebook = v4.new_notebook(cells=[cell if not isinstance(cell, str) else markdown(cell) for cell in cells])
        for cell in notebook.cells:
            if cell.source == "draw()":
                cell.outputs = [v4.new_output("display_data", {"text/html": output, "text/plain": ""})]
        exercise = Exercise(1, "two", "", "", "", section="1", title="Add `two`")
        lab = LabInfo("42_lab", "42 · A lab", PLAN, {1: exercise}, ())
        nbformat.write(notebook, lab.solution)
        return lab

    return stored


DRAW = nbformat.v4.new_code_cell("draw()")


def markdown(text, **metadata):
    return nbformat.v4.new_markdown_cell(text, metadata=metadata)


@pytest.fixture
def lab(store):
    """A lab whose stored run drew a picture before its answer."""
    notes = markdown("**For the instructor.** It is 2.", tags=["instructor"])
    answer = nbformat.v4.new_code_cell("def two():\n    return 2")
    check = nbformat.v4.new_code_cell("two = check(1, two)")
    return store(BEGIN, SECTION, DRAW, EXERCISE, answer, check, "After it.", notes, QUESTIONS)


NOWHERE = Path("no rehearsal")


def shown(lab, **options):
    """Return the slides of a lab, without the cover."""
    return Page(slides.render("Title", slides.of_lab(lab, NOWHERE, **options))).slides[1:]


def find(found, text):
    (one,) = [slide for slide in found if text in slide["shown"]]
    return one


@pytest.fixture(scope="module", params=LABS, ids=lambda lab: lab.name)
def page(request):
    return request.param, slides.render(request.param.title, slides.of_lab(request.param, NOWHERE))


def test_the_page_of_a_lab_is_one_file(page):
    _, text = page
    assert "glossary.md" not in text
    without_scripts = re.sub(r"(?s)<script>.*?</script>", "", text)
    assert not re.search(r"<link|@import|\bsrc=(?!\"data:)|url\((?!\"?data:)", without_scripts)
    for script in re.findall(r"(?s)<script>(.*?)</script>", text):
        assert not re.search("<!--|<script", script)
    assert text.count("<script>") == text.count("</script>") == 3  # reveal.js, its notes, the start


def test_nothing_of_a_lab_is_left_out(page):
    lab, text = page
    found, notebook = Page(text).slides, labs.read(lab.solution)
    for section in labs.sections(lab)[1:]:
        heading = prose.inline(section.heading).striptags()
        assert any(slide["levels"][0] == 2 and heading in slide["shown"] for slide in found), heading
    for number in lab.exercises:
        assert any(slide["kind"] == "exercise" and f"Exercise {number} · " in slide["shown"] for slide in found)
    boxes = sum(cell.source.count("**Guess first.**") for cell in notebook.cells)
    assert [slide["kind"] for slide in found].count("question") == boxes
    assert sum(len(slide["alt"]) for slide in found) >= json.dumps(notebook).count("data:image/png;base64,")
    assert all(alt for slide in found for alt in slide["alt"])
    there = "".join(slide["shown"] + slide["notes"] + " ".join(slide["alt"]) for slide in found)
    said = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert set(re.findall(r"\w{4,}", prose.to_html(said).striptags())) <= set(re.findall(r"\w{4,}", there))
    assert len(re.findall(r'<math [^>]*display="block"', text)) >= said.count("$$") // 2
    assert "$$" not in there


def test_headings_are_in_order(page):
    levels = [level for slide in Page(page[1]).slides for level in slide["levels"]]
    assert levels[:2] == [1, 1]  # the cover, the lab
    assert all(following <= level + 1 for level, following in itertools.pairwise(levels))


def test_a_slide_has_the_point_and_its_notes_have_all(lab):
    slide = find(shown(lab), "The point of it")
    assert "The rest" not in slide["shown"]
    assert "The rest is for the notes" in slide["notes"]
    assert "3 minutes to read and run, 5 to do, 0.5 of waiting." in slide["notes"]


def test_a_question_comes_before_the_picture_that_answers_it(lab):
    found = shown(lab)
    place = found.index(find(found, "How many?"))
    assert found[place]["kind"] == "question"
    assert not found[place]["alt"]
    assert found[place + 1]["kind"] == "picture"
    assert found[place + 1]["alt"] == ['Two bars, "a" & b.']
    assert 'Two bars, "a" & b.' in found[place + 1]["notes"]


def test_an_exercise_is_shown_whole_with_its_time_and_no_answer(lab):
    found = shown(lab)
    slide = find(found, "Exercise 1 · Add two")
    assert "Your turn: exercise 1, about 5 minutes." in slide["shown"]
    assert "Don't count." in slide["shown"]
    assert "return 2" not in "".join(one["shown"] + one["notes"] for one in found)


def test_the_instructors_notes_are_for_the_speaker_alone(lab):
    found = shown(lab)
    assert "It is 2." not in "".join(slide["shown"] for slide in found)
    exercise = find(found, "Exercise 1")
    assert "After it." in exercise["notes"]  # a sentence alone, after the exercise
    assert "It is 2." in exercise["notes"]


def test_of_a_route_only_its_sections(lab):
    texts = "".join(slide["shown"] for slide in shown(lab, taught={"questions": None}))
    assert "Why?" in texts
    assert "The point of it" not in texts


def test_a_lab_that_continues_after_a_break_has_no_title_again():
    days = agenda.schedule(routes.find("two-days"), time(9), date(2026, 12, 1), {})
    decks = slides.of_days(days, NOWHERE, timed=False)
    titles = [deck[0].heading for deck in decks if deck[0].level == 1 and deck[0].kind != "break"]
    assert titles == [catalogue.find(number).title for number in routes.find("two-days").labs]


def test_an_image_from_elsewhere_is_left_out_and_a_title_is_no_markup(store):
    lab = store(BEGIN, SECTION, DRAW, QUESTIONS, output=f'{PICTURE}<img src="https://elsewhere/x.png">')
    text = slides.render("<b>", slides.of_lab(lab, NOWHERE))
    assert PNG in text
    assert "elsewhere" not in text
    assert f"<title>{html.escape('<b>')}</title>" in text


def test_a_lab_without_a_stored_notebook_says_what_to_do(lab):
    lab.solution.unlink()
    with pytest.raises(LabError, match=r"there is no .*42_lab.ipynb: \./lab build 42 makes it"):
        slides.of_lab(lab, NOWHERE)


LONG = {
    "no block": ("[a link]: https://elsewhere", 1),
    "an empty table": ("| |\n| --- |\n| |", 1),
    "a box that is not closed": ('<div class="alert alert-info">\n\nWhat is it?', 1),
    "a long sentence": ("Word " * 3000, 1),
    "a long list": ("- " + "\n- ".join(["An item that has some words."] * 60), 4),
    "paragraphs": ("\n\n".join(["This sentence is as long as two lines of a slide, of sixty characters."] * 12), 2),
}


@pytest.mark.parametrize(("text", "count"), LONG.values(), ids=LONG)
def test_other_prose_is_not_lost(store, text, count):
    found = shown(store(BEGIN, f"## 1 · One\n\n{text}", QUESTIONS))[1:-1]
    assert len(found) == count
    words = re.findall(r"\w+", re.sub(r"<[^>]*>|\[.*", "", text))
    assert set(words) <= set(re.findall(r"\w+", "".join(slide["shown"] + slide["notes"] for slide in found)))


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("One sentence.", "One sentence."),
        (f"{'Long ' * 30}first. Second.", f"{'Long ' * 30}first."),
        ("First. Second. " + "Long " * 40, "First. Second."),
        ("Short of time? Leave it out, " + "because " * 20, "Short of time? Leave it out, " + "because " * 20),
        (f"{'Long ' * 30}(see Goyal et al. And others). Next.", f"{'Long ' * 30}(see Goyal et al. And others)."),
        (f"{'Long ' * 30}`a. B` it. Next.", f"{'Long ' * 30}`a. B` it."),
        (f"{'Long ' * 30}by F. Baruffa. Next.", f"{'Long ' * 30}by F. Baruffa."),
    ],
)
def test_the_point_of_a_paragraph(text, short):
    assert prose.in_short(Block("paragraph", text)).strip() == short.strip()


def test_links_between_files_are_words_and_others_stay():
    got = prose.to_html("A [**rank**](../docs/glossary.md#rank) and [a paper](https://arxiv.org/abs/1).")
    assert got == '<p>A <a><strong>rank</strong></a> and <a href="https://arxiv.org/abs/1">a paper</a>.</p>\n'


def test_dollars_are_formulas_where_they_can_be_read():
    assert r"<code>\left( x &lt; 1</code>" in prose.to_html(r"$\left( x < 1$")
    assert "<math" not in prose.to_html("`$HOME` and `$(nproc)`\n\n```bash\necho $A $B\n```")


@pytest.mark.parametrize("description", ["accDescr: a b", "accDescr {\n a\n b\n }"])
def test_a_diagram_is_drawn_and_told_in_words(description):
    got = prose.to_html(f"```mermaid\nflowchart LR\n  accTitle: Two & one\n  {description}\n  a[first] --> b\n```")
    (data,) = re.findall(
        r'<img class="diagram" src="data:image/svg\+xml;base64,([^"]*)" alt="Two &amp; one. a b">', got
    )
    drawn = base64.b64decode(data).decode()
    assert drawn.startswith("<svg")
    assert "first" in drawn


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(cli.application(), ["slides", *map(str, arguments)])

    def test_several_labs_on_one_page(self, tmp_path):
        out = tmp_path / "a page.html"
        assert self.run("00", "7", "07", "--out", out).exit_code == 0
        cover, *titles = [slide["shown"] for slide in Page(out.read_text()).slides if slide["levels"][0] == 1]
        assert "./lab join ADDRESS CODE" in cover
        assert [title.split()[0] for title in titles] == ["00", "07"]

    def test_a_route_has_what_it_does(self, tmp_path):
        out = tmp_path / "half.html"
        assert self.run("--route", "half", "--out", out).exit_code == 0
        route = routes.find("half")
        found = Page(out.read_text()).slides
        done = [part for day in route.days for part in day if part.lab]
        assert route.audience in found[0]["shown"]
        titles = [slide["shown"] for slide in found if slide["levels"][0] == 1 and slide["kind"] != "break"]
        for part in done:
            assert sum(part.title in title for title in titles) == 1
        assert sum(slide["levels"][0] == 2 for slide in found) >= sum(len(part.sections) for part in done)
        assert f"<title>{route.title}</title>" in out.read_text()
        assert not any("ntil 1" in slide["shown"] for slide in found)  # no clock times without --start

    def test_a_routes_breaks_are_slides_and_with_a_start_they_say_until_when(self, tmp_path):
        out = tmp_path / "half.html"
        assert self.run("--route", "half", "--start", "13:00", "--out", out).exit_code == 0
        (day,) = agenda.schedule(routes.find("half"), time(13), date(2026, 12, 1), {})
        found = Page(out.read_text()).slides
        pauses = [entry for entry in day.entries if not entry.part.lab][1:]
        shown_pauses = [slide for slide in found if slide["kind"] == "break"]
        assert len(shown_pauses) == len(pauses)
        for slide, entry in zip(shown_pauses, pauses, strict=True):
            assert entry.part.title in slide["shown"]
            assert f"Until {entry.end:%H:%M}" in slide["shown"]
        assert "Then: 02 · oneDNN" in shown_pauses[0]["shown"]
        lab = day.entries[1]
        place = next(i for i, (_, section) in enumerate(lab.sections) if section.do)
        until = lab.sections[place + 1][0]
        told = f"Your turn: exercise 1, about {lab.sections[place][1].do:g} minutes, until {until:%H:%M}"
        assert any(slide["kind"] == "exercise" and told in slide["shown"] for slide in found)

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ([], "or a route: --route half|day|two-days|language-models|after-horovod"),
            (["07", "--route", "day"], "name labs, such as"),
            (["07", "--start", "9:00"], "name labs, such as"),
            (["99"], "there is no lab '99'"),
            (["--route", "week"], "there is no route 'week'"),
            (["00", "--out", "nowhere/at/all.html"], "Name another file with --out"),
        ],
    )
    def test_what_is_wrong_is_said(self, arguments, told):
        error = self.run(*arguments).exception
        assert isinstance(error, LabError)
        assert told in str(error)
