"""Slides of labs: one page, made from a lab's stored run, that needs no other file and no network.

A slide has the point; the speaker's notes have all that the lab says there, and the instructor's notes.

`nbconvert --to slides` (7.17) was tried on labs 02 and 07, and looked at in a browser. To it a cell is the least that a
slide can be: whole paragraphs, a "Guess first" with its answer below it, the end of one section with the beginning of
the next, and what is too high is cut off. Nothing is for the notes but whole cells. Its page takes reveal.js from a
folder beside it, and RequireJS, MathJax and Mermaid from the network: without that it shows no slides at all.
"""

import html
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import jinja2
from nbformat import NotebookNode

from labkit.exercises import minutes, notebooks, sources
from labkit.exercises.minutes import Cells, Section
from labkit.system.errors import LabError
from labkit_classroom.lecture import guide, prose
from labkit_classroom.lecture.agenda import Day, Entry
from labkit_classroom.lecture.prose import Block, Markup
from labkit_classroom.lecture.routes import WELCOME

TEMPLATE = Path(__file__).with_suffix(".html")
REVEAL = Path(__file__).parent / "reveal"
# Lines of text that fit on a slide: an estimate. The page makes smaller what is too high all the same.
LINES = 12
CHARACTERS = 64  # characters in a line
BETWEEN = 0.4  # lines between two blocks
TABLE_CHARACTERS = 95  # characters in a row
TABLE_ROW, TABLE_LINE = 0.95, 0.68  # the height of a row of one line, and of each further line: letters are smaller
TABLE_LINES = LINES - 2  # the height of a table, at most: a line of text goes with it
CODE_LINE = 0.8  # lines of text that are as high as one of code
FORMULA = 3  # lines that are as high as a formula
BESIDE_PICTURE = 3.5  # lines of text that go with a picture
AROUND_PICTURE = 5  # lines of text above and below a picture, which is smaller then
FEW = 3  # lines of text that are no slide of their own where that can be avoided
# What a slide costs, and what is bad about it: the cheapest slides are taken.
A_SLIDE, TOO_FEW, ONE_ITEM, LED_AWAY, UNEVEN = 100, 60, 30, 200, 0.1
DIAGRAM = "```mermaid\n"
BOX = re.compile('<div class="[^"]*alert-info')  # the beginning of a "Guess first"


class Slide(NamedTuple):
    """A slide: what it is (text, question, exercise, picture or break), heading, what it shows, the speaker's notes.

    `place` says which of several slides with its heading it is, "2 of 3".
    """

    kind: str
    heading: str
    shown: Markup
    notes: Markup
    place: str = ""


class Deck(NamedTuple):
    """A lab's slides, or a break's: number, title, and the slides of its beginning and of each section.

    A deck that goes on, after a break, has no beginning.
    """

    number: str
    title: str
    parts: tuple[tuple[Slide, ...], ...]
    goes_on: bool = False


class _Group(NamedTuple):
    """Blocks that begin a slide of their own; whether they are shown whole, not in short."""

    kind: str
    heading: str
    blocks: list[Block]
    whole: bool = False


