"""Slides of labs: one page, made from a lab's stored run, that needs no other file and no network.

A slide has the point; the speaker's notes have all that the lab says there, and the instructor's notes.

`nbconvert --to slides` (7.17) takes whole cells, shows a question with its answer below it, and needs the network for
RequireJS and MathJax.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import jinja2

from labkit.exercises import catalogue
from labkit.exercises.catalogue import LabInfo, Section
from labkit_author.notebooks import Cells
from labkit_classroom.lecture import guide, labs, prose
from labkit_classroom.lecture.agenda import Day, Entry
from labkit_classroom.lecture.prose import Block, Markup
from labkit_classroom.lecture.routes import WELCOME

TEMPLATE = Path(__file__).with_suffix(".html")
REVEAL = Path(__file__).parent / "reveal"
FULL = 550  # characters of text on a slide; the page makes smaller what is too high
WITH_FIGURE = 220  # characters of text that a picture or a question has above it
FEW = 160  # characters of text that are not worth a slide of their own
QUESTION = re.compile(r'<div class="[^"]*alert-info[^>]*>(.*?)(?:</div>|\Z)', re.S)  # a box "Guess first"
IMAGE = re.compile(r'<img [^>]*src="data:[^>]*>')  # an image that is in an output, not in a file beside it
CHECK = re.compile(r"^\w+ = check\(", re.M)  # ends an exercise
ALT = re.compile(r'alt="([^"]*)"')


@dataclass
class Slide:
    """A slide: kind (text, question, exercise, picture or break), heading with its level, Markdown to show and to say.

    Below the Markdown it shows a picture or a question, as HTML.
    """

    kind: str
    heading: str
    level: int
    texts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figure: str = ""

    @property
    def size(self) -> int:
        """The characters of its texts."""
        return sum(map(_size, self.texts))


Slides = Sequence[Slide]  # of a lab's beginning, of a section, or of a break


def render(title: str, decks: Sequence[Slides], audience: str = "") -> str:
    """Return the slides, as a page: a cover with title, audience and a place for the room's address, then the decks."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"inline": prose.inline, "markdown": prose.to_html}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    reveal = {path.name: Markup(_inside_a_page(path)) for path in REVEAL.glob("*.[jc]s*")}
    return template.render(title=title, audience=audience, decks=decks, reveal=reveal)


def _inside_a_page(path: Path) -> str:
    """Return a script or a style sheet such that nothing in its texts looks like a tag to the page's parser."""
    return re.sub(r"<(?=!--|/?script|/style)", r"\\x3C", path.read_text(encoding="utf-8"))


def of_days(days: Sequence[Day], results: Path, timed: bool) -> list[Slides]:
    """Return the slides of a timetable in its order: labs by the sections that are taught, breaks and talks.

    Parameters
    ----------
    days : sequence of Day
        The timetable. Its welcome is the cover.
    results : Path
        As for `of_lab`.
    timed : bool
        Whether clock times are shown.
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
        beginning, *sections = of_lab(catalogue.find(entry.part.lab), results, taught)
        decks += sections if entry.part.lab in begun else [beginning, *sections]
        begun.add(entry.part.lab)
    return decks


def _pause(entry: Entry, following: Entry | None, timed: bool) -> Slide:
    """Return the slide of a break or a talk: until when, or how long, and what follows."""
    until = f"Until **{entry.end:%H:%M}**" if timed else f"**{entry.minutes} minutes**"
    then = f"Then: {following.part.title}" if following else ""
    return Slide("break", entry.part.title, 1, [until, then])


def of_lab(lab: LabInfo, results: Path, taught: Mapping[str, datetime | None] | None = None) -> list[Slides]:
    """Return the slides of a lab's beginning, and of each section.

    Parameters
    ----------
    lab : LabInfo
        The lab; slides are made from its solution notebook, with the stored run's pictures.
    results : Path
        Where a rehearsal on this machine has left its `results-NN.json`, for the closing table.
    taught : mapping, optional
        The sections that are taught, with the times at which they should be over, where these are known; all
        sections by default.

    Raises
    ------
    LabError
        When the lab has no stored notebook.
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
            first.notes = [f"*{plan.read:g} minutes to read and run, {plan.do:g} to do, {plan.wait:g} of waiting.*"]
            exercises = [exercise.number for exercise in lab.exercises.values() if exercise.section == plan.name]
            your_turn = _your_turn(plan, exercises, taught[plan.name] if taught else None)
            decks.append(_slides(first, _blocks(section, closing), your_turn))
    return decks


