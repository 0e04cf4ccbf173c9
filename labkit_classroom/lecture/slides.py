"""Slides for labs: one self-contained offline page, built from a lab's stored run.

A slide shows the gist; the speaker notes contain the lab's full text and the instructor's notes.

`nbconvert --to slides` (7.17) shows whole cells, and a question together with its answer, and needs the network for
RequireJS and MathJax.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import jinja2
from markupsafe import Markup

from labkit.exercises import catalogue
from labkit.exercises.catalogue import LabInfo, Section
from labkit_author.notebooks import Cells
from labkit_classroom.lecture import guide, labs, prose
from labkit_classroom.lecture.agenda import Day, Entry
from labkit_classroom.lecture.prose import Block
from labkit_classroom.lecture.routes import WELCOME

TEMPLATE = Path(__file__).with_suffix(".html")
REVEAL = Path(__file__).parent / "reveal"
FULL = 550  # characters of text on a slide; the page shrinks slides that are too high
WITH_FIGURE = 220  # characters of text above a picture or a question
MIN_TEXT = 160  # characters of text; less gets no slide of its own
QUESTION = re.compile(r'<div class="[^"]*alert-info[^>]*>(.*?)(?:</div>|\Z)', re.S)  # a box "Guess first"
IMAGE = re.compile(r'<img [^>]*src="data:[^>]*>')  # an image embedded in an output, not in a separate file
CHECK = re.compile(r"^\w+ = check\(", re.M)  # ends an exercise
ALT = re.compile(r'alt="([^"]*)"')


@dataclass
class Slide:
    """A slide: kind (text, question, exercise, picture or break), heading and level, Markdown, and speaker notes.

    Below the Markdown, it shows a picture or a question, as HTML.
    """

    kind: str
    heading: str
    level: int
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figure: str = ""

    @property
    def size(self) -> int:
        """The number of characters of its texts."""
        return sum(map(_size, self.texts))


Slides = Sequence[Slide]  # for a lab's opening, a section or a break


def render(title: str, decks: Sequence[Slides], audience: str = "") -> str:
    """Return the slides as a page: a cover with title, audience and how to join, then the decks."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"inline": prose.inline, "markdown": prose.to_html}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    reveal = {path.name: Markup(_escape_tags(path)) for path in REVEAL.glob("*.[jc]s*")}
    return template.render(title=title, audience=audience, decks=decks, reveal=reveal)


def _escape_tags(path: Path) -> str:
    """Return a script or style sheet with tags in its strings escaped, so that it can be embedded in the page."""
    return re.sub(r"<(?=!--|/?script|/style)", r"\\x3C", path.read_text(encoding="utf-8"))


def of_days(days: Sequence[Day], results: Path, timed: bool) -> list[Slides]:
    """Return a timetable's slides in order: taught sections of labs, breaks and talks.

    Parameters
    ----------
    days : sequence of Day
        The timetable. The cover replaces its welcome.
    results : Path
        As for `of_lab`.
    timed : bool
        Whether to show clock times.
    """
    decks: list[Slides] = []
    begun = set()
    entries = [entry for day in days for entry in day.entries if entry.part != WELCOME]
    for entry, following in itertools.zip_longest(entries, entries[1:]):
        if not entry.part.lab:
            decks.append([_pause(entry, following, timed)])
            continue
        ends = [*(begin for begin, _ in entry.sections[1:]), entry.end]
        taught = {section.name: end if timed else None for (_, section), end in zip(entry.sections, ends, strict=True)}
        opening, *sections = of_lab(catalogue.find(entry.part.lab), results, taught)
        decks += sections if entry.part.lab in begun else [opening, *sections]
        begun.add(entry.part.lab)
    return decks


def _pause(entry: Entry, following: Entry | None, timed: bool) -> Slide:
    """Return the slide for a break or talk: its end or length, and what follows."""
    until = f"Until **{entry.end:%H:%M}**" if timed else f"**{entry.minutes} minutes**"
    then = f"Then: {following.part.title}" if following else ""
    return Slide("break", entry.part.title, 1, [until, then])


def of_lab(lab: LabInfo, results: Path, taught: Mapping[str, datetime | None] | None = None) -> list[Slides]:
    """Return the slides for a lab's opening and each section.

    Parameters
    ----------
    lab : LabInfo
        The lab; slides are built from its solution notebook, with the stored run's pictures.
    results : Path
        The folder with this machine's rehearsal results, for the closing table.
    taught : mapping, optional
        The sections that are taught, with their planned ends, if known; by default, all sections.

    Raises
    ------
    LabError
        If the lab has no stored notebook.
    """
    opening, *sections = labs.sections(lab)
    table, measured = guide.closing_table(lab, results)
    closing = [Block("heading", "Published and measured"), Block("paragraph", f"Measured {measured}.")]
    closing += prose.blocks(table)
    without_title = itertools.islice(_blocks(opening, closing), 1, None)
    decks = [_slides(Slide("text", lab.title, 1), without_title)]
    for plan, section in zip(lab.sections, sections, strict=True):
        if taught is None or plan.name in taught:
            first = Slide("text", section.heading, 2)
            first.notes = [f"*{plan.read:g} minutes reading and running, {plan.do:g} doing, {plan.wait:g} waiting.*"]
            exercises = [exercise.number for exercise in lab.exercises.values() if exercise.section == plan.name]
            your_turn = _your_turn(plan, exercises, taught[plan.name] if taught else None)
            decks.append(_slides(first, _blocks(section, closing), your_turn))
    return decks


