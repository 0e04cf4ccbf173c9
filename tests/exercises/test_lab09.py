import math
import subprocess
import sys

import numpy as np
import pytest
from labs import Student, ThreeWays

from labkit_author import sources


class TestExercises(ThreeWays):
    lab = "09"
    on_ranks = frozenset({4, 5})
    slow = frozenset({2})

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


@pytest.mark.slow
def test_the_homework_compares_both_libraries(tmp_path):
    cells = sources.read(sources.find("09")).cells
    script = next(cell.source for cell in cells if cell.source.startswith("%%writefile work/shapes.py"))
    (tmp_path / "shapes.py").write_text(script.partition("\n")[2])
    run = subprocess.run(
        [sys.executable, tmp_path / "shapes.py", "200", "5", "4"], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("200 × 5, 4 centroids, daal4py vs scikit-learn: ")
