import os
import subprocess
import sys

import pytest

from labkit.system import paths


def printed(code: str, *folders: object) -> str:
    """Run code in a new process that finds modules in these folders first, and return its output."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*folders, paths.ROOT]))}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_optional_libraries_are_hidden_from_keras_only(tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/__init__.py").write_text("try:\n    import sklearn\nexcept ImportError:\n    sklearn = None\n")
    (tmp_path / "sklearn.py").write_text("")
    code = "import keras, sklearn; print(keras.sklearn is None, bool(sklearn))"
    assert printed(code, tmp_path) == "False True\n"
    code = f"from labkit.system.imports import lighten_keras; lighten_keras(); {code}"
    assert printed(code, tmp_path) == "True True\n"


@pytest.mark.slow
def test_tensorflows_keras_does_not_need_them():
    light = "from labkit.system.imports import OPTIONAL, lighten_keras; lighten_keras(); import keras, sys"
    used = "print(sys.modules.keys() & {*OPTIONAL}, keras.layers.Dense(1).units)"
    assert printed(f"{light}; {used}") == "set() 1\n"
