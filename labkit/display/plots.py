"""The labs' plot style, and `show`, which displays a figure with its alternative text."""

import base64
import html
import io
import textwrap
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.display.results import Results
from labkit.system import files
from labkit.system.load import BUSY_MARK, LIMITED_BY_CORES, Contention

# Okabe and Ito, "Color Universal Design" (2008): distinguishable with every common form of colour blindness.
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
    """Make Matplotlib figures readable from the back row: large type, thick lines, the kit's colours."""
    mpl.rcdefaults()  # undo the user's matplotlibrc, such as text.usetex
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


def show(figure: Figure, alt: str, keep: Results | None = None, watched: Iterable[Contention] = ()) -> None:
    """Display a figure once, with its alternative text.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure, closed afterwards so that the notebook doesn't show it again.
    alt : str
        What the picture shows, for readers who can't see it.
    keep : Results, optional
        Results that also store the picture, under its title, for the student's report.
    watched : iterable of Contention
        Other work during the measurement (`load.watch`): the picture says so if it used the cores.
    """
    title = next(filter(None, (figure.get_suptitle(), *(axes.get_title() for axes in figure.axes))), "")
    busy = [other for other in watched if other.busy]
    if disturbed := ", ".join(dict.fromkeys(other.where or "this picture" for other in busy)):
        not_valid = any(other.doubt for other in busy)
        why = LIMITED_BY_CORES if not_valid else "other work used the cores meanwhile"
        mark = f"{BUSY_MARK}: {why} ({disturbed})"
        figure.text(0.5, 1.02, mark, ha="center", va="bottom", color="black", backgroundcolor=YELLOW)
        alt = f"{alt} {mark}."
    data = base64.b64encode(png(figure)).decode()
    image = f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" style="max-width: 100%">'
    display({"text/html": image, "text/plain": alt}, raw=True)
    if keep is not None:
        keep.picture(title, data, alt)


def save(figure: Figure, file: Path) -> None:
    """Write a figure to a PNG file, and close it."""
    files.write(file, png(figure))


def png(figure: Figure) -> bytes:
    """Return a figure as PNG with nothing cut off, and close it."""
    _wrap_titles(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", bbox_inches="tight", pad_inches=0.1)
    plt.close(figure)
    return buffer.getvalue()


def _wrap_titles(figure: Figure) -> None:
    """Wrap titles that are wider than their part of the figure."""
    figure.draw_without_rendering()
    width = figure.bbox.width
    titles = [(axes.title, width / _columns(axes)) for axes in figure.axes]
    titles += [(text, width) for text in figure.texts if text.get_text() == figure.get_suptitle()]
    for title, room in titles:
        text = title.get_text()
        if text and (wide := title.get_window_extent().width) > room:
            title.set_text(textwrap.fill(text.replace("\n", " "), max(12, int(len(text) * room / wide) - 2)))


def _columns(axes: Axes) -> float:
    """Return the number of such axes that fit side by side in their figure."""
    spec = axes.get_subplotspec()
    return spec.get_gridspec().ncols / len(spec.colspan) if spec else 1
