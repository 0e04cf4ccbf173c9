"""Convert the labs' Markdown for self-contained pages: to HTML, to blocks, to short text."""

import base64
import functools
import html
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mermaid_render import mermaid_to_svg

IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)|<img[^>]*>")  # separate files, which a page does not include
MARKER = re.compile(r"(?:[-*+]|\d+[.)])\s+")
NESTED = re.compile(r"\n\s*(?=(?:[-*+]|\d+[.)])\s)")
SENTENCE_END = re.compile(r"(?<=[.?!])(?<!\b[A-Z]\.)(?:\*\*)?\s+(?=[*_(\[\"“]*[A-Z`$])")
SHORT = 140  # characters
# The title and description of a Mermaid diagram.
ACCESSIBLE = re.compile(r"^\s*acc(Title|Descr)\s*(?::\s*(.+)$|\{([^}]*)\})", re.M)


class Block(NamedTuple):
    """A block of Markdown: kind (the type of its markdown-it token, without `_open`) and text."""

    kind: str
    text: str


def to_html(text: str, deeper: int = 0) -> Markup:
    """Return Markdown as HTML: formulas as MathML, diagrams as pictures, no links between files.

    Parameters
    ----------
    text : str
        Markdown of the labs.
    deeper : int
        Number of levels to shift headings down by, to fit into the page.
    """
    parser = _parser()
    tokens = parser.parse(IMAGE.sub("", text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + deeper)}"
        for child in token.children or ():
            if child.type == "link_open" and not str(child.attrGet("href")).startswith(("https://", "http://")):
                child.attrs.clear()  # links to the kit's files would be dead outside the kit
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def inline(text: str) -> Markup:
    """Return a line of Markdown, such as a heading's, as HTML."""
    return Markup(_parser().renderInline(text))


def hint(text: str) -> Markup:
    """Return a hint as HTML: plain text, with code between backticks as the only markup."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False)))


def code(text: str) -> Markup:
    """Return code as HTML."""
    return Markup("<pre><code>{}</code></pre>\n").format(text)


def blocks(text: str) -> list[Block]:
    """Return the blocks of Markdown in order; each item of a list is a block."""
    lines = text.split("\n")
    blocks = []
    for token in _parser().parse(text):
        is_item = token.type == "list_item_open" and token.level == 1
        is_list = token.type in ("bullet_list_open", "ordered_list_open")
        if token.map and (is_item or (token.level == 0 and not is_list)):
            begin, end = token.map
            blocks.append(Block(token.type.removesuffix("_open"), "\n".join(lines[begin:end]).strip("\n")))
    return blocks


def in_short(block: Block) -> str:
    """Return the gist of a paragraph or list item: its first sentence, and more as long as that is short.

    It doesn't end in a question or a bold label, whose text follows.
    """
    marker = match[0] if block.kind == "list_item" and (match := MARKER.match(block.text)) else ""
    text = NESTED.split(block.text.removeprefix(marker))[0]
    ends = [end.end() for end in SENTENCE_END.finditer(text) if _is_closed(text[: end.end()])]
    points = [point for end in ends if not (point := text[:end].rstrip()).endswith(("?", "**"))] + [text]
    short = [point for point in points if len(plain(point)) <= SHORT]
    return marker + (short or points[:1])[-1]


def plain(text: str) -> str:
    """Return Markdown without links and emphasis, to measure its length."""
    return re.sub(r"\*\*|`|<[^>]*>", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def _is_closed(text: str) -> bool:
    """Whether emphasis, code, links and brackets are all closed at the end of a text."""
    pairs = all(text.count(begin) == text.count(end) for begin, end in ("()", "[]"))
    return pairs and text.count("`") % 2 == text.count("**") % 2 == 0


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.use(dollarmath_plugin, renderer=_formula)
    parser.add_render_rule("fence", _fence)
    return parser


def _formula(text: str, options: dict[str, Any]) -> str:
    """Return a formula as MathML or, if it can't be parsed, as it is written."""
    display = "block" if options["display_mode"] else "inline"
    try:
        return convert(text.strip(), display=display).replace('"block"', '"block" tabindex="0"', 1)  # wide ones scroll
    except Exception:  # the library's errors have no common base class
        return f"<code>{html.escape(text)}</code>"


def diagram(text: str) -> str:
    """Return a Mermaid diagram as HTML: a picture with alt text."""
    texts = {key: " ".join((line or lines).split()) for key, line, lines in ACCESSIBLE.findall(text)}
    title, description = (html.escape(texts.get(key, "")) for key in ("Title", "Descr"))
    # The SVG names only the font it was measured with, and browsers would fall back to a serif font.
    drawn = mermaid_to_svg(text).replace(b"Noto Sans", b"Noto Sans, Liberation Sans, Arial, sans-serif")
    svg = base64.b64encode(drawn).decode()
    return f'<img class="diagram" src="data:image/svg+xml;base64,{svg}" alt="{title}. {description}">\n'


def _fence(self: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType) -> str:
    """Render a block of code or a diagram."""
    token = tokens[index]
    return diagram(token.content) if token.info.strip() == "mermaid" else code(token.content)
