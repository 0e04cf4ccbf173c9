"""The glossary has no term that nobody meets, and each entry has its form; `lab lint` holds the labs' links to it."""

import re

from labkit_author import glossary, sources
from labkit_author.glossary import anchor

TEXT = glossary.text()
ENTRIES = glossary.entries(TEXT)
LABS = sources.labs()


def names(text, term):
    """Whether a text has a term, in any case, in the plural or not, with spaces, hyphens or line breaks in it."""
    parts = re.split(r"[ -]", term)
    return re.search(r"(?<!\w)" + r"[\s#-]*".join(map(re.escape, parts)) + r"s?(?!\w)", text, flags=re.I)


def test_every_heading_is_an_entry_of_two_lines():
    headings = re.findall(r"^### (.+)$", TEXT, flags=re.M)
    assert sorted(headings) == sorted(set(headings))
    assert headings == list(ENTRIES)
    assert headings == sorted(headings, key=lambda term: re.sub(r"[^a-z0-9]", "", term.lower()))


def test_links_work_in_jupyterlab():
    # JupyterLab's fragment is the heading as it is written, with hyphens for spaces. Others have a target before them.
    own = {term.replace(" ", "-") for term in ENTRIES} | set(re.findall(r'^<a id="(.+)"></a>$', TEXT, flags=re.M))
    assert {anchor(term) for term in ENTRIES} <= own
    assert len({anchor(term) for term in ENTRIES}) == len(ENTRIES)


def test_every_term_is_met():
    labs = "\n".join(lab.read_text() for lab in LABS)
    for term in ENTRIES:
        others = "\n".join(entry for name, entry in ENTRIES.items() if name != term)
        met = f"glossary.md#{anchor(term)})" in labs or names(labs, term) or names(others, term)
        assert met, f"no lab and no other entry has '{term}'"


def test_entries_name_labs_that_exist():
    numbers = {lab.stem[:2] for lab in LABS}
    for term, entry in ENTRIES.items():
        search = re.fullmatch(r"Search for: .+; labs? (\d\d(?:, \d\d)*)\.", entry.split("\n")[1])
        assert search, f"'{term}': the second line is 'Search for: …; labs 06, 07.'"
        assert set(search[1].split(", ")) <= numbers, f"'{term}' names a lab that does not exist"
