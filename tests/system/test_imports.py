import gc
import os
import subprocess
import sys

import pytest

from labkit.system import paths
from labkit.system.imports import uncollected


def test_what_is_imported_is_not_collected_and_what_comes_later_is():
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


def printed(code: str, *places: object) -> str:
    """Run code in a process of its own that finds modules in these places first, and return what it prints."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*places, paths.ROOT]))}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_keras_alone_does_without_what_it_can_do_without(tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/__init__.py").write_text("try:\n    import sklearn\nexcept ImportError:\n    sklearn = None\n")
    (tmp_path / "sklearn.py").write_text("")
    code = "import keras, sklearn; print(keras.sklearn is None, bool(sklearn))"
    assert printed(code, tmp_path) == "False True\n"
    code = f"from labkit.system.imports import lighten_keras; lighten_keras(); {code}"
    assert printed(code, tmp_path) == "True True\n"


@pytest.mark.slow
def test_tensorflows_keras_has_no_need_of_them():
    light = "from labkit.system.imports import lighten_keras; lighten_keras(); import keras, sys"
    assert (
        printed(f"{light}; print(sys.modules.keys() & {{'sklearn', 'matplotlib'}}, keras.layers.Dense(1).units)")
        == "set() 1\n"
    )
