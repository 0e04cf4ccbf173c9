"""The glossary, `docs/learn/glossary.md`: its terms, and how labs link to them."""

import functools
import re
from collections.abc import Iterator

from labkit.system import paths

PAGE = "../docs/learn/glossary.md"  # the glossary, as a lab links to it
LINK = re.compile(r"\(([^()\s]*glossary\.md[^()\s]*)\)")
BOLD = re.compile(r"(?P<link>\[)?\*\*(?P<term>[^*\n]+(?:\n# [^*\n]+)?)\*\*(?(link)\]\((?P<to>[^)]*)\))")


def text() -> str:
    """Return the page."""
    return (paths.ROOT / "docs" / "learn" / "glossary.md").read_text(encoding="utf-8")


@functools.cache
def entries(page: str) -> dict[str, str]:
    """Return the lines of each entry, by term."""
    return dict(re.findall(r"^### (.+)\n\n((?:.+\n)+.+)$", page, flags=re.M))


def anchor(term: str) -> str:
    """Return the fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", term.lower()).replace(" ", "-")


def problems(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and problem of each link to a missing term, and of each bold term that the lab never links."""
    terms_by_link = {f"{PAGE}#{anchor(term)}": term for term in entries(text())}
    linked = set(LINK.findall(source))
    for match in LINK.finditer(source):
        if match[1] not in terms_by_link:
            yield source.count("\n", 0, match.start()) + 1, f"{match[1]} is not an entry of docs/learn/glossary.md"
    terms = {_plain(term): (term, link) for link, term in terms_by_link.items()}
    for match in BOLD.finditer(source):
        term, link = terms.get(_plain(match["term"]), ("", ""))
        if term and not match["link"] and link not in linked:
            line = source.count("\n", 0, match.start()) + 1
            yield line, f"the term {match['term']!r} is bold but not linked: [**{match['term']}**]({link})"


def _plain(term: str) -> str:
    """Return a term in lower case and singular, with spaces instead of hyphens and line breaks."""
    return re.sub(r"[\s#-]+", " ", term).strip().lower().removesuffix("s")
