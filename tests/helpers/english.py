"""Sentences that stand out, apart from the phrases in phrases.toml."""

import re
from collections.abc import Iterator

MAX_COLON_SHARE = 0.12  # of a text's sentences: beyond it, colons stand for verbs
NO_PROSE = re.compile(r"\s*(?:[-*+]|\d+\.|\||#|<|:::)")  # lists, tables, headings, HTML
FENCED = re.compile(r"^ *(```|\$\$).*?^ *\1", re.M | re.S)
INLINE = re.compile(r"`[^`]*`|\$[^$\n]*\$|\]\([^)]*\)|https?://\S+")


def sentences(markdown: str) -> Iterator[str]:
    """Yield the sentences of a text's paragraphs; what is quoted as code or a formula counts as a word."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )", FENCED.sub("", markdown)):
        if not NO_PROSE.match(paragraph):
            text = " ".join(INLINE.sub("X", paragraph).split())
            yield from re.split(r"(?<=[.!?])[\"”)*]* +(?=[A-Z\"“*\[])", text)


def conspicuous(markdown: str) -> list[str]:
    """Return the sentences of a text that begin with a digit, and those with a colon if these are too many."""
    prose = [sentence for sentence in sentences(markdown) if len(sentence.split()) > 2]
    colons = [sentence for sentence in prose if re.search(r":(?:\s|\*|$)", sentence)]
    few = len(colons) <= 1 + MAX_COLON_SHARE * len(prose)
    return [sentence for sentence in prose if re.match(r"\d", sentence)] + ([] if few else colons)
