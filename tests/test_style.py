"""The code is formatted and clean, its shell scripts too; its types fit; its imports go down the layers only."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from labkit.system import paths

BIN = Path(sysconfig.get_path("scripts"))


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("shellcheck", "lab", ".ci/run", "env/pack/start.sh", "env/horovod/keep.sh"),
        ("lint-imports",),
        ("mypy",),
    ],
    ids=" ".join,
)
def test_clean(command):
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
