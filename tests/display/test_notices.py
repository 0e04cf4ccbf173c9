import nbformat

from labkit.display import notices
from labkit_author import execution

NOTICES = """\
2026-01-31 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1769853600.123456     123 port.cc:153] oneDNN custom operations are on.
2026-01-31 10:00:00.123456: W tensorflow/core/platform/cpu_feature_guard.cc] a warning
To enable the following instructions: AVX2, in other operations, rebuild TensorFlow.
"""
ERROR = "2026-01-31 10:00:00.123456: E tensorflow/core/something.cc:1] it failed\n"


def test_only_notices_are_removed():
    assert notices.without_notices(NOTICES) == ""
    assert notices.without_notices(f"before\n{NOTICES}{ERROR}after") == f"before\n{ERROR}after"
    assert notices.without_notices("W and I are letters\n") == "W and I are letters\n"


def test_a_notebook_shows_tensorflows_errors_but_not_its_notices(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel does not read what compiled code prints
    # One write: `print` writes the newline separately, and TensorFlow's output may come between.
    print_all = f"os.write(2, {(NOTICES + ERROR).encode()!r})\nsys.stderr.write('mine\\n')\ntime.sleep(1)"
    cells = (
        "import os, sys, time\nfrom labkit.display import notices\nnotices.hide()\nnotices.hide()",
        f"import tensorflow as tf\ntf.zeros(1)\n{print_all}",
        print_all,  # IPython has removed the previous cell's `write` from the stream
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    hidden, *printed = execution.execute(notebook, "notices", tmp_path).cells
    assert hidden.outputs == []
    for cell in printed:
        lines = "".join(output.text for output in cell.outputs).splitlines()
        assert sorted(lines) == sorted([ERROR.strip(), "mine"])
