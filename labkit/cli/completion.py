"""The values that the Tab key completes: labs and routes (`./lab --install-completion`).

A shell asks at each Tab, so nothing here imports what is slow.
"""

import tomllib

from labkit.system import paths


def labs(incomplete: str) -> list[tuple[str, str]]:
    """Return the numbers of the labs that begin so, each with its topic."""
    stems = sorted(path.stem for path in paths.SOLUTIONS.glob("[0-9][0-9]_*.py"))
    return [(stem[:2], stem[3:].replace("_", " ")) for stem in stems if stem.startswith(incomplete)]


def routes(incomplete: str) -> list[str]:
    """Return the names of the routes that begin so."""
    return [
        name for name in tomllib.loads((paths.SOLUTIONS / "routes.toml").read_text()) if name.startswith(incomplete)
    ]
