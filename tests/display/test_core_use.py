import math
import threading
import time

import numpy as np
import pytest

from labkit.display import core_use, plots
from labkit.system.load import TICK_S


def stat(root, *ticks):
    """Write the counters of CPUs 0, 1, …: user, nice, system, idle, iowait, irq, softirq, steal."""
    (root / "proc").mkdir(exist_ok=True)
    rows = "".join(f"cpu{cpu} {' '.join(map(str, row))}\n" for cpu, row in enumerate(ticks))
    (root / "proc/stat").write_text(f"cpu  1 2 3 4\n{rows}intr 5\n")


def sample(tmp_path, monkeypatch, *ticks, cpus=(0, 2), seconds=1.0):
    clock = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stat(tmp_path, *[[0] * 8] * 3)
    use = core_use.CoreUse(cpus, tmp_path)
    stat(tmp_path, *ticks)
    use.sample()
    return use


def test_use_excludes_idle_waiting_and_stolen_time_and_other_cores(tmp_path, monkeypatch):
    hundred = round(1 / TICK_S)
    half = hundred // 2
    use = sample(tmp_path, monkeypatch, [half, 0, 0, half, 0, 0, 0, 0], [9] * 8, [1, 2, 3, 4, 900, 5, 6, 700])
    assert use.shares[0] == pytest.approx([half / hundred, 17 / hundred])
    assert use.times == [1.0]
    assert core_use.describe(use.cpus, use.shares[0]) == "core 0 50%, core 2 17%"
    assert 'aria-label="core 0 50%, core 2 17%"' in core_use.bars(use)


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_the_picture_has_a_row_for_each_core_and_labelled_axes(cores, tmp_path, monkeypatch):
    use = sample(tmp_path, monkeypatch, [9] * 8, cpus=(0,))
    use.cpus, use.times = tuple(range(cores)), [0.25, 0.5]
    use.shares = [np.full(cores, 0.5), np.full(cores, 1.0)]
    assert use.mean == pytest.approx([0.75] * cores)
    assert use.all_busy == pytest.approx(0.5)
    figure = core_use.draw(use, "while it ran")
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("seconds", "core")
    assert axes.collections[0].get_array().shape == (cores, 2)
    assert 1 <= len(axes.get_yticks()) <= core_use.MAX_NAMED
    core_use.plt.close(figure)


def test_live_leaves_a_picture_with_alternative_text_and_no_thread(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(plots, "show", lambda figure, alt: shown.append(alt))
    threads = threading.active_count()
    with pytest.raises(KeyError), core_use.live():
        raise KeyError
    with core_use.live("during a pause") as use:
        time.sleep(0.6)
    assert threading.active_count() == threads
    assert len(shown) == 1
    assert shown[0].startswith("Mean CPU use per core during a pause, 1 s: core ")
    assert len(use.times) >= 2


def test_if_the_kernel_shows_no_cores_the_block_runs_and_use_is_unknown(tmp_path, capsys):
    with core_use.live(root=tmp_path) as use:
        print("ran")
    assert math.isnan(use.all_busy)
    assert capsys.readouterr().out.splitlines()[-2:] == ["ran", core_use.UNKNOWN]
