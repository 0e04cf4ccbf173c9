"""Draw the README's picture: the ladder of the labs' stored run."""

from pathlib import Path

from labkit.display import ladder, plots
from labkit.system import paths
from labkit_author.notebooks import write_changed

FILE = "docs/ladder.png"


def write() -> Path | None:
    """Draw the steps in `solutions/work`, where all labs have just run; return the picture's path if it changed."""
    return write_changed(paths.ROOT / FILE, plots.png(ladder.draw(ladder.read(paths.SOLUTIONS / "work"))))