class _Piece(NamedTuple):
    """Markdown that stays together: what is shown, what is for the notes, and how many lines are shown."""

    short: str
    full: str
    lines: float = 0

    @property
    def is_item(self) -> bool:
        """Whether it is of a list."""
        return bool(prose.MARKER.match(self.short))


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
    """Return the slides of a timetable in its order: labs by the sections that they do, breaks and talks.

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
        goes_on = any(one.number == entry.part.lab for one in decks)
        decks.append(deck(sources.find(entry.part.lab), results, taught, goes_on))
    return decks


def _pause(entry: Entry, following: Entry | None, timed: bool) -> Deck:
    """Return the slide of a break or a talk: until when, or how long, and what comes then."""
    until = f"Until **{entry.end:%H:%M}**" if timed else f"**{entry.minutes} minutes**"
    then = f"\n\nThen: {following.part.title}" if following else ""
    slide = Slide("break", entry.part.title, prose.to_html(until + then), Markup())
    return Deck("", entry.part.title, ((slide,),))


def deck(
    source: Path, results: Path, taught: Mapping[str, datetime | None] | None = None, goes_on: bool = False
) -> Deck:
    """Return the slides of a lab.

    Parameters
    ----------
    source : Path
        The lab's source; the pictures are those of its stored run.
    results : Path
        Where a rehearsal on this machine has left its `results-NN.json`, for the closing table.
    taught : mapping, optional
        The sections that are taught, with the times at which they should be over, where these are known; all
        sections, when it is not given.
    goes_on : bool
        Whether its beginning has been shown before.

    Raises
    ------
    LabError
        When the lab has no stored notebook, or has changed since.
    """
    number = source.stem[:2]
    if not notebooks.solution_path(source).exists():
        raise LabError(f"lab {number} has no stored run: ./lab build {number} --execute makes it.")
    if notebooks.drifted(source):
        raise LabError(f"lab {number} has changed since its run was stored: ./lab build {number} puts both together.")
    opening, *sections = minutes.by_section(notebooks.stored(source))
    plan = {section.name: section for section in minutes.plan(source)}
    table, measured = guide.closing_table(source, results)
    closing = [
        Block("heading", "Published and measured"),
        Block("paragraph", f"Measured {measured}."),
        *prose.blocks(table),
    ]
    title = sources.title(source)
    parts = []
    if not goes_on:
        parts.append(_slides(title, itertools.islice(_blocks(opening, closing), 1, None)))  # without the title
    for section in sections:
        if taught is None or section.name in taught:
            your_turn = _your_turn(plan[section.name], section.exercises, taught[section.name] if taught else None)
            parts.append(_slides(section.heading, _blocks(section, closing), plan[section.name], your_turn))
    return Deck(number, title, tuple(parts), goes_on)


def _blocks(section: Cells, closing: Sequence[Block]) -> Iterator[Block]:
    """Yield the blocks of a section to show or to say, in its order.

    Besides the blocks of its Markdown these are a question, a picture (as HTML), the end of an exercise, and what is
    for the notes alone: the instructor's own, and what leads to code.
    """
    for cell in section.cells:
        if cell.cell_type == "markdown" and guide.is_instructors(cell):
            yield Block("notes", cell.source)
        elif cell.cell_type == "markdown":
            *blocks, last = [*_with_whole_questions(prose.blocks(cell.source))] or [Block("notes", cell.source)]
            yield from map(_drawn, blocks)
            yield Block("notes", last.text) if last.text.endswith(":") else _drawn(last)
        elif guide.has_closing_table(cell):
            yield from closing if cell.outputs else ()
        else:
            for output in cell.outputs:
                yield from (Block("picture", picture) for picture in _pictures(output))
            yield from (Block("end of exercise", "") for _ in sources.checks(cell))


def _drawn(block: Block) -> Block:
    """Return a block of a diagram as a picture, or as what says it in words; others as they are."""
    if not block.text.startswith(DIAGRAM):
        return block
    drawn = prose.diagram(block.text.removeprefix(DIAGRAM).removesuffix("```"))
    return Block("picture", drawn) if _Images(drawn).images else Block("diagram", drawn)


def _with_whole_questions(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks, those in a box "Guess first" as one question."""
    box: list[str] | None = None
    for block in blocks:
        if box is None and block.kind == "html_block" and BOX.match(block.text):
            box = []
        elif box is not None and block.kind == "html_block" and block.text == "</div>":
            yield Block("question", "\n\n".join(box))
            box = None
        elif box is not None:
            box.append(block.text)
        else:
            yield block
    if box:
        yield Block("question", "\n\n".join(box))


class _Images(HTMLParser):
    """Finds the images that are in an output, not in a file beside it, as (source, alternative text)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an image."""
        has = dict(attrs)
        if tag == "img" and (source := has.get("src") or "").startswith("data:"):
            self.images.append((source, has.get("alt") or ""))


def _pictures(output: NotebookNode) -> list[str]:
    """Return the pictures of a cell's output, with their alternative text."""
    data = output.get("data", {})
    images = _Images(data.get("text/html", "")).images
    if png := data.get("image/png"):
        images.append((f"data:image/png;base64,{png.strip()}", output.metadata.get("image/png", {}).get("alt", "")))
    return [f'<img src="{html.escape(source)}" alt="{html.escape(alt)}">' for source, alt in images]


def _slides(
    heading: str, blocks: Iterable[Block], plan: Section | None = None, your_turn: str = ""
) -> tuple[Slide, ...]:
    """Return the slides of a section in its order; one at least."""
    slides: list[Slide] = []
    for group in _without_small(_groups(heading, blocks)):
        for shown, notes in _shared_out(group):
            if slides and not shown and group.kind == "text":
                slides[-1] = slides[-1]._replace(notes=slides[-1].notes + notes)
                continue
            if your_turn and group.kind == "exercise" and (not slides or group.heading != slides[-1].heading):
                shown = prose.to_html(your_turn) + shown
            slides.append(Slide(group.kind, group.heading, shown, notes))
    if len(slides) > 1 and not slides[0].shown and slides[1].heading == heading:
        slides[:2] = [slides[1]._replace(notes=slides[0].notes + slides[1].notes)]
    if plan:
        times = f"*{plan.read:g} minutes to read and run, {plan.do:g} to do, {plan.wait:g} of waiting.*"
        slides[0] = slides[0]._replace(notes=prose.to_html(times) + slides[0].notes)
    return _numbered(slides)


