import matplotlib.pyplot as plt
import pytest

from labkit.display import plots
from labkit.display.results import Results
from labkit.system.load import BUSY_MARK, Contention

LONG = "A title that is far too long for the picture below it, as wordy titles tend to be"


@pytest.fixture
def shown(monkeypatch):
    """Return the pages that `plots.show` displays."""
    pages = []
    monkeypatch.setattr(plots, "display", lambda page, raw: pages.append(page))
    return pages


@pytest.mark.parametrize("columns", [1, 2])
def test_long_titles_are_wrapped_not_cut(columns):
    figure, grid = plt.subplots(1, columns, figsize=(6, 3), squeeze=False)
    for axes in grid.flat:
        axes.set_title(LONG)
    figure.suptitle(LONG * 2)
    plots.png(figure)
    assert "\n" in figure.get_suptitle()
    for axes in grid.flat:
        assert axes.title.get_text().replace("\n", " ") == LONG
        assert axes.title.get_window_extent().width <= figure.bbox.width / columns


def test_a_picture_of_a_disturbed_run_is_marked_and_keeps_its_title(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Results("02")
    quiet, busy = Contention("section 4", share=0.0), Contention("section 5", share=0.5, busy=True)
    for watched in ([quiet], [quiet, busy, busy]):
        figure, axes = plt.subplots()
        axes.set_title("Speed")
        plots.show(figure, alt="Speed by threads.", keep=results, watched=watched)
    assert shown[0]["text/plain"] == "Speed by threads."
    assert shown[1]["text/plain"] == (
        f"Speed by threads. {BUSY_MARK}: other work used the cores meanwhile (section 5)."
    )
    assert list(results._read()["pictures"]) == ["Speed"]
