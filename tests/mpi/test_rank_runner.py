"""Every rank starts without loading what only its launcher needs."""

import subprocess
import sys


def test_ranks_import_next_to_nothing_of_the_kit():
    text = "import sys, labkit.mpi.rank_runner; print(*(name for name in sys.modules if name.startswith('labkit')))"
    loaded = subprocess.run([sys.executable, "-c", f"{text}; print('psutil' in sys.modules)"], capture_output=True)
    assert loaded.stdout.decode().split() == [
        "labkit",
        "labkit.mpi",
        "labkit.system",
        "labkit.system.lifetime",
        "labkit.mpi.rank_runner",
        "False",
    ]
