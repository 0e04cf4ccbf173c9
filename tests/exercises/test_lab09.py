import math
import subprocess
import sys

import lab_cells
import numpy as np
import pytest
from labs import Student, ThreeWays

from labkit.display.measured import Measured
from labkit.system.statistics import Ratio, ratio
from labkit_author import sources


class TestExercises(ThreeWays):
    lab = "09"
    on_ranks = frozenset({4, 5})

    @classmethod
    def make_student(cls, folder):
        """The lab up to its scripts: two modules from the solutions, and kmeans_helpers.py from the lab."""
        import daal4py as d4p  # imports scikit-learn, which takes a second

        student = Student("09", {"np": np, "math": math, "d4p": d4p})
        (folder / "work").mkdir(exist_ok=True)
        (folder / "work" / "pieces.py").write_text(student.check.module_text(2, 3))
        (folder / "work" / "spmd.py").write_text((folder / student.answer(4)).read_text())
        cells = sources.read(sources.find("09")).cells
        helpers = next(cell.source for cell in cells if cell.source.startswith("%%writefile work/kmeans_helpers.py"))
        (folder / "work" / "kmeans_helpers.py").write_text(helpers.partition("\n")[2])
        return student


# What the lab prints about its measurements, with synthetic ones

NOISE = np.array([1.0, 1.03, 0.98, 1.02, 0.97, 1.01])  # of six rounds, in a different order for each setting
WORDS = lab_cells.functions("09", "say", "crowding", "judge", Measured=Measured)


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (1.5, "1.50× (1.43 to 1.57) vs threads: faster, best in 6 of 6"),
        (0.7, "vs threads: slower in 6 of 6"),
        (1.0, "not signif"),
    ],
)
def test_settings_are_compared_by_their_rounds(speed, words):
    assert words in WORDS["say"]("ranks", ratio(speed * NOISE, np.roll(NOISE, 1)), "threads")


def test_a_disturbed_round_leads_to_a_verdict_by_rank():
    speeds = 1.3 * NOISE
    speeds[2] *= 5
    line = WORDS["say"]("ranks", ratio(speeds, np.roll(NOISE, 1)), "threads")
    assert line.endswith("vs threads: faster, best in 6 of 6")
    assert "no interval" in WORDS["say"]("ranks", ratio([1.0], [2.0]), "threads")


@pytest.mark.parametrize(("decibels", "words"), [(0.04, "as good"), (-1.7, "1.7 dB worse"), (0.2, "0.2 dB better")])
def test_quality_is_reported_with_the_speed(decibels, words):
    assert WORDS["judge"](Ratio(1.5, 1.4, 1.6), decibels) == f"faster; {words}"


@pytest.mark.parametrize(("cpus", "words"), [(4, "a CPU for each"), (3, "oversubscribed")])
def test_threads_are_compared_with_cpus(cpus, words):
    assert WORDS["crowding"]([2, 2], cpus) == f"4 threads on {cpus} CPUs: {words}"


def test_the_homework_compares_both_libraries(tmp_path):
    cells = sources.read(sources.find("09")).cells
    script = next(cell.source for cell in cells if cell.source.startswith("%%writefile work/shapes.py"))
    (tmp_path / "shapes.py").write_text(script.partition("\n")[2])
    run = subprocess.run(
        [sys.executable, tmp_path / "shapes.py", "200", "5", "4"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("200 × 5, 4 centroids, daal4py vs scikit-learn: ")