def _numbered(slides: Sequence[Slide]) -> tuple[Slide, ...]:
    """Return slides that say which of those with their heading they are, where there are several."""
    of_all, so_far = Counter(slide.heading for slide in slides), Counter[str]()
    numbered = []
    for slide in slides:
        so_far[slide.heading] += 1
        count = of_all[slide.heading]
        numbered.append(slide._replace(place=f"{so_far[slide.heading]} of {count}" if count > 1 else ""))
    return tuple(numbered)


def _groups(heading: str, blocks: Iterable[Block]) -> list[_Group]:
    """Return blocks in groups, each of which begins a slide."""
    groups = [_Group("text", heading, [])]
    for block in blocks:
        last = groups[-1]
        if block.kind == "heading":
            title = block.text.lstrip("# ")
            groups.append(_Group("exercise" if title.startswith("Exercise ") else "text", title, []))
        elif block.kind == "picture" and last.kind == "text" and _height(last.blocks) <= BESIDE_PICTURE:
            groups[-1:] = [_Group("picture", last.heading, [*last.blocks, block]), _Group("text", last.heading, [])]
        elif block.kind in ("question", "picture"):
            groups += [_Group(block.kind, last.heading, [block]), _Group("text", last.heading, [])]
        elif block.kind == "end of exercise":
            groups.append(_Group("text", heading, []))
        else:
            last.blocks.append(block)
    return groups


def _without_small(groups: Sequence[_Group]) -> list[_Group]:
    """Return groups of which none is text of a few lines, where that can be avoided.

    Such text is shown whole; if that is as little, it leads to the question behind it, or stands below the picture
    before it. After an exercise it is for the speaker to say.
    """
    kept: list[_Group] = []
    leading: list[Block] = []  # to the next group, which is a question
    for group, following in itertools.zip_longest(groups, groups[1:]):
        group, leading = group._replace(blocks=[*leading, *group.blocks]), []
        if group.kind == "text" and 0 < _height(group.blocks) < FEW:
            before = kept[-1] if kept and kept[-1].heading == group.heading else None
            if FEW <= _height(group.blocks, whole=True) <= LINES:
                group = group._replace(whole=True)
            elif following and following.kind == "question" and following.heading == group.heading:
                leading = group.blocks
                continue
            elif before and before.kind == "picture" and _height([*_prose(before), *group.blocks]) <= AROUND_PICTURE:
                kept[-1] = before._replace(blocks=[*before.blocks, *group.blocks])
                continue
            elif kept and kept[-1].kind == "exercise":
                group = group._replace(blocks=[Block("notes", block.text) for block in group.blocks])
        kept.append(group)
    return kept


def _prose(group: _Group) -> list[Block]:
    """Return what stands beside a group's picture or question."""
    return [block for block in group.blocks if block.kind not in ("picture", "question")]


def _your_turn(plan: Section, exercises: Sequence[int], until: datetime | None) -> str:
    """Return a line on how long a section's exercises take; the plan has their time together."""
    if not exercises or not plan.do:
        return ""
    first, last = exercises[0], exercises[-1]
    which = f"exercise {first}" if first == last else f"exercises {first} {'and' if last - first == 1 else 'to'} {last}"
    together = " together" * (len(exercises) > 1)
    return f"**Your turn:** {which}, about {plan.do:g} minutes{together}{f', until {until:%H:%M}' if until else ''}."


def _shared_out(group: _Group) -> Iterator[tuple[Markup, Markup]]:
    """Yield the text and the notes of each slide of a group; one at least."""
    if group.kind in ("picture", "question"):
        place = next(i for i, block in enumerate(group.blocks) if block.kind == group.kind)
        above, below = (
            _rendered([piece for block in blocks for piece in _pieces(block)])
            for blocks in (group.blocks[:place], group.blocks[place + 1 :])
        )
        shown, notes = _picture(group.blocks[place]) if group.kind == "picture" else _question(group.blocks[place])
        yield above[0] + shown + below[0], above[1] + notes + below[1]
        return
    whole = group.whole or (group.kind == "exercise" and _height(group.blocks, whole=True) <= LINES)
    pieces = [piece for block in group.blocks for piece in _pieces(block, whole)]
    for page in _pages(pieces):
        yield _rendered(page)


def _picture(block: Block) -> tuple[Markup, Markup]:
    ((_, alt),) = _Images(block.text).images
    return Markup(block.text), Markup("<p>The picture: {}</p>").format(alt)


def _question(block: Block) -> tuple[Markup, Markup]:
    asked = Markup('<div class="box">{}</div>').format(prose.to_html(block.text, 1))
    return asked, prose.to_html("Ask, and see hands for each answer, before you show what comes next.")


