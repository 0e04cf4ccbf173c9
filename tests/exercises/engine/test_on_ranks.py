"""Exercises on ranks: the solution passes, and wrong scripts are convicted by the invariants that they name."""

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.exercises.engine import launches
from labkit.exercises.engine.on_ranks import Case, Script
from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.labs import on_ranks
from labkit.exercises.ranks import run_cases
from labkit_author import sources

EXERCISES = [(source.stem[:2], number) for source in sources.labs() for number in on_ranks(source.stem[:2])]
UNCHANGED = Script(before="def ", after="def ")


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes an exercise's solution, changed, next to the lab's other scripts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()

    def write(lab, number, change=UNCHANGED, name="answer"):
        notebook = sources.read(sources.find(lab))
        for cell in notebook.cells:
            head, _, text = cell.source.partition("\n")
            if head.startswith("%%writefile"):
                Path(head.split()[-1]).write_text(text)
        if (plan := Path("work/plan.py")).exists():  # as its checks publish it
            Path("work/checked").mkdir(exist_ok=True)
            Path("work/checked/plan.py").write_text(plan.read_text())
        path = Path(f"work/{name}.py")
        path.write_text(change.apply(sources.exercises(notebook)[number].solution.partition("\n")[2]) + "\n")
        return path

    return write


@pytest.mark.timeout(1000)  # a program's answers take seconds each
@pytest.mark.parametrize(("lab", "number"), EXERCISES)
def test_wrong_scripts_are_convicted_by_their_invariants(lab, number, write):
    exercise = on_ranks(lab)[number]
    right, wrong = [UNCHANGED, *exercise.right], [script for _, script in exercise.wrong]
    answers = [write(lab, number, script, f"answer_{place}") for place, script in enumerate([*right, *wrong])]
    found = launches.mistakes(exercise, answers, limit_s=900 if exercise.world else 240)
    assert found[: len(right)] == [None] * len(right)
    for (invariant, script), mistake in zip(exercise.wrong, found[len(right) :], strict=True):
        assert mistake is not None, script
        assert mistake.invariant == invariant.__name__, f"{script}: {mistake}"
    assert {invariant for invariant, _ in exercise.wrong} == set(exercise.invariants)


# What can go wrong in any exercise, here in a ring.

SENDRECV = "ranks.Sendrecv(out, dest=right, recvbuf=incoming, source=left)"
WORLD = "__import__('mpi4py.MPI').MPI.COMM_WORLD"


@pytest.mark.parametrize(
    ("before", "after", "message", "hint"),
    [
        (SENDRECV, "ranks.Send(out, dest=right); ranks.Recv(incoming, source=left)", "Is the rank that it waits", ""),
        ("buffer[: len(into)]", "__import__('numpy').empty(len(into))", "all numbers are float32. Create it", ""),
        ("bounds(len(total), n)", "bounds(len(total) + me, n)", "was longer than the receive buffer", ""),
        ("    total[:] = gradient", "    total = gradient", "`gradient` to stay unchanged; rank 0", ""),
        ("ranks.size, ranks.rank", f"ranks.size, {WORLD}.rank", "12 numbers on 4 ranks", "MPI.COMM_WORLD"),
        (SENDRECV, f"ranks.Isend(out, right); {WORLD}.Recv(incoming, source=left)", "It hangs", "MPI.COMM_WORLD"),
    ],
)  # fmt: skip
def test_what_goes_wrong_in_any_exercise_has_a_message(before, after, message, hint, write, monkeypatch):
    monkeypatch.setattr(launches, "CALL_LIMIT_S", 3.0)
    with pytest.raises(NotYet) as error:
        launches.check(on_ranks("06")[2], write("06", 2, Script(after, before)))
    assert message in str(error.value)
    assert hint in error.value.hint
    assert bool(hint) == bool(error.value.hint)


def test_a_collective_that_some_ranks_skip_is_reported_in_time(write, monkeypatch):
    monkeypatch.setattr(launches, "CALL_LIMIT_S", 3.0)
    change = Script(before="ranks.allreduce(a @ b)", after="a @ b if ranks.rank else ranks.allreduce(a @ b)")
    with pytest.raises(NotYet, match=r"still in line .*ranks.allreduce.*Every rank must call it"):
        launches.check(on_ranks("00")[3], write("00", 3, change))


def test_a_sum_that_overtakes_a_push_is_hinted(write, monkeypatch):
    monkeypatch.setattr(launches, "CALL_LIMIT_S", 3.0)
    change = Script(before="Recv(incoming, source=worker, tag=PUSH)", after="Recv(incoming)")
    with pytest.raises(NotYet) as error:
        launches.check(on_ranks("06")[1], write("06", 1, change))
    if "It hangs" not in str(error.value):  # on a busy machine, a sum may overtake a push in an earlier case
        assert "rank 3 waits after each message" in str(error.value)
        assert "By their tags" in error.value.hint


def test_a_failing_invariant_is_not_the_students_mistake(monkeypatch):
    def broken(case, seen):
        raise ZeroDivisionError

    exercise = replace(on_ranks("06")[2], invariants=[broken])
    mistake = run_cases.judge(exercise, Case("", []), [], "")
    monkeypatch.setattr(launches, "run_answer", lambda *args, **options: None)
    monkeypatch.setattr(launches, "reports", lambda run: [[mistake]])
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        launches.check(exercise, "work/ring.py")
