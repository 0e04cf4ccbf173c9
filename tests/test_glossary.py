"""Every glossary term is used, and each entry has its form; `lab lint` checks the labs' links to it."""

import re

from labkit_author import glossary, sources
from labkit_author.glossary import anchor

TEXT = glossary.text()
ENTRIES = glossary.entries(TEXT)
LABS = sources.labs()


def names(text, term):
    """Return whether a text contains a term: in any case, singular or plural, with spaces, hyphens or line breaks."""
    parts = re.split(r"[ -]", term)
    return re.search(r"(?<!\w)" + r"[\s#-]*".join(map(re.escape, parts)) + r"s?(?!\w)", text, flags=re.I)


def test_every_heading_is_an_entry():
    headings = re.findall(r"^### (.+)$", TEXT, flags=re.M)
    assert sorted(headings) == sorted(set(headings))
    assert headings == list(ENTRIES)
    assert headings == sorted(headings, key=lambda term: re.sub(r"[^a-z0-9]", "", term.lower()))


def test_links_work_in_jupyterlab():
    # JupyterLab's fragment is the unchanged heading, with hyphens for spaces. Other headings have an explicit target.
    targets = {term.replace(" ", "-") for term in ENTRIES} | set(re.findall(r'^<a id="(.+)"></a>$', TEXT, flags=re.M))
    assert {anchor(term) for term in ENTRIES} <= targets
    assert len({anchor(term) for term in ENTRIES}) == len(ENTRIES)


def test_every_term_is_used():
    labs = "\n".join(lab.read_text() for lab in LABS)
    for term in ENTRIES:
        others = "\n".join(entry for name, entry in ENTRIES.items() if name != term)
        used = f"glossary.md#{anchor(term)})" in labs or names(labs, term) or names(others, term)
        assert used, f"no lab and no other entry has '{term}'"


def test_entries_name_labs_that_exist():
    numbers = {lab.stem[:2] for lab in LABS}
    for term, entry in ENTRIES.items():
        search = re.fullmatch(r"Search for: .+; labs? (\d\d(?:, \d\d)*)\.", entry.split("\n")[-1])
        assert search, f"'{term}': the last line is 'Search for: …; labs 06, 07.'"
        assert set(search[1].split(", ")) <= numbers, f"'{term}' names a lab that does not exist"
