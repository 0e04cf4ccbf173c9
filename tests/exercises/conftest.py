import pytest
from labs import pytest_generate_tests  # noqa: F401


@pytest.fixture
def student(request, tmp_path, monkeypatch):
    """Return a student of the module's lab, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return request.module.TestExercises.make_student(tmp_path)
