import sys

from labkit.system import processes


def test_names_can_be_listed_without_tensorflow():
    code = "import labkit.bench.__main__, sys; print('tensorflow' in sys.modules)"
    assert processes.run([sys.executable, "-c", code]).lines[-1] == "False"
