"""Generate the "On other machines" tables from `data/machines/`: in each lab's notes and `docs/other-machines.md`."""

from pathlib import Path

from labkit.display import machines
from labkit.system import paths
from labkit_author import sources
from labkit_author.notebooks import write_changed

PAGE = paths.ROOT / "docs" / "other-machines.md"
HEAD = """\
# On other machines

Figures of complete runs with the kit's software versions: `./lab build` writes this page from
`data/machines/`. [Add your machine](machines.md#your-machines-results).
"""


def page() -> str:
    """Return the page with all labs' tables."""
    tables = [(sources.title(source), machines.table(source.stem[:2])) for source in sources.labs()]
    parts = [f"## {title}\n\n{table}\n" for title, table in tables if table]
    return "\n".join([HEAD, *(parts or ["No results yet.\n"])])


def write() -> Path | None:
    """Write the page; return its file if it changed."""
    return write_changed(PAGE, page())
