"""The tables "On other machines", from `data/machines/`: in each lab's notes, and in `docs/other-machines.md`."""

from pathlib import Path
from typing import Any

from labkit.display import machines, markdown
from labkit.system import paths
from labkit_author import sources
from labkit_author.notebooks import write_changed

PAGE = paths.ROOT / "docs" / "other-machines.md"
HEAD = """\
# On other machines

The figures of complete runs, with the kit's own versions of all software: `./lab build` writes this page from
`data/machines/`. [Add your machine](machines.md#your-machines-results).
"""


def table(lab: str) -> str:
    """Return the rows of a lab's closing table, a column for each machine, in Markdown; empty where there is none."""
    columns = {
        _describe(machine): {row["texts"][0]: row["texts"][2] for row in machine["labs"][lab]["rows"]}
        for machine in machines.read_all()
        if lab in machine["labs"]
    }
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [[name, *(column.get(name) or "–" for column in columns.values())] for name in names]
    return str(markdown.table(["", *columns], rows).data) if columns else ""


def page() -> str:
    """Return the page with the tables of all labs."""
    parts = [f"## {sources.title(source)}\n\n{text}\n" for source in sources.labs() if (text := table(source.stem[:2]))]
    return "\n".join([HEAD, *(parts or ["No results yet.\n"])])


def write() -> Path | None:
    """Write the page; return its file when that changed it."""
    return write_changed(PAGE, page())


def _describe(machine: dict[str, Any]) -> str:
    """Return a machine in words: "AMD EPYC, 2 cores, AVX, AVX2, AVX-512 (2026-11-26)"."""
    on = machine["on"]
    return f"{on['cpu']}, {on['cores']} cores, {on['instruction sets']} ({machine['when']})"
