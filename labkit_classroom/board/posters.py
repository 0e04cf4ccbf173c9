"""The wall's address with the room's code, and that as a QR code."""

import functools
from itertools import groupby
from typing import Any

import segno

QUIET = 4  # modules of white around the picture, which readers need (ISO/IEC 18004)


def address(base: str, code: str) -> str:
    """Return the wall's address. The code stands behind #, which browsers never send."""
    return f"{base}/#{code}"


@functools.lru_cache(maxsize=4)
def picture(text: str) -> dict[str, Any]:
    """Return a text's QR code: `size`, in modules with the white around it, and `path`, an SVG path of the dark."""
    rows = [bytes(row) for row in segno.make(text, micro=False).matrix_iter(border=QUIET)]
    path = []
    for y, row in enumerate(rows):
        x = 0
        for dark, run in groupby(row):
            width = len(list(run))
            if dark:
                path.append(f"M{x} {y}h{width}v1h-{width}z")
            x += width
    return {"size": len(rows), "path": "".join(path)}
