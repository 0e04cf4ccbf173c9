"""Slides have the point of a lab and what its stored run showed, in its order, on one page that needs nothing else."""

import base64
import html
import itertools
import json
import re
from datetime import date, time
from html.parser import HTMLParser

import nbformat
import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.exercises import minutes, notebooks, sources
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_classroom.lecture import agenda, prose, routes, slides
from labkit_classroom.lecture.prose import Block

LABS = sources.labs()
PNG = "data:image/png;base64,iVBORw0KGgo="
SOURCE = r"""# %% [markdown]
# # 42 · A lab
#
# **You will** learn.

# %% [markdown]
# ## 1 · Begin with [**ranks**](../docs/glossary.md#rank)
#
# The point of it is in the first sentence, which is long enough to stand alone on a slide. The rest is for the notes
# of whoever speaks, as it goes on and on.
#
# $$y = \frac{a}{b}$$
#
# <div class="alert alert-block alert-info" style="color: black">
#
# **Guess first.** How many?
#
# </div>

# %%
draw()

# %% [markdown]
# | a | b |
# | --- | --- |
ROWS
#
# ### Exercise 1 · Add `two`
#
# Write `two()`.

# %%
def two():
    ### BEGIN SOLUTION
    return 2
    ### END SOLUTION

# %%
two = check(1, two)

# %% [markdown]
# After it.

# %% [markdown] tags=["instructor"]
# **For the instructor.** It is 2.

# %% [markdown]
# ## Questions
#
# 1. Why?
""".replace("ROWS", "\n".join(f"# | row {number} | some text |" for number in range(40)))
PLAN = "[42]\n1 = {read = 3, do = 5, wait = 0.5}\nquestions = {read = 1}\n"


