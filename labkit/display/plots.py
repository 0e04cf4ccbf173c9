"""The style of the labs' pictures, and `show`, which displays one with its alternative text."""

import base64
import html
import io
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from IPython.display import display
from matplotlib.figure import Figure

from labkit.display.results import Results
from labkit.system import files

# Okabe and Ito, "Color Universal Design" (2008): told apart with every common form of colour blindness.
BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, YELLOW, BLACK = PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#F0E442",
    "#000000",
)
MARKERS = "osD^vPX*"  # colour is never the only difference


def use_style() -> None:
    """Make matplotlib's pictures readable from the last row: large type, thick lines, the kit's colours."""
    mpl.rcParams.update(
        {
            "figure.figsize": (9, 4.5),
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "font.size": 13,
            "axes.prop_cycle": cycler(color=PALETTE, marker=list(MARKERS)),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "lines.linewidth": 2.5,
            "lines.markersize": 8,
            "legend.frameon": False,
        }
    )


def show(figure: Figure, alt: str, keep: Results | None = None) -> None:
    """Display a figure once, with its alternative text.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        It is closed afterwards, so that the notebook doesn't show it again.
    alt : str
        What the picture shows, for those who can't see it.
    keep : Results, optional
        Where to keep the picture too, for the student's report, under its title.
    """
    data = base64.b64encode(_png(figure)).decode()
    image = f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" style="max-width: 100%">'
    display({"text/html": image, "text/plain": alt}, raw=True)
    if keep is not None:
        keep.picture(figure.get_suptitle() or figure.axes[0].get_title(), data, alt)


def save(figure: Figure, file: Path) -> None:
    """Write a figure to a file, PNG, and close it."""
    files.write(file, _png(figure))


def _png(figure: Figure) -> bytes:
    """Return a figure as PNG, and close it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    plt.close(figure)
    return buffer.getvalue()
