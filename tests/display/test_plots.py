import matplotlib.pyplot as plt
import pytest

from labkit.display import plots
from labkit.display.results import Results
from labkit.system.load import BUSY_MARK, Others

LONG = "A title that is far too long for the picture that it stands above, as titles with many words are"


@pytest.fixture
def shown(monkeypatch):
    """Return what `plots.show` displays."""
    pages = []
    monkeypatch.setattr(plots, "display", lambda page, raw: pages.append(page))
    return pages


@pytest.mark.parametrize("columns", [1, 2])
def test_a_title_that_is_too_long_is_broken_and_not_cut(columns):
    figure, axes = plt.subplots(1, columns, figsize=(6, 3), squeeze=False)
    for each in axes.flat:
        each.set_title(LONG)
    plots.png(figure)
    for each in axes.flat:
        assert each.title.get_text().replace("\n", " ") == LONG
        assert each.title.get_window_extent().width <= figure.bbox.width / columns


def test_a_long_title_of_a_figure_is_broken_too():
    figure, _ = plt.subplots(figsize=(6, 3))
    figure.suptitle(LONG)
    plots.png(figure)
    assert "\n" in figure.get_suptitle()


def test_a_picture_of_a_disturbed_run_says_so_and_keeps_its_title(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Results("02")
    quiet, busy = Others("section 4", share=0.0), Others("section 5", share=0.5, busy=True)
    for watched in ([quiet], [quiet, busy, busy]):
        figure, axes = plt.subplots()
        axes.set_title("Speed")
        plots.show(figure, alt="Speed by threads.", keep=results, watched=watched)
    assert shown[0]["text/plain"] == "Speed by threads."
    assert shown[1]["text/plain"] == (f"Speed by threads. {BUSY_MARK}: other work had the cores meanwhile (section 5).")
    assert list(results._read()["pictures"]) == ["Speed"]