def _blocks(section: Cells, closing: Sequence[Block]) -> Iterator[Block]:
    """Yield a section's blocks in order.

    Besides its Markdown, these are questions, pictures (as HTML), ends of exercises, and text for the notes only.
    """
    for cell in section.cells:
        if labs.is_instructors(cell):
            yield Block("notes", cell.source)
        elif cell.cell_type == "markdown":
            for place, text in enumerate(QUESTION.split(cell.source)):  # questions are at odd places
                yield from [Block("question", text)] if place % 2 else prose.blocks(text)
        elif labs.has_closing_table(cell):
            yield from closing if cell.outputs else ()
        else:
            for output in cell.outputs:
                yield from (
                    Block("picture", image) for image in IMAGE.findall(output.get("data", {}).get("text/html", ""))
                )
            yield from (Block("end of exercise", "") for _ in CHECK.findall(cell.source))


def _slides(first: Slide, blocks: Iterable[Block], your_turn: str = "") -> Slides:
    """Return a section's slides: one per heading, question and picture, and for the text between them."""
    slides = [first]

    def begin(heading: str, kind: str = "text") -> Slide:
        slides.append(Slide(kind, heading, first.level + 1))
        return slides[-1]

    for block in blocks:
        last = slides[-1]
        if block.kind == "heading":
            title = block.text.lstrip("# ")
            last = begin(title)
            if title.startswith("Exercise "):
                last.kind, last.texts, your_turn = "exercise", [your_turn], ""
        elif block.kind == "end of exercise":
            begin(first.heading)
        elif figure := _figure(block):
            if last.kind != "text" or last.size > WITH_FIGURE:
                last = begin(last.heading)
            last.kind, last.figure, note = figure
            last.notes.append(note)
            begin(last.heading)
        else:
            text = _slide_text(block, is_exercise=last.kind == "exercise")
            if last.texts and last.size + _size(text) > FULL:
                last = begin(last.heading, last.kind)
            last.texts.append(text)
            last.notes.append(block.text)
    return _without_remainders(slides)


def _figure(block: Block) -> tuple[str, Markup, str] | None:
    """Return the kind of slide for a question, picture or diagram, its content, and a note; otherwise None."""
    if block.kind == "question":
        box = Markup('<div class="box">{}</div>').format(prose.to_html(block.text, 1))
        return "question", box, "Ask for a show of hands for each answer before you go on."
    if block.kind != "picture" and not block.text.startswith("```mermaid"):
        return None
    picture = Markup(block.text) if block.kind == "picture" else prose.to_html(block.text)
    return "picture", picture, f"The picture: {', '.join(ALT.findall(picture))}"


def _slide_text(block: Block, is_exercise: bool) -> str:
    """Return the part of a Markdown block to show on a slide: the gist of prose, and all of an exercise."""
    match block.kind:
        case "paragraph" | "list_item":
            text = block.text if is_exercise else prose.in_short(block)
            return "" if "next cell" in text else text  # a slide shows no cells
        case "table" | "fence" | "math_block":
            return block.text
        case _:  # the instructor's notes, HTML
            return ""


def _size(text: str) -> int:
    """Return a Markdown block's size in characters, capped so that some text fits next to a long block."""
    return min(len(prose.plain(text)), FULL - WITH_FIGURE)


def _without_remainders(slides: Sequence[Slide]) -> list[Slide]:
    """Merge slides with little text into the previous slide: into its notes, if that isn't a text slide."""
    merged = [slides[0]]
    for slide in slides[1:]:
        last = merged[-1]
        is_remainder = slide.kind == "text" and not slide.figure and slide.size < MIN_TEXT
        if is_remainder and (slide.heading in (last.heading, slides[0].heading) or not slide.size):
            last.texts += [] if last.figure or last.kind == "exercise" else slide.texts
            last.notes += slide.notes
        else:
            merged.append(slide)
    if len(merged) > 1 and not merged[0].size and not merged[0].figure and merged[1].heading == merged[0].heading:
        empty = merged.pop(0)
        merged[0].level, merged[0].notes = empty.level, empty.notes + merged[0].notes
    return merged


def _your_turn(plan: Section, exercises: Sequence[int], until: datetime | None) -> str:
    """Return a line with the time for a section's exercises, of which the plan has only the total."""
    if not exercises or not plan.do:
        return ""
    names = f"exercise{'s' * (len(exercises) > 1)} {' and '.join(map(str, exercises))}"
    return f"**Your turn:** {names}, about {plan.do:g} minutes{f', until {until:%H:%M}' if until else ''}."
