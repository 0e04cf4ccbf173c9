import order
import pytest

from labkit.exercises import sources
from labkit.system import paths
from labkit_author import testing


def test_a_labs_tests_are_its_exercises_its_source_and_both_its_notebooks():
    for source in sources.labs():
        ((*chosen,),) = testing.runs(lab=source.stem[:2])
        assert any(path.startswith(f"tests/exercises/test_lab{source.stem[:2]}") for path in chosen)
        assert f"solutions/{source.stem}.ipynb" in chosen
        assert not any(other.stem in " ".join(chosen) for other in sources.labs() if other != source)


def test_fast_tests_start_no_notebook():
    for runs in (testing.runs(fast=True), testing.runs(fast=True, lab="09")):
        assert not any("solutions" in argument for arguments in runs for argument in arguments)


@pytest.mark.parametrize("fast", [True, False])
def test_style_comes_first_and_only_once(fast):
    style, tests = testing.runs(fast)
    assert style == [testing.STYLE]
    assert f"--ignore={testing.STYLE}" in tests
    assert (paths.ROOT / testing.STYLE).is_file()


def test_what_is_asked_for_is_one_run():
    assert testing.runs(more=["tests/mpi"]) == [["tests/mpi"]]
    ((*chosen,),) = testing.runs(fast=True, more=["-k", "sources"])
    assert chosen[-2:] == ["-k", "sources"]
    assert "--fast" in chosen


def test_both_executions_of_a_lab_stay_together_and_other_files_whole():
    untouched = "tests/author/test_untouched.py::test_it[08_cluster]"
    assert order.unit(untouched) == order.unit("solutions/08_cluster.ipynb::Cell 3") == "solutions/08_cluster.ipynb"
    assert order.unit("tests/mpi/test_typed.py::TestIt::test_it[a[0]]") == "tests/mpi/test_typed.py"


def test_what_is_begun_first_is_there():
    found = [*(paths.ROOT / "tests").rglob("*.py"), *paths.SOLUTIONS.glob("*.ipynb")]
    files = [str(path.relative_to(paths.ROOT)) for path in found]
    assert [start for start in order.FIRST if not any(file.startswith(start) for file in files)] == []
