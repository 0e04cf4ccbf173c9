import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from labs import ThreeWays

from labkit import native
from labkit.exercises import catalogue
from labkit.exercises.labs import lab02
from labkit.roofline import convolution

ARM = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
has_compiler = not native.obstacle()


class TestExercises(ThreeWays):
    lab = "02"
    names = {"np": np}
    slow = frozenset({3, 4, 5})


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    """Return the last step of the race, as files in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    files = Path("conv_3.c"), Path("batch.c")
    for number, file in zip((4, 5), files, strict=True):
        file.write_text(catalogue.find("02").exercises[number].solution.partition("\n")[2])
    return files


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler or platform.machine() != "x86_64", reason="NO x86-64 COMPILER HERE")
@pytest.mark.parametrize("isa", [("-mavx2", "-mfma"), ("-march=x86-64",)])
@pytest.mark.parametrize("tile", [{}, {"PIXELS": 1}, {"PIXELS": 5, "VECTORS": 3}])
def test_tiles_are_right_on_older_cpus_too(solutions, isa, tile):
    program = convolution.build(*solutions, flags=("-O3", *isa, "-fopenmp"), **tile)
    for case in lab02.cases():
        result = native.compute(program, case.arrays, *case.arguments)
        np.testing.assert_array_equal(result.reshape(case.expected.shape), case.expected)


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ARM)), reason=f"NO {' OR '.join(ARM)} HERE")
def test_the_last_step_is_right_on_arm(solutions):
    """It runs in QEMU's emulation of a user process."""
    files = [word for file in (*solutions, convolution.PROGRAM) for word in ("-x", "c", file)]
    include = f"-I{convolution.PROGRAM.parent}"
    subprocess.run([ARM[0], "-O3", "-fopenmp", "-static", include, *files, "-o", "arm"], check=True)
    for case in lab02.cases():
        Path("in").write_bytes(b"".join(array.tobytes() for array in case.arrays))
        subprocess.run([ARM[1], "./arm", "compute", "in", "out", *map(str, case.arguments)], check=True)
        np.testing.assert_array_equal(np.fromfile("out", "f4").reshape(case.expected.shape), case.expected)


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler, reason="NO C COMPILER HERE")
def test_limits_and_times_are_positive(solutions, monkeypatch):
    monkeypatch.setattr(convolution, "LEAST_S", 0.01)
    assert convolution.seconds(convolution.build(*solutions), (2, 14, 14, 32, 64), threads=1) > 0
    assert convolution.peak(1) > 1e9
