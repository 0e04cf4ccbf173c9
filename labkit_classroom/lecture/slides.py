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
from collections.abc import Collection, Iterable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import jinja2
from nbformat import NotebookNode

from labkit.exercises import minutes, notebooks, sources
from labkit.exercises.minutes import Cells, Section
from labkit.system.errors import LabError
from labkit_classroom.lecture import guide, prose
from labkit_classroom.lecture.prose import Block, Markup

TEMPLATE = Path(__file__).with_suffix(".html")
REVEAL = Path(__file__).parent / "reveal"
# Lines of text that fit on a slide: an estimate. The page makes smaller what is too high all the same.
LINES = 11.5
CHARACTERS = 61  # characters in a line
BETWEEN = 0.4  # lines between two blocks
TABLE_CHARACTERS, TABLE_LINE = 95, 0.95  # characters in a row, and its height in lines: smaller, with more space
CODE_LINE = 0.8  # lines of text that are as high as one of code
FORMULA = 3  # lines that are as high as a formula
BESIDE_PICTURE = 3.5  # lines of text that go with a picture
BOX = re.compile('<div class="[^"]*alert-info')  # the beginning of a "Guess first"


class Slide(NamedTuple):
    """A slide: what it is (text, question, exercise or picture), heading, what it shows, and the speaker's notes."""

    kind: str
    heading: str
    shown: Markup
    notes: Markup


class Deck(NamedTuple):
    """A lab's slides: its number and title, and the slides of its beginning and of each section."""

    number: str
    title: str
    parts: tuple[tuple[Slide, ...], ...]


class _Group(NamedTuple):
    """Blocks that begin a slide of their own."""

    kind: str
    heading: str
    blocks: list[Block]


class _Piece(NamedTuple):
    """Markdown that stays together: what is shown, what is for the notes, and how many lines are shown."""

    short: str
    full: str
    lines: float = 0


def render(title: str, decks: Sequence[Deck]) -> str:
    """Return the slides, as a page."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["inline"] = prose.inline
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    reveal = {path.name: Markup(_inside_a_page(path)) for path in REVEAL.glob("*.[jc]s*")}
    return template.render(title=title, decks=decks, reveal=reveal)


def _inside_a_page(path: Path) -> str:
    """Return a script or a style sheet such that nothing in its texts looks like a tag to the page's parser."""
    return re.sub(r"<(?=!--|/?script|/style)", r"\\x3C", path.read_text(encoding="utf-8"))


def deck(source: Path, results: Path, chosen: Collection[str] | None = None) -> Deck:
    """Return the slides of a lab.

    Parameters
    ----------
    source : Path
        The lab's source; the pictures are those of its stored run.
    results : Path
        Where a rehearsal on this machine has left its `results-NN.json`, for the closing table.
    chosen : collection of str, optional
        The sections that are taught; all, when it is not given.

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
        *prose.blocks(table),
        Block("paragraph", f"Measured {measured}."),
    ]
    title = sources.title(source)
    parts = [_slides(title, itertools.islice(_blocks(opening, closing), 1, None))]  # without the title
    for section in sections:
        if chosen is None or section.name in chosen:
            parts.append(_slides(section.heading, _blocks(section, closing), plan[section.name], section.exercises))
    return Deck(number, title, tuple(parts))


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
            yield from blocks
            yield Block("notes", last.text) if last.text.endswith(":") else last
        elif guide.has_closing_table(cell):
            yield from closing if cell.outputs else ()
        else:
            for output in cell.outputs:
                yield from (Block("picture", picture) for picture in _pictures(output))
            yield from (Block("end of exercise", "") for _ in sources.checks(cell))


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
    heading: str, blocks: Iterable[Block], plan: Section | None = None, exercises: Sequence[int] = ()
) -> tuple[Slide, ...]:
    """Return the slides of a section in its order; one at least."""
    slides: list[Slide] = []
    for group in _groups(heading, blocks):
        for shown, notes in _shared_out(group):
            if slides and not shown and group.kind == "text":
                slides[-1] = slides[-1]._replace(notes=slides[-1].notes + notes)
                continue
            if plan and plan.do and group.kind == "exercise" and group.heading != slides[-1].heading:
                shown = prose.to_html(_time(plan, exercises)) + shown
            slides.append(Slide(group.kind, group.heading, shown, notes))
    if len(slides) > 1 and not slides[0].shown and slides[1].heading == heading:
        slides[:2] = [slides[1]._replace(notes=slides[0].notes + slides[1].notes)]
    if plan:
        times = f"*{plan.read:g} minutes to read and run, {plan.do:g} to do, {plan.wait:g} of waiting.*"
        slides[0] = slides[0]._replace(notes=prose.to_html(times) + slides[0].notes)
    return tuple(slides)


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


def _time(plan: Section, exercises: Sequence[int]) -> str:
    """Return a line on how long an exercise takes; the plan has the time of a section's exercises together."""
    if len(exercises) == 1:
        return f"*About {plan.do:g} minutes.*"
    return f"*Exercises {exercises[0]} to {exercises[-1]} take about {plan.do:g} minutes together.*"


def _shared_out(group: _Group) -> Iterator[tuple[Markup, Markup]]:
    """Yield the text and the notes of each slide of a group; one at least."""
    if group.kind == "picture":
        *before, picture = group.blocks
        shown, notes = _rendered([piece for block in before for piece in _pieces(block)])
        ((_, alt),) = _Images(picture.text).images
        yield shown + Markup(picture.text), notes + Markup("<p>The picture: {}</p>").format(alt)
        return
    whole = group.kind == "exercise" and _height(group.blocks, whole=True) <= LINES
    pieces = [piece for block in group.blocks for piece in _pieces(block, whole)]
    on_slide: list[_Piece] = []
    for piece, following in itertools.zip_longest(pieces, pieces[1:], fillvalue=_Piece("", "")):
        needed = piece.lines + (following.lines if piece.short.endswith(":") else 0)  # what it leads to stays with it
        if (
            piece.lines
            and sum(other.lines for other in on_slide) + needed > LINES
            and any(other.short for other in on_slide)
        ):
            yield _rendered(on_slide)
            on_slide = []
        on_slide.append(piece)
    yield _rendered(on_slide)


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
        case "question":
            yield _Piece(text, "Ask, and see hands for each answer, before you show what comes next.", _lines(text))
        case "table":
            yield from _parts_of_table(text)
        case "fence":
            yield _fitting(text, text, CODE_LINE * text.count("\n"))
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
        TABLE_LINE * max(math.ceil(cell / width) for cell, width in zip(row, widths, strict=False)) for row in cells
    ]
    part, lines, full = [head, rule], high[0], text
    for row, more in zip(rows, high[1:], strict=True):
        if len(part) > 2 and lines + more > LINES:
            yield _Piece("\n".join(part), full, lines)
            part, lines, full = [head, rule], high[0], ""
        part.append(row)
        lines += more
    yield _Piece("\n".join(part), full, lines)
