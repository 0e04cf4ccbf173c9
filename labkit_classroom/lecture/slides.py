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
from typing import NamedTuple

import jinja2

from labkit.exercises import catalogue
from labkit.exercises.catalogue import LabInfo, Section
from labkit.exercises.minutes import Cells
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


class Slide(NamedTuple):
    """A slide: what it is (text, question, exercise, picture or break), heading, what it shows, the speaker's notes."""

    kind: str
    heading: str
    shown: Markup
    notes: Markup


class Deck(NamedTuple):
    """A lab's slides, or a break's: number, title, and the slides of its beginning and of each section.

    A deck that continues after a break has no beginning.
    """

    number: str
    title: str
    parts: tuple[tuple[Slide, ...], ...]
    continues: bool = False


@dataclass
class _Draft:
    """A slide that is being filled: Markdown to show and for the notes, and a picture or question below that."""

    kind: str
    heading: str
    shown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figure: str = ""

    @property
    def size(self) -> int:
        return sum(map(_size, self.shown))

    def slide(self) -> Slide:
        shown, notes = ("\n\n".join(filter(None, texts)) for texts in (self.shown, self.notes))
        return Slide(self.kind, self.heading, prose.to_html(shown, 1) + Markup(self.figure), prose.to_html(notes, 1))


def render(title: str, decks: Sequence[Deck], audience: str = "") -> str:
    """Return the slides, as a page: a cover with title, audience and a place for the room's address, then the decks."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["inline"] = prose.inline
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    reveal = {path.name: Markup(_inside_a_page(path)) for path in REVEAL.glob("*.[jc]s*")}
    return template.render(title=title, audience=audience, decks=decks, reveal=reveal)


def _inside_a_page(path: Path) -> str:
    """Return a script or a style sheet such that nothing in its texts looks like a tag to the page's parser."""
    return re.sub(r"<(?=!--|/?script|/style)", r"\\x3C", path.read_text(encoding="utf-8"))


def of_days(days: Sequence[Day], results: Path, timed: bool) -> list[Deck]:
    """Return the slides of a timetable in its order: labs by the sections that are taught, breaks and talks.

    Parameters
    ----------
    days : sequence of Day
        The timetable. Its welcome is the cover.
    results : Path
        As for `deck`.
    timed : bool
        Whether clock times are shown.
    """
    decks: list[Deck] = []
    entries = [entry for day in days for entry in day.entries if entry.part != WELCOME]
    for entry, following in itertools.zip_longest(entries, entries[1:]):
        if not entry.part.lab:
            decks.append(_pause(entry, following, timed))
            continue
        ends = [*(begin for begin, _ in entry.sections[1:]), entry.end]
        taught = {section.name: end if timed else None for (_, section), end in zip(entry.sections, ends, strict=True)}
        continues = any(one.number == entry.part.lab for one in decks)
        decks.append(deck(catalogue.find(entry.part.lab), results, taught, continues))
    return decks


def _pause(entry: Entry, following: Entry | None, timed: bool) -> Deck:
    """Return the slide of a break or a talk: until when, or how long, and what follows."""
    until = f"Until **{entry.end:%H:%M}**" if timed else f"**{entry.minutes} minutes**"
    then = f"\n\nThen: {following.part.title}" if following else ""
    return Deck("", entry.part.title, ((Slide("break", entry.part.title, prose.to_html(until + then), Markup()),),))


