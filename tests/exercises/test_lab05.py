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


def test_the_oracle_shows_launches_1_to_3_and_keeps_4_to_6(lab):
    grid, points = lab["grid"], lab["points"]
    assert points == [*itertools.product(*lab["values"].values())]
    rng = np.random.default_rng(0)
    for number in (0, 17, 95):
        own = grid[(grid[lab["KNOBS"]] == list(points[number])).all(axis="columns")].set_index("launch").images_s
        assert {lab["launch"](number, rng) for _ in range(50)} == {*own[[1, 2, 3]]}
        assert lab["kept"][number] == np.median(own[[4, 5, 6]])


@pytest.mark.slow
def test_a_search_with_a_memory_keeps_more_than_random_search(lab):
    def kept(choose):
        found = [lab["search"](choose, np.random.default_rng(seed)) for seed in range(20)]
        return np.mean([lab["kept"][tried[np.argmax(speeds)]] for tried, speeds in found])

    assert kept(lab["at_random"]) < kept(lab["with_memory"])
