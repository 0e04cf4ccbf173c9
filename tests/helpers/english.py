"""What a native reader stumbles over, as far as a pattern can tell."""

import re
from collections.abc import Iterator

MAX_COLON_SHARE = 0.12  # of a text's sentences: beyond it, colons stand for verbs
STUMBLES = re.compile(r", also |\bbut for\b|\bfrom (?:\d+|a few|two|three|four|five) \w+ on\b|, or (?:the|it) would\b")
NO_PROSE = re.compile(r"\s*(?:[-*+]|\d+\.|\||#|<|:::)")  # lists, tables, headings, HTML
FENCED = re.compile(r"^ *(```|\$\$).*?^ *\1", re.M | re.S)
INLINE = re.compile(r"`[^`]*`|\$[^$\n]*\$|\]\([^)]*\)|https?://\S+")


def sentences(markdown: str) -> Iterator[str]:
    """Yield the sentences of a text's paragraphs; what is quoted as code or a formula counts as a word."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )", FENCED.sub("", markdown)):
        if not NO_PROSE.match(paragraph):
            text = " ".join(INLINE.sub("X", paragraph).split())
            yield from re.split(r"(?<=[.!?])[\"”)*]* +(?=[A-Z\"“*\[])", text)


def stumbles(markdown: str) -> list[str]:
    """Return the stumbling places of a text, and its sentences with a colon if these are too many."""
    found = [match[0] for match in STUMBLES.finditer(FENCED.sub("", markdown))]
    prose = [sentence for sentence in sentences(markdown) if len(sentence.split()) > 2]
    found += [sentence for sentence in prose if re.match(r"\d", sentence)]
    colons = [sentence for sentence in prose if re.search(r":(?:\s|\*|$)", sentence)]
    return found + (colons if len(colons) > 1 + MAX_COLON_SHARE * len(prose) else [])