def _pages(pieces: Sequence[_Piece]) -> list[Sequence[_Piece]]:
    """Return pieces in slides, the cheapest way."""
    best: list[tuple[float, int]] = [(0, 0)]  # the cost of the pieces up to each place, and where its last slide begins
    for end in range(1, len(pieces) + 1):
        costs = ((best[begin][0] + _cost(pieces, begin, end), begin) for begin in range(end))
        best.append(min(costs))
    pages, end = [], len(pieces)
    while end:
        begin = best[end][1]
        pages.append(pieces[begin:end])
        end = begin
    return pages[::-1] or [()]


def _cost(pieces: Sequence[_Piece], begin: int, end: int) -> float:
    """Return what a slide of some pieces costs."""
    shown = [piece for piece in pieces[begin:end] if piece.lines]
    if not shown:
        return A_SLIDE
    lines = sum(piece.lines for piece in shown)
    if lines > LINES and len(shown) > 1:
        return math.inf
    rest = next((piece for piece in pieces[end:] if piece.lines), None)
    before = next((piece for piece in reversed(pieces[:begin]) if piece.lines), None)
    led_away = rest is not None and shown[-1].short.endswith(":")
    first_of_list = rest is not None and rest.is_item and shown[-1].is_item and not (shown[-2:-1] and shown[-2].is_item)
    last_of_list = len(shown) == 1 and before is not None and before.is_item and shown[0].is_item
    return (
        A_SLIDE
        + TOO_FEW * (lines < FEW)
        + LED_AWAY * led_away
        + ONE_ITEM * (first_of_list + last_of_list)
        + UNEVEN * (LINES - lines) ** 2
    )


def _height(blocks: Iterable[Block], whole: bool = False) -> float:
    """Return the height of blocks, in lines."""
    return sum(piece.lines for block in blocks for piece in _pieces(block, whole))


def _rendered(pieces: Sequence[_Piece]) -> tuple[Markup, Markup]:
    """Return the text and the notes of a slide."""
    shown = prose.to_html("\n\n".join(piece.short for piece in pieces if piece.short), 1)
    return shown, prose.to_html("\n\n".join(piece.full for piece in pieces if piece.full), 1)


def _pieces(block: Block, whole: bool = False) -> Iterator[_Piece]:
    """Yield the pieces of a block on slides: the point of prose or the whole, a table in parts."""
    text = block.text
    match block.kind:
        case "paragraph" | "list_item":
            short = text if whole else prose.in_short(block)
            yield _fitting(short, text, _lines(short))
        case "table":
            yield from _parts_of_table(text)
        case "fence":
            yield _fitting(text, text, CODE_LINE * text.count("\n"))
        case "diagram":
            yield _Piece(text, text, _lines(Markup(text).striptags()))
        case "math_block":
            yield _Piece(text, text, FORMULA)
        case _:  # notes, HTML
            yield _Piece("", text)


def _fitting(short: str, full: str, lines: float) -> _Piece:
    """Return a piece; what fits on no slide is for the notes alone."""
    return _Piece(short, full, lines) if lines <= LINES else _Piece("", full)


def _lines(text: str) -> float:
    """Return the height of prose, in lines, with the space below."""
    return sum(math.ceil(len(prose.plain(part)) / CHARACTERS) + BETWEEN for part in text.split("\n\n"))


def _parts_of_table(text: str) -> Iterator[_Piece]:
    """Yield a table in parts that fit on a slide, each with its head."""
    head, rule, *rows = text.split("\n")
    cells = [[len(prose.plain(cell)) for cell in row.strip("| ").split("|")] for row in (head, *rows)]
    widest = [max(column) for column in itertools.zip_longest(*cells, fillvalue=0)]
    widths = [max(8.0, TABLE_CHARACTERS * most / max(1, sum(widest))) for most in widest]
    high = [
        TABLE_ROW
        + TABLE_LINE * max(max(1, math.ceil(cell / width)) - 1 for cell, width in zip(row, widths, strict=False))
        for row in cells
    ]
    if not rows:
        yield _Piece(text, text, high[0])
        return
    above = [0.0, *itertools.accumulate(high[1:])]
    for count in range(1, len(rows) + 1):  # as few parts as fit, equally high
        parts = [int(count * (begin + end) / (2 * above[-1])) for begin, end in itertools.pairwise(above)]
        heights = [
            high[0] + sum(one for one, part in zip(high[1:], parts, strict=True) if part == i) for i in range(count)
        ]
        if max(heights) <= TABLE_LINES:
            break
    for i, lines in enumerate(heights):
        of_part = [row for row, part in zip(rows, parts, strict=True) if part == i]
        yield _Piece("\n".join([head, rule, *of_part]), "" if i else text, lines)
