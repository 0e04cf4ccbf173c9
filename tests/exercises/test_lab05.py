import itertools

import numpy as np
import pytest
from labs import ThreeWays
from scipy.stats import norm

from labkit.system.paths import DATA
from labkit_author import sources


class TestExercises(ThreeWays):
    lab = "05"
    names = {"norm": norm}


@pytest.fixture(scope="module")
def lab():
    """Return the names that sections 1 to 4 define, with the solutions, without what they print."""
    names = {"QUICK": True, "DATA": DATA, "check": lambda number, answer: answer}
    cells = [cell.source for cell in sources.solved(sources.read(sources.find("05"))).cells if cell.cell_type == "code"]
    end = next(n for n, cell in enumerate(cells) if 'mine["with a memory"]' in cell)
    for cell in cells[: end + 1]:
        if not any(word in cell for word in ("open_lab", "results.", "QUICK =")):
            exec(cell, names)
    return names


def test_a_search_sees_three_launches_of_each_point_and_keeps_the_others(lab):
    grid, points = lab["grid"], lab["points"]
    assert points == [*itertools.product(*lab["values"].values())]
    assert (grid.groupby(lab["KNOBS"]).size() == 6).all()
    (shown, kept), (others, _) = (lab["split"](np.random.default_rng(seed)) for seed in range(2))
    assert not np.array_equal(shown, others)
    for number in (0, 17, 95):
        own = grid[(grid[lab["KNOBS"]] == list(points[number])).all(axis="columns")].images_s.tolist()
        for launch in shown[number]:
            own.remove(launch)
        assert len(own) == 3
        assert kept[number] == np.median(own)


@pytest.mark.slow
def test_a_search_with_a_memory_keeps_more_than_random_search(lab):
    def kept(choose):
        speeds_kept = []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            shown, again = lab["split"](rng)
            tried, speeds = lab["search"](choose, rng, shown)
            speeds_kept.append(again[tried[np.argmax(speeds)]])
        return np.mean(speeds_kept)

    assert kept(lab["at_random"]) < kept(lab["with_memory"])
