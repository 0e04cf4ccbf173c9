"""Files in C are built and run for their check if that is possible; right ones pass, planted mistakes are named."""

from pathlib import Path

import pytest
from labs import Student

from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED
from labkit.exercises import catalogue, labs
from labkit.exercises.engine.checker import checker
from labkit.exercises.engine.outcomes import NotYet
from labkit_author import sources

EXERCISES = {(info.number, n): of for info in catalogue.labs() for n, of in labs.in_c(info.number).items()}
RIGHT = [(*key, script) for key, exercise in EXERCISES.items() for script in (None, *exercise.right)]
WRONG = [(*key, *pair) for key, exercise in EXERCISES.items() for pair in exercise.wrong]


def judge(lab, number, script):
    student = Student(lab, {})
    return student.check.judge(number, student.answer(number, script))


@pytest.mark.slow
@pytest.mark.parametrize(("lab", "number", "script"), RIGHT)
def test_right_files_pass(lab, number, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert judge(lab, number, script) == (PASSED, "")


@pytest.mark.slow
@pytest.mark.parametrize(("lab", "number", "message", "script"), WRONG)
def test_planted_mistakes_are_reported(lab, number, message, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome, text = judge(lab, number, script)
    assert outcome == NOT_YET
    assert message in text


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    return checker("02", {})


def test_without_a_compiler_nothing_is_attempted_and_the_lab_continues(check, monkeypatch):
    monkeypatch.setenv("LAB_WITHOUT", "compiler")
    Path("work/batch.c").write_text("int x;")
    outcome, text = check.judge(5, "work/batch.c")
    assert outcome == NOT_ATTEMPTED
    assert text == "LAB_WITHOUT simulates a machine without compiler. The lab continues with a solution."
    assert "#pragma omp parallel for" in Path(check(5, "work/batch.c")).read_text()


def test_comments_and_spaces_are_no_attempt(check):
    stub = catalogue.find("02").exercises[5].stub.partition("\n")[2]
    assert sources.STUB_IN_C in stub
    Path("work/batch.c").write_text(f"// later\n/* or\n   never */{stub}\n\n")
    assert check.judge(5, "work/batch.c")[0] == NOT_ATTEMPTED


@pytest.mark.slow
def test_what_does_not_compile_is_shown_without_a_hint(check):
    Path("work/batch.c").write_text("wrong")
    outcome, text = check.judge(5, "work/batch.c")
    assert (outcome, "it does not compile" in text, "Hint" in text) == (NOT_YET, True, False)


@pytest.mark.slow
def test_a_program_that_ends_without_a_result_is_not_right_yet(tmp_path):
    (file := tmp_path / "layer.c").write_text("#include <stdlib.h>\nvoid layer(void) { exit(0); }\n")
    with pytest.raises(NotYet, match="ended without the result for 1 code, 3, times 2, plus 1"):
        labs.in_c("04")[5].check(file)