class Page(HTMLParser):
    """Finds a page's slides: class, heading's level, and texts shown and for the notes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.slides, self.open, self.script = [], [], ""
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
def lab(tmp_path, monkeypatch):
    """A lab whose stored run drew a picture before its answer."""
    source = tmp_path / "42_lab.py"
    source.write_text(SOURCE)
    (tmp_path / minutes.FILE).write_text(PLAN)
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    store(source, f'<img src="{PNG}" alt="Two bars, &quot;a&quot; &amp; b.">')
    return source


def store(source, output):
    notebook = notebooks.solution(source)
    (cell,) = [cell for cell in notebook.cells if cell.source == "draw()"]
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/html": output, "text/plain": ""})]
    notebooks.solution_path(source).write_text(notebooks.dumps(notebook))


def shown(source, **options):
    """Return the slides of a lab, without the cover."""
    return Page(slides.render("Title", [slides.deck(source, source.parent / "nowhere", **options)])).slides[1:]


def find(found, text):
    (one,) = [slide for slide in found if text in slide["shown"]]
    return one


@pytest.fixture(scope="module", params=LABS, ids=lambda source: source.stem)
def page(request, tmp_path_factory):
    deck = slides.deck(request.param, tmp_path_factory.mktemp("no rehearsal"))
    return request.param, slides.render(deck.title, [deck])


class TestEachLab:
    def test_its_page_needs_nothing_from_elsewhere(self, page):
        _, text = page
        assert "glossary.md" not in text
        without_scripts = re.sub(r"(?s)<script>.*?</script>", "", text)
        assert not re.search(r"<link|@import|\bsrc=(?!\"data:)|url\((?!\"?data:)", without_scripts)

    def test_nothing_in_its_scripts_ends_them_early(self, page):
        _, text = page
        for script in re.findall(r"(?s)<script>(.*?)</script>", text):
            assert "<!--" not in script
            assert "<script" not in script
        assert text.count("<script>") == text.count("</script>") == 4  # reveal.js, two plugins, the start

    def test_all_its_sections_exercises_questions_and_pictures_are_there(self, page):
        source, text = page
        found = Page(text).slides
        code = sources.read(source)
        for section in minutes.by_section(notebooks.solution(source))[1:]:
            heading = prose.inline(section.heading).striptags()
            assert any(slide["levels"][0] == 2 and heading in slide["shown"] for slide in found), heading
        for number in sources.exercises(code):
            assert any(slide["kind"] == "exercise" and f"Exercise {number} · " in slide["shown"] for slide in found)
        boxes = sum(cell.source.count("**Guess first.**") for cell in code.cells)
        assert [slide["kind"] for slide in found].count("question") == boxes
        stored = json.dumps(notebooks.stored(source)).count("data:image/png;base64,")
        assert sum(len(slide["alt"]) for slide in found) >= stored
        assert all(alt for slide in found for alt in slide["alt"])

    def test_its_headings_are_in_order(self, page):
        _, text = page
        levels = [level for slide in Page(text).slides for level in slide["levels"]]
        assert levels[:2] == [1, 1]  # the cover, the lab
        assert levels.count(1) == 2
        assert all(following <= level + 1 for level, following in itertools.pairwise(levels))

    def test_its_formulas_are_mathml(self, page):
        source, text = page
        formulas = sum(cell.source.count("$$") // 2 for cell in sources.read(source).cells if "$$" in cell.source)
        assert len(re.findall(r'<math [^>]*display="block"', text)) >= formulas
        assert "$$" not in "".join(slide["shown"] + slide["notes"] for slide in Page(text).slides)


def test_a_slide_has_the_point_and_its_notes_have_all(lab):
    slide = find(shown(lab), "The point of it")
    assert "The rest" not in slide["shown"]
    assert "The rest is for the notes" in slide["notes"]
    assert "3 minutes to read and run, 5 to do, 0.5 of waiting." in slide["notes"]


def test_a_question_stands_alone_before_the_picture_that_answers_it(lab):
    found = shown(lab)
    place = found.index(find(found, "How many?"))
    assert found[place]["kind"] == "question"
    assert "The point" not in found[place]["shown"]
    assert found[place + 1]["kind"] == "picture"
    assert found[place + 1]["alt"] == ['Two bars, "a" & b.']
    assert 'Two bars, "a" & b.' in found[place + 1]["notes"]


def test_a_long_table_goes_on_on_other_slides_with_its_head(lab):
    parts = [slide["shown"] for slide in shown(lab) if "some text" in slide["shown"]]
    assert len(parts) > 2
    assert all(re.search(r"\ba\s+b\b", part) for part in parts)
    rows = [int(number) for part in parts for number in re.findall(r"row (\d+)", part)]
    assert rows == list(range(40))


def test_an_exercise_has_its_time_and_no_answer(lab):
    found = shown(lab)
    slide = find(found, "Exercise 1 · Add two")
    assert "Your turn: exercise 1, about 5 minutes." in slide["shown"]
    assert "return 2" not in "".join(one["shown"] + one["notes"] for one in found)


def test_the_instructors_notes_are_for_the_speaker_alone(lab):
    found = shown(lab)
    assert "It is 2." not in "".join(slide["shown"] for slide in found)
    exercise = find(found, "Exercise 1")
    assert "After it." in exercise["notes"]  # a sentence alone, behind the exercise
    assert "It is 2." in exercise["notes"]


def test_of_a_route_only_its_sections(lab):
    texts = "".join(slide["shown"] for slide in shown(lab, taught={"questions": None}))
    assert "Why?" in texts
    assert "The point of it" not in texts


def test_what_an_output_says_is_no_markup(lab):
    store(lab, f'<img src="{PNG}" alt="&lt;script&gt;alert(1)&lt;/script&gt;"><img src="https://elsewhere/x.png">')
    text = slides.render("<b>", [slides.deck(lab, lab.parent)])
    assert "<script>alert(1)" not in text
    assert "elsewhere" not in text
    assert f"<title>{html.escape('<b>')}</title>" in text


def test_a_lab_that_was_never_run_says_what_to_do(lab):
    notebooks.solution_path(lab).unlink()
    with pytest.raises(LabError, match=r"lab 42 has no stored run: \./lab build 42 --execute"):
        slides.deck(lab, lab.parent)


def test_a_lab_that_has_changed_since_says_what_to_do(lab):
    lab.write_text(SOURCE.replace("How many?", "How many are there?"))
    with pytest.raises(LabError, match=r"lab 42 has changed since its run was stored: \./lab build 42"):
        slides.deck(lab, lab.parent)


def with_prose(lab, text):
    """Give the lab one section, of this Markdown, and return its slides without the cover and the lab's title."""
    commented = "\n".join(f"# {line}".rstrip() for line in text.split("\n"))
    lab.write_text(f"# %% [markdown]\n# # 42 · A lab\n#\n# ## 1 · One\n#\n{commented}\n#\n# ## Questions\n#\n# Why?\n")
    notebooks.solution_path(lab).write_text(notebooks.dumps(notebooks.solution(lab)))
    return shown(lab)[1:]


SENTENCE = (
    "This sentence is as long as two lines of a slide, which have sixty characters each."  # and a space: 2.4 lines
)


def test_no_slide_is_left_with_the_last_sentence_alone(lab):
    *pages, _ = with_prose(lab, "\n\n".join([SENTENCE] * 6))
    assert [page["shown"].count("sentence") for page in pages] == [3, 3]  # and not five and one


def test_a_list_goes_with_what_leads_to_it(lab):
    items = "\n".join(f"- Item {i} has some words." for i in range(3))
    *pages, _ = with_prose(lab, "\n\n".join([SENTENCE] * 4) + "\n\nThree things:\n\n" + items)
    assert "Three things:" not in pages[0]["shown"]
    assert all(f"Item {i}" in pages[1]["shown"] for i in range(3))


def test_slides_of_one_heading_are_numbered(lab):
    *pages, last = with_prose(lab, "\n\n".join([SENTENCE] * 6))
    for i, page in enumerate(pages, start=1):
        assert f"1 · One ({i} of {len(pages)})" in page["shown"]
    assert "(1 of 1)" not in last["shown"]


