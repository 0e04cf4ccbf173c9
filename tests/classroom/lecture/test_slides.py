"""Slides contain a lab's gist and its stored run's pictures, in order, on one self-contained page."""

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
SECTION = r"""## 1 · Begin with [**ranks**](../docs/learn/glossary.md#rank)

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
    """Parses a page's slides: class, heading levels, text shown and text of the notes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.slides, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "section" and (attributes.get("class") or "").startswith("slide "):
            self.slides.append(
                {"kind": attributes["class"].split()[1], "levels": [], "shown": "", "notes": "", "alt": []}
            )
        if tag == "img" and self.slides:
            self.slides[-1]["alt"].append(attributes.get("alt", ""))
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
    """Return a function that stores a lab of prose and code cells, in which `draw()` has an output."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)

    def store(*cells, output=PICTURE):
        v4 = nbformat.v4
        notebook = v4.new_notebook(cells=[cell if not isinstance(cell, str) else markdown(cell) for cell in cells])
        for cell in notebook.cells:
            if cell.source == "draw()":
                cell.outputs = [v4.new_output("display_data", {"text/html": output, "text/plain": ""})]
        exercise = Exercise(1, "two", "", "", "", section="1", title="Add `two`")
        lab = LabInfo("42_lab", "42 · A lab", PLAN, {1: exercise}, ())
        nbformat.write(notebook, lab.solution)
        return lab

    return store


DRAW = nbformat.v4.new_code_cell("draw()")


def markdown(text, **metadata):
    return nbformat.v4.new_markdown_cell(text, metadata=metadata)


@pytest.fixture
def lab(store):
    """A lab whose stored run contains a picture before the answer."""
    notes = markdown("**For the instructor.** It is 2.", tags=["instructor"])
    answer = nbformat.v4.new_code_cell("def two():\n    return 2")
    check = nbformat.v4.new_code_cell("two = check(1, two)")
    return store(BEGIN, SECTION, DRAW, EXERCISE, answer, check, "After it.", notes, QUESTIONS)


NOWHERE = Path("no rehearsal")


def shown(lab, **options):
    """Return the slides of a lab, without the cover."""
    return Page(slides.render("Title", slides.of_lab(lab, NOWHERE, **options))).slides[1:]


def find(deck, text):
    (one,) = [slide for slide in deck if text in slide["shown"]]
    return one


@pytest.fixture(scope="module", params=LABS, ids=lambda lab: lab.name)
def page(request):
    return request.param, slides.render(request.param.title, slides.of_lab(request.param, NOWHERE))


def test_a_labs_page_is_self_contained(page):
    _, text = page
    assert "glossary.md" not in text
    without_scripts = re.sub(r"(?s)<script>.*?</script>", "", text)
    assert not re.search(r"<link|@import|\bsrc=(?!\"data:)|url\((?!\"?data:)", without_scripts)
    for script in re.findall(r"(?s)<script>(.*?)</script>", text):
        assert not re.search("<!--|<script", script)
    assert text.count("<script>") == text.count("</script>") == 3  # reveal.js, its notes, the start


def test_slides_and_notes_contain_the_whole_lab(page):
    lab, text = page
    deck, notebook = Page(text).slides, labs.read(lab.solution)
    for section in labs.sections(lab)[1:]:
        heading = prose.inline(section.heading).striptags()
        assert any(slide["levels"][0] == 2 and heading in slide["shown"] for slide in deck), heading
    for number in lab.exercises:
        assert any(slide["kind"] == "exercise" and f"Exercise {number} · " in slide["shown"] for slide in deck)
    boxes = sum(cell.source.count("**Guess first.**") for cell in notebook.cells)
    assert [slide["kind"] for slide in deck].count("question") == boxes
    assert sum(len(slide["alt"]) for slide in deck) >= json.dumps(notebook).count("data:image/png;base64,")
    assert all(alt for slide in deck for alt in slide["alt"])
    content = "".join(slide["shown"] + slide["notes"] + " ".join(slide["alt"]) for slide in deck)
    prose_text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert set(re.findall(r"\w{4,}", prose.to_html(prose_text).striptags())) <= set(re.findall(r"\w{4,}", content))
    assert len(re.findall(r'<math [^>]*display="block"', text)) >= prose_text.count("$$") // 2
    assert "$$" not in content


def test_headings_are_in_order(page):
    levels = [level for slide in Page(page[1]).slides for level in slide["levels"]]
    assert levels[:2] == [1, 1]  # the cover, the lab
    assert all(following <= level + 1 for level, following in itertools.pairwise(levels))


def test_a_slide_shows_the_gist_and_its_notes_the_full_text(lab):
    slide = find(shown(lab), "The point of it")
    assert "The rest" not in slide["shown"]
    assert "The rest is for the notes" in slide["notes"]
    assert "3 minutes reading and running, 5 doing, 0.5 waiting." in slide["notes"]


def test_a_question_precedes_the_picture_that_answers_it(lab):
    deck = shown(lab)
    place = deck.index(find(deck, "How many?"))
    assert deck[place]["kind"] == "question"
    assert not deck[place]["alt"]
    assert deck[place + 1]["kind"] == "picture"
    assert deck[place + 1]["alt"] == ['Two bars, "a" & b.']
    assert 'Two bars, "a" & b.' in deck[place + 1]["notes"]


def test_an_exercise_is_shown_in_full_with_its_time_but_no_answer(lab):
    deck = shown(lab)
    slide = find(deck, "Exercise 1 · Add two")
    assert "Your turn: exercise 1, about 5 minutes." in slide["shown"]
    assert "Don't count." in slide["shown"]
    assert "return 2" not in "".join(slide["shown"] + slide["notes"] for slide in deck)


def test_the_instructors_notes_are_only_in_speaker_notes(lab):
    deck = shown(lab)
    assert "It is 2." not in "".join(slide["shown"] for slide in deck)
    exercise = find(deck, "Exercise 1")
    assert "After it." in exercise["notes"]  # a single sentence after the exercise
    assert "It is 2." in exercise["notes"]


def test_a_route_shows_only_its_sections(lab):
    texts = "".join(slide["shown"] for slide in shown(lab, taught={"questions": None}))
    assert "Why?" in texts
    assert "The point of it" not in texts


def test_a_lab_continued_after_a_break_does_not_repeat_its_title():
    days = agenda.schedule(routes.find("two-days"), time(9), date(2026, 12, 1), {})
    decks = slides.of_days(days, NOWHERE, timed=False)
    titles = [deck[0].heading for deck in decks if deck[0].level == 1 and deck[0].kind != "break"]
    assert titles == [catalogue.find(number).title for number in routes.find("two-days").labs]


def test_external_images_are_left_out_and_titles_are_escaped(store):
    lab = store(BEGIN, SECTION, DRAW, QUESTIONS, output=f'{PICTURE}<img src="https://elsewhere/x.png">')
    text = slides.render("<b>", slides.of_lab(lab, NOWHERE))
    assert PNG in text
    assert "elsewhere" not in text
    assert f"<title>{html.escape('<b>')}</title>" in text


def test_a_missing_notebook_is_reported_with_its_remedy(lab):
    lab.solution.unlink()
    with pytest.raises(LabError, match=r"there is no .*42_lab.ipynb: \./lab build 42 creates it"):
        slides.of_lab(lab, NOWHERE)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("One sentence.", "One sentence."),
        (f"{'Long ' * 30}first. Second.", f"{'Long ' * 30}first."),
        ("First. Second. " + "Long " * 40, "First. Second."),
        ("Short of time? Leave it out, " + "because " * 20, "Short of time? Leave it out, " + "because " * 20),
        (f"**Why?** {'Long ' * 30}answer. Next.", f"**Why?** {'Long ' * 30}answer."),
        (f"{'Long ' * 30}(see Goyal et al. And others). Next.", f"{'Long ' * 30}(see Goyal et al. And others)."),
        (f"{'Long ' * 30}`a. B` it. Next.", f"{'Long ' * 30}`a. B` it."),
        (f"{'Long ' * 30}by F. Baruffa. Next.", f"{'Long ' * 30}by F. Baruffa."),
    ],
)
def test_the_gist_of_a_paragraph(text, short):
    assert prose.in_short(Block("paragraph", text)).strip() == short.strip()


def test_links_between_files_become_text_and_others_stay():
    rendered = prose.to_html("A [**rank**](../docs/learn/glossary.md#rank) and [a paper](https://arxiv.org/abs/1).")
    assert rendered == '<p>A <a><strong>rank</strong></a> and <a href="https://arxiv.org/abs/1">a paper</a>.</p>\n'


def test_only_parsable_dollars_become_formulas():
    assert r"<code>\left( x &lt; 1</code>" in prose.to_html(r"$\left( x < 1$")
    assert "<math" not in prose.to_html("`$HOME` and `$(nproc)`\n\n```bash\necho $A $B\n```")


@pytest.mark.parametrize("description", ["accDescr: a b", "accDescr {\n a\n b\n }"])
def test_a_diagram_is_drawn_with_alt_text(description):
    rendered = prose.to_html(f"```mermaid\nflowchart LR\n  accTitle: Two & one\n  {description}\n  a[first] --> b\n```")
    (data,) = re.findall(
        r'<img class="diagram" src="data:image/svg\+xml;base64,([^"]*)" alt="Two &amp; one. a b">', rendered
    )
    drawn = base64.b64decode(data).decode()
    assert drawn.startswith("<svg")
    assert "first" in drawn


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(cli.application(), ["slides", *map(str, arguments)])

    def test_several_labs_share_a_page(self, tmp_path):
        out = tmp_path / "a page.html"
        assert self.run("00", "7", "07", "--out", out).exit_code == 0
        cover, *titles = [slide["shown"] for slide in Page(out.read_text()).slides if slide["levels"][0] == 1]
        assert "./lab join ADDRESS CODE" in cover
        assert [title.split()[0] for title in titles] == ["00", "07"]

    def test_a_routes_breaks_are_slides_with_end_times_if_a_start_is_given(self, tmp_path):
        out = tmp_path / "half.html"
        assert self.run("--route", "half", "--start", "13:00", "--out", out).exit_code == 0
        (day,) = agenda.schedule(routes.find("half"), time(13), date(2026, 12, 1), {})
        deck = Page(out.read_text()).slides
        pauses = [entry for entry in day.entries if not entry.part.lab][1:]
        shown_pauses = [slide for slide in deck if slide["kind"] == "break"]
        assert len(shown_pauses) == len(pauses)
        for slide, entry in zip(shown_pauses, pauses, strict=True):
            assert entry.part.title in slide["shown"]
            assert f"Until {entry.end:%H:%M}" in slide["shown"]
        assert "Then: 02 · oneDNN" in shown_pauses[0]["shown"]
        lab = day.entries[1]
        place = next(i for i, (_, section) in enumerate(lab.sections) if section.do)
        until = lab.sections[place + 1][0]
        message = f"Your turn: exercise 1, about {lab.sections[place][1].do:g} minutes, until {until:%H:%M}"
        assert any(slide["kind"] == "exercise" and message in slide["shown"] for slide in deck)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "or a route: --route half|day|two-days|language-models|pytorch-first"),
            (["07", "--route", "day"], "name labs, such as"),
            (["07", "--start", "9:00"], "name labs, such as"),
            (["99"], "there is no lab '99'"),
            (["--route", "week"], "there is no route 'week'"),
            (["00", "--out", "nowhere/at/all.html"], "Name another file with --out"),
        ],
    )
    def test_invalid_arguments_are_reported(self, arguments, message):
        error = self.run(*arguments).exception
        assert isinstance(error, LabError)
        assert message in str(error)
