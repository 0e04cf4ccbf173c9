from labkit.display.results import Results
from labkit.measure.figures import Measured
from labkit.system import paths
from labkit_author import picture


def test_the_readme_shows_the_picture():
    assert f"]({picture.FILE})" in (paths.ROOT / "README.md").read_text()


def test_the_picture_is_the_ladder_of_the_run(tmp_path, monkeypatch):
    for name in ("docs", "solutions"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.chdir(paths.SOLUTIONS)
    Results("03").step("threads", Measured(1.31, 1.2, 1.4, "×"))
    assert picture.write() == tmp_path / picture.FILE
    assert picture.write() is None
    Results("03").step("threads", Measured(2.31, 2.2, 2.4, "×"))
    assert picture.write()
