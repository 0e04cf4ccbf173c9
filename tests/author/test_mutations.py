import pytest

from labkit import cli
from labkit.exercises import core, sources
from labkit.exercises.answers import call
from labkit.exercises.outcomes import expect
from labkit.system.errors import LabError
from labkit_author import mutations
from labkit_author.mutants import difference, mutants

LARGEST = """def largest(values, floor):
    ### BEGIN SOLUTION
    best = floor
    for value in values:
        if value > best:
            best = value
    return SCALE * best
    ### END SOLUTION"""


@pytest.mark.parametrize(
    "line",
    [
        "if value > best: → if value >= best:",
        "if value > best: → if True:",
        "for value in values: → for value in list(values)[:-1]:",
        "best = value → pass",
        "best = value → best = values",
        "return SCALE * best → return best",
        "return SCALE * best → return floor",
    ],
)
def test_a_mutant_has_one_small_mistake(line):
    assert line in mutants(LARGEST).values()


def test_only_what_a_student_writes_is_changed():
    for mutant in mutants(LARGEST):
        assert mutant.startswith("def largest(values, floor):\n")
    assert mutants("x = 1\n### BEGIN SOLUTION\n### END SOLUTION") == {}


def test_a_difference_names_the_lines():
    assert difference("a\nb\nc", "a\nd\nc") == "b → d"
    assert difference("a\nb", "a") == "b → (nothing)"


@pytest.fixture
def source(write_source, monkeypatch, tmp_path):
    """A lab with one exercise, whose check does not see a mistake with the floor."""
    lab = core.Lab("42")

    @lab.exercise(1, hints=("none",))
    def largest(answer):
        expect(call(answer, [3, 5, 4], 0) == 10, "10")

    made = write_source("import time\nSCALE = 2", "time.sleep(3600)", LARGEST, "largest = check(1, largest)")
    monkeypatch.setattr(core, "checker", lambda number, names: core.Checker(lab, made, names))
    monkeypatch.setattr(mutations, "EQUIVALENT", tmp_path / "equivalent.toml")
    mutations.EQUIVALENT.write_text("")
    return made


@pytest.mark.slow
def test_what_survives_is_what_the_check_does_not_see(source):
    tried = mutations.try_exercise(source, 1, tell=lambda line: None)
    assert tried.count == len(mutants(LARGEST))
    assert "best = floor → best = values" not in tried.survivors
    assert "if value > best: → if value >= best:" in tried.survivors
    assert "for value in values: → for value in list(values)[:-1]:" in tried.survivors
    assert "for value in values: → for value in list(values)[1:]:" in tried.survivors
    assert "return SCALE * best → return best" not in tried.survivors
    assert not tried.failures


@pytest.mark.slow
def test_what_is_known_to_be_right_is_no_survivor(source):
    mutations.EQUIVALENT.write_text(
        "[42.1]\n'if value > best: → if value >= best:' = 'the same'\n'old → new' = 'gone'\n"
    )
    tried = mutations.try_exercise(source, 1, tell=lambda line: None)
    assert tried.equivalent == ["if value > best: → if value >= best:"]
    assert not set(tried.equivalent) & set(tried.survivors)
    assert tried.stale == ["old → new"]


@pytest.mark.slow
def test_every_third_only(source):
    told = []
    assert mutations.try_exercise(source, 1, every=3, tell=told.append).count == len(told)
    assert len(told) == -(-len(mutants(LARGEST)) // 3)


@pytest.mark.slow
def test_a_mutant_that_spoils_the_process_spoils_no_other(source, monkeypatch):
    spoiling = {
        "import os\nos._exit(0)": "ends",
        f"import time\ntime.sleep(3600)\n{LARGEST}": "sleeps",
        LARGEST: "as it was",
    }
    monkeypatch.setattr(mutations, "mutants", lambda text: spoiling)
    monkeypatch.setattr(mutations, "MUTANT_LIMIT_S", 5.0)
    assert mutations.try_exercise(source, 1, tell=lambda line: None).survivors == ["as it was"]


def test_a_solution_that_does_not_pass_is_an_error(source):
    source.write_text(source.read_text().replace("SCALE = 2", "SCALE = 3"))
    with pytest.raises(LabError, match="the solution of exercise 1 does not pass here"):
        mutations.try_exercise(source, 1)
    with pytest.raises(LabError, match=r"no exercise 2, only \[1\]"):
        mutations.try_exercise(source, 2)


def test_the_command_tries_one_exercise_and_each_so_many_th_mutant(monkeypatch, capsys):
    asked = []

    def tried(source, number, every, tell):
        asked.append((source.stem[:2], number, every))
        return mutations.MutationResults(count=3, equivalent=[], survivors=["a → b"], failures=[], stale=[])

    monkeypatch.setattr(mutations, "try_exercise", tried)
    monkeypatch.setattr("sys.argv", ["lab", "mutate", "09", "--exercise", "2", "--every", "5"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    assert asked == [("09", 2, 5)]
    assert "   passed: a → b\n" in capsys.readouterr().out


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_what_is_known_to_be_right_is_a_mutant_of_its_solution(source):
    for number, exercise in sources.exercises(sources.read(source)).items():
        if known := mutations.equivalent(source.stem[:2], number):
            text = exercise.solution
            text = text.partition("\n")[2] if text.startswith("%%writefile") else text
            assert set(known) <= set(mutants(text).values())
            assert all(known.values()), "a reason is missing"
