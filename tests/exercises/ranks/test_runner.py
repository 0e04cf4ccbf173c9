"""Failures and hangs of a student's script on ranks are reported with the script's lines."""

import io
import subprocess
import sys

import pytest

from labkit.exercises.engine.answers import answer_output, reports, run_answer
from labkit.exercises.engine.outcomes import NotYet

PROBE = """
import sys
from labkit.exercises.ranks.runner import load, report, watched
answer = load(sys.argv[1], "answer")
with watched(sys.argv[1], "in the test", line_limit_s=0.5, total_limit_s=1.0):
    result = answer()
report({"result": result})
"""

SLOW = "import time\ndef answer():\n    while True:\n" + "        time.sleep(0.1)\n" * 5


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Return a function that runs a script's `answer` on one rank."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "probe.py").write_text(PROBE)

    def run(text):
        (tmp_path / "work" / "script.py").write_text(text)
        return reports(run_answer(1, "probe.py", "work/script.py", timeout=60))[0]["result"]

    return run


def test_reports_arrive_whatever_the_script_prints(probe):
    assert probe("def answer():\n    print('REPORT of mine')\n    print('no end', end='')\n    return 3") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def answer():\n    return 1 / 0", 'ZeroDivisionError: division by zero, in line 2: "return 1 / 0"'),
        ("import json\ndef answer():\n    return json.loads('{')", 'in line 3: "return json.loads(\'{\')"'),
        ("def answer():\n    exit()", 'Your script called exit(), in line 2: "exit()"'),
        ("def answer():\n    raise NotImplementedError()", 'Line 2 still says "raise NotImplementedError()": replace'),
        (SLOW, "It is not done after "),
        (SLOW, "Is it too slow, or does a loop never end?"),
        ("def answer():\n    import time\n    time.sleep(9)", 's it is still in line 3: "time.sleep(9)"'),
    ],
)  # fmt: skip
def test_failure_in_a_function_has_the_scripts_line(probe, text, message):
    with pytest.raises(NotYet) as error:
        probe(text)
    assert message in str(error.value)
    assert str(error.value).endswith("That was in the test.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name", 'in line 1: "import nothing_of_that_name". That was on rank 0.'),
        ("def answer(:", "SyntaxError"),
        ("def other():\n    pass", "There is no function answer in script.py"),
        ("answer = 3", "There is no function answer in script.py"),
        ("import sys\nsys.exit()", 'Your script called exit(), in line 2: "sys.exit()"'),
    ],
)
def test_failure_on_import_has_the_scripts_line(probe, text, message):
    with pytest.raises(NotYet) as error:
        probe(text)
    assert message in str(error.value)


def test_probe_can_attach_a_hint_and_the_output_of_the_failing_rank_is_available_to_the_verdict(probe):
    output = io.StringIO()
    token = answer_output.set(output)
    answer = "print('got this far')\n    runner.fail('Wrong', 'here', 'Look there')"
    try:
        with pytest.raises(NotYet) as error:
            probe(f"from labkit.exercises.ranks import runner\ndef answer():\n    {answer}")
    finally:
        answer_output.reset(token)
    assert output.getvalue() == "got this far"
    assert (str(error.value), error.value.hint) == ("Wrong. That was here.", "Look there")


SHARE_A_CORE = """
import os, threading, time
from labkit.exercises.ranks import runner

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
os.fork()
os.fork()  # four processes, which compute on one core
if os.getpid() == os.getpgrp():
    thread = threading.get_native_id()
    began = runner._clock(thread), time.monotonic()
    while time.process_time() < 2:
        pass
    print(runner._clock(thread) - began[0], time.monotonic() - began[1])
else:
    while time.process_time() < 1:
        pass
"""


@pytest.mark.slow
def test_time_limits_do_not_count_the_wait_for_a_busy_core():
    done = subprocess.run(
        [sys.executable, "-c", SHARE_A_CORE], capture_output=True, text=True, check=True, start_new_session=True
    )
    counted, passed = map(float, done.stdout.split())
    assert counted < 0.8 * passed