def deck(
    lab: LabInfo, results: Path, taught: Mapping[str, datetime | None] | None = None, continues: bool = False
) -> Deck:
    """Return the slides of a lab.

    Parameters
    ----------
    lab : LabInfo
        The lab; slides are made from its solution notebook, with the stored run's pictures.
    results : Path
        Where a rehearsal on this machine has left its `results-NN.json`, for the closing table.
    taught : mapping, optional
        The sections that are taught, with the times at which they should be over, where these are known; all
        sections by default.
    continues : bool
        Whether its beginning has been shown before.

    Raises
    ------
    LabError
        When the lab has no stored notebook.
    """
    opening, *sections = labs.sections(lab)
    table, measured = guide.closing_table(lab, results)
    closing = [Block("heading", "Published and measured"), Block("paragraph", f"Measured {measured}.")]
    closing += prose.blocks(table)
    parts = []
    if not continues:
        parts.append(_slides(lab.title, itertools.islice(_blocks(opening, closing), 1, None)))  # without the title
    for plan, section in zip(lab.sections, sections, strict=True):
        if taught is None or plan.name in taught:
            exercises = [exercise.number for exercise in lab.exercises.values() if exercise.section == plan.name]
            first = _your_turn(plan, exercises, taught[plan.name] if taught else None)
            parts.append(_slides(section.heading, _blocks(section, closing), plan, first))
    return Deck(lab.number, lab.title, tuple(parts), continues)


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


def _slides(
    heading: str, blocks: Iterable[Block], plan: Section | None = None, your_turn: str = ""
) -> tuple[Slide, ...]:
    """Return the slides of a section: one for each heading, question and picture, and for the text between."""
    drafts = [_Draft("text", heading)]
    if plan:
        drafts[0].notes.append(f"*{plan.read:g} minutes to read and run, {plan.do:g} to do, {plan.wait:g} of waiting.*")
    for block in blocks:
        last = drafts[-1]
        if block.kind == "heading":
            title = block.text.lstrip("# ")
            drafts.append(_Draft("text", title))
            if title.startswith("Exercise "):
                drafts[-1].kind, drafts[-1].shown, your_turn = "exercise", [your_turn], ""
        elif block.kind == "end of exercise":
            drafts.append(_Draft("text", heading))
        elif figure := _figure(block):
            if last.kind != "text" or last.size > WITH_FIGURE:
                drafts.append(last := _Draft("text", last.heading))
            last.kind, last.figure, note = figure
            last.notes.append(note)
            drafts.append(_Draft("text", last.heading))
        else:
            shown = _shown(block, is_exercise=last.kind == "exercise")
            if last.shown and last.size + _size(shown) > FULL:
                drafts.append(last := _Draft(last.kind, last.heading))
            last.shown.append(shown)
            last.notes.append(block.text)
    return tuple(draft.slide() for draft in _without_remainders(drafts))


def _figure(block: Block) -> tuple[str, Markup, str] | None:
    """Return the kind of slide that a question, picture or diagram makes, what it shows, and a note; else None."""
    if block.kind == "question":
        asked = Markup('<div class="box">{}</div>').format(prose.to_html(block.text, 1))
        return "question", asked, "Ask, and see hands for each answer, before you show what comes next."
    drawn = Markup(block.text) if block.kind == "picture" else prose.to_html(block.text)
    if block.kind == "picture" or block.text.startswith("```mermaid"):
        return "picture", drawn, "The picture: " + ", ".join(ALT.findall(drawn))
    return None


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


def _without_remainders(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Return drafts without those of a few words, which go to the draft before: to its notes, if that isn't text."""
    kept = [drafts[0]]
    for draft in drafts[1:]:
        last = kept[-1]
        is_remainder = draft.kind == "text" and not draft.figure and draft.size < FEW
        if is_remainder and (draft.heading in (last.heading, drafts[0].heading) or not draft.size):
            last.shown += [] if last.figure or last.kind == "exercise" else draft.shown
            last.notes += draft.notes
        else:
            kept.append(draft)
    if len(kept) > 1 and not kept[0].size and not kept[0].figure and kept[1].heading == kept[0].heading:
        kept[1].notes[:0] = kept.pop(0).notes
    return kept


def _your_turn(plan: Section, exercises: Sequence[int], until: datetime | None) -> str:
    """Return a line on how long a section's exercises take; the plan has their time together."""
    if not exercises or not plan.do:
        return ""
    which = f"exercise{'s' * (len(exercises) > 1)} {' and '.join(map(str, exercises))}"
    return f"**Your turn:** {which}, about {plan.do:g} minutes{f', until {until:%H:%M}' if until else ''}."
