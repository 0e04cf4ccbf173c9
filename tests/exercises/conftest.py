import launches
import pytest
from labs import pytest_generate_tests  # noqa: F401


@pytest.fixture(scope="module")
def outputs(request, tmp_path_factory):
    """Return each rank's output, for every answer that the selected tests run on ranks."""
    return launches.run_all(request, tmp_path_factory.mktemp("outputs"))


@pytest.fixture
def student(request, tmp_path):
    """Return a student of the module's lab, in an empty folder; the launches of its checks have already run."""
    lab, case = request.module.TestExercises, launches.case_of(request.node)
    run = launches.run_ranks
    if case.get("exercise") in lab.on_ranks:
        run = launches.replay(request.getfixturevalue("outputs"))
    with launches.student(lab, tmp_path, run) as student:
        yield student