def test_a_sentence_that_leads_to_a_question_stands_above_it(lab):
    box = '<div class="alert alert-info">\n\n**Guess first.** How many?\n\n</div>'
    question, _ = with_prose(lab, f"{SENTENCE}\n\n{box}")
    assert question["kind"] == "question"
    assert question["shown"].index("This sentence") < question["shown"].index("How many?")


def test_text_of_a_few_lines_is_shown_whole(lab):
    page, _ = with_prose(lab, f"{SENTENCE} {SENTENCE}")
    assert page["shown"].count("sentence") == 2


def test_a_lab_that_goes_on_after_a_break_has_no_title_again(lab):
    deck = slides.deck(lab, lab.parent, {"questions": None}, goes_on=True)
    (_, slide) = Page(slides.render("Title", [deck])).slides
    assert slide["levels"] == [2]


@pytest.mark.parametrize(
    ("prose", "kinds"),
    [
        ("[a link]: https://elsewhere", ["text", "text"]),  # no block at all
        ("| |\n| --- |\n| |", ["text", "text"]),
        ('<div class="alert alert-info">\n\nA box that is not closed?', ["question", "text"]),
        ('<div class="alert alert-block alert-danger">\n\nNo question.\n\n</div>', ["text", "text"]),
        ("Word " * 3000, ["text", "text"]),
        ("- " + "\n- ".join(["An item that has some words."] * 60), ["text"] * 9),
        ("```python\n" + "print()\n" * 99 + "```", ["text", "text"]),
    ],
    ids=["no block", "an empty table", "an open box", "another box", "a long sentence", "a long list", "long code"],
)
def test_other_prose_is_not_lost(lab, prose, kinds):
    found = with_prose(lab, prose)
    assert [slide["kind"] for slide in found] == kinds
    words = re.findall(r"\w+", re.sub(r"<[^>]*>|```\w*|\[.*", "", prose))
    assert set(words) <= set(re.findall(r"\w+", "".join(slide["shown"] + slide["notes"] for slide in found)))
    assert all(len(slide["shown"]) < 1000 for slide in found)


class TestInShort:
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
    def test_of_a_paragraph(self, text, short):
        assert prose.in_short(Block("paragraph", text)).strip() == short.strip()

    def test_of_a_numbered_item_its_number_stays(self):
        text = "12. " + "Long " * 30 + "first. Second.\n    - nested"
        assert prose.in_short(Block("list_item", text)) == "12. " + "Long " * 30 + "first."


class TestProse:
    def test_links_between_files_are_words_and_others_stay(self):
        got = prose.to_html("A [**rank**](../docs/glossary.md#rank) and [a paper](https://arxiv.org/abs/1).")
        assert got == '<p>A <strong>rank</strong> and <a href="https://arxiv.org/abs/1">a paper</a>.</p>\n'

    def test_a_formula_that_cannot_be_read_stays_as_written(self):
        assert r"<code>\left( x &lt; 1</code>" in prose.to_html(r"$\left( x < 1$")

    def test_a_shells_dollars_are_no_formula(self):
        assert "<math" not in prose.to_html("`$HOME` and `$(nproc)`\n\n```bash\necho $A $B\n```")

    @pytest.mark.parametrize("description", ["accDescr: a b", "accDescr {\n a\n b\n }"])
    def test_a_diagram_is_drawn_and_told_in_words(self, description):
        got = prose.to_html(f"```mermaid\nflowchart LR\n  accTitle: Two & one\n  {description}\n  a[first] --> b\n```")
        (data,) = re.findall(
            r'<img class="diagram" src="data:image/svg\+xml;base64,([^"]*)" alt="Two &amp; one. a b">', got
        )
        drawn = base64.b64decode(data).decode()
        assert drawn.startswith("<svg")
        assert "first" in drawn

    def test_headings_go_down(self):
        assert prose.to_html("# a\n\n### b\n\n##### c", 2) == "<h3>a</h3>\n<h5>b</h5>\n<h6>c</h6>\n"

    def test_code_has_no_style_sheet(self):
        got = prose.code("for x in y: pass  # <b>")
        assert 'style="font-weight: bold"' in got
        assert "&lt;b&gt;" in got
        assert "<code>what</code>" not in prose.code("what", "no such language")


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
            (
                [],
                "name labs, such as ./lab slides 07, or a route: --route "
                "half|day|two-days|language-models|after-horovod.",
            ),
            (["07", "--route", "day"], "name labs, such as"),
            (["07", "--start", "9:00"], "--start is for the slides of a route"),
            (["99"], "there is no lab '99'"),
            (["--route", "week"], "there is no route 'week'"),
            (["00", "--out", "nowhere/at/all.html"], "Name another file with --out"),
        ],
    )
    def test_what_is_wrong_is_said(self, arguments, told):
        error = self.run(*arguments).exception
        assert isinstance(error, LabError)
        assert told in str(error)
