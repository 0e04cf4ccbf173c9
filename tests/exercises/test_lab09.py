import json
import math
from pathlib import Path

import lab_cells
import numpy as np
import pytest
from labs import ThreeWays

from labkit.data import load_photo
from labkit.measure import recorded
from labkit.mpi.launch import run_ranks

pytestmark = pytest.mark.timeout(600)

ROWS = "ranks, at the start", "ranks, at the end", "vs one process"
AGREE = {"looks": (True, False, False), "again": (False, True, False), "fit": (True, True, True)}  # in these rows


class TestExercises(ThreeWays):
    lab = "09"
    on_ranks = frozenset({4})


def agreement(proof):
    return tuple(proof[row] < 1e-9 for row in ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("name", AGREE)
def test_each_fake_is_convicted_and_the_right_run_equals_one_process(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("work/checked").mkdir(parents=True)
    lab_cells.write_files("09")
    Path("work/checked/sums.py").write_text(Path("work/sums.py").read_text())
    np.save("work/photo.npy", load_photo(None, pixels=5_000))
    run_ranks(3, "work/prove.py", 6, 5, f"work/{name}.py", threads=1, show=False)
    proof = json.loads(Path("work/proof.json").read_text())
    assert agreement(proof) == AGREE[name]
    assert (proof["objective"] < 0.5 * proof["of one process"]) == (name == "looks")
    if name == "fit":
        of_last = proof["errors"][5] * 3 * len(np.load("work/photo.npy").reshape(-1, 3))
        assert math.isclose(of_last, proof["of one process"], rel_tol=1e-9)


def test_the_recorded_runs_are_those_of_the_scripts():
    assert {name: agreement(proof) for name, proof in recorded("09-fakes").data.items()} == AGREE