def _blocks(section: Cells, closing: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks of a section to show or to say, in its order.

    Besides the blocks of its Markdown these are questions, pictures (as HTML), the end of an exercise, and what is for
    the notes alone.
    """
    for cell in section.cells:
        if labs.is_instructors(cell):
            yield Block("notes", cell.source)
        elif cell.cell_type == "markdown":
            for place, text in enumerate(QUESTION.split(cell.source)):  # a question's text has an odd place
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
    """Return the slides of a section: one for each heading, question and picture, and for the text between."""
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
            shown = _shown(block, is_exercise=last.kind == "exercise")
            if last.texts and last.size + _size(shown) > FULL:
                last = begin(last.heading, last.kind)
            last.texts.append(shown)
            last.notes.append(block.text)
    return _without_remainders(slides)


def _figure(block: Block) -> tuple[str, Markup, str] | None:
    """Return the kind of slide that a question, picture or diagram makes, what it shows, and a note; else None."""
    if block.kind == "question":
        asked = Markup('<div class="box">{}</div>').format(prose.to_html(block.text, 1))
        return "question", asked, "Ask, and see hands for each answer, before you show what comes next."
    if block.kind != "picture" and not block.text.startswith("```mermaid"):
        return None
    drawn = Markup(block.text) if block.kind == "picture" else prose.to_html(block.text)
    return "picture", drawn, f"The picture: {', '.join(ALT.findall(drawn))}"


def _shown(block: Block, is_exercise: bool) -> str:
    """Return what a slide shows of a block of Markdown: the point of prose, and all of an exercise."""
    match block.kind:
        case "paragraph" | "list_item":
            return block.text if is_exercise else prose.in_short(block)
        case "table" | "fence" | "math_block":
            return block.text
        case _:  # the instructor's notes, HTML
            return ""


def _size(text: str) -> int:
    """Return the characters that a block of Markdown counts for: a table or a long paragraph goes with a short text."""
    return min(len(prose.plain(text)), FULL - WITH_FIGURE)


def _without_remainders(slides: Sequence[Slide]) -> list[Slide]:
    """Return slides without those of a few words, which go to the slide before: to its notes, if that isn't text."""
    kept = [slides[0]]
    for slide in slides[1:]:
        last = kept[-1]
        is_remainder = slide.kind == "text" and not slide.figure and slide.size < FEW
        if is_remainder and (slide.heading in (last.heading, slides[0].heading) or not slide.size):
            last.texts += [] if last.figure or last.kind == "exercise" else slide.texts
            last.notes += slide.notes
        else:
            kept.append(slide)
    if len(kept) > 1 and not kept[0].size and not kept[0].figure and kept[1].heading == kept[0].heading:
        empty = kept.pop(0)
        kept[0].level, kept[0].notes = empty.level, empty.notes + kept[0].notes
    return kept


def _your_turn(plan: Section, exercises: Sequence[int], until: datetime | None) -> str:
    """Return a line on how long a section's exercises take; the plan has their time together."""
    if not exercises or not plan.do:
        return ""
    which = f"exercise{'s' * (len(exercises) > 1)} {' and '.join(map(str, exercises))}"
    return f"**Your turn:** {which}, about {plan.do:g} minutes{f', until {until:%H:%M}' if until else ''}."
