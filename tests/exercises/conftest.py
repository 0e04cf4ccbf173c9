import launches
import pytest
from labs import pytest_generate_tests  # noqa: F401


@pytest.fixture(scope="module")
def launched(request, tmp_path_factory):
    """What each rank printed, for each answer that is about to be tested on ranks."""
    return launches.print_all(request, tmp_path_factory.mktemp("launched"))


@pytest.fixture
def student(request, tmp_path):
    """A student of the module's lab, in an empty folder. The launches of its checks have been made already."""
    lab, case = request.module.TestExercises, launches.case_of(request.node)
    run = launches.run_ranks
    if case.get("exercise") in lab.on_ranks:
        run = launches.replayed(request.getfixturevalue("launched"))
    with launches.student(lab, tmp_path, case, run) as one:
        yield one
