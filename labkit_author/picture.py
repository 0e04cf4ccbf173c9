"""Copy the README's picture from lab 07's stored run."""

import base64
import re
from pathlib import Path

from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import build, sources
from labkit_author.notebooks import write_changed

LAB = "07"
ALT = "Test accuracy against epochs and against seconds"  # how its alternative text begins
FILE = "docs/lab07.png"
INLINE = re.compile(rf'<img src="data:image/png;base64,([^"]+)" alt="{ALT}')


def stored() -> bytes | None:
    """Return the picture in the stored notebook; None while the notebook has no outputs.

    Raises
    ------
    LabError
        If it has outputs, but none is this picture.
    """
    outputs = [output for cell in build.stored(sources.find(LAB)).cells for output in cell.get("outputs", [])]
    for output in outputs:
        if match := INLINE.search(output.get("data", {}).get("text/html", "")):
            return base64.b64decode(match[1])
    if outputs:
        raise LabError(f'no picture in lab {LAB} has alternative text that begins "{ALT}": update picture.ALT.')
    return None


def write() -> Path | None:
    """Copy the picture into `docs/`; return its path if it changed."""
    png = stored()
    return write_changed(paths.ROOT / FILE, png) if png else None
