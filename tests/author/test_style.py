from labkit.system import paths
from labkit_author import style


def test_each_failed_check_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(style, "commands", lambda: [["ruff", "check", "a.py"], ["ruff", "check", "labkit/b.py"]])
    (tmp_path / "labkit").mkdir()
    (tmp_path / "a.py").write_text("import os\n")
    (tmp_path / "labkit" / "b.py").write_text("path.read_text()\npath.read_text(encoding='utf-8')\n")
    unused, undefined, encoding = style.problems()
    assert unused.startswith("ruff check a.py\n")
    assert "F401" in unused
    assert undefined.startswith("ruff check labkit/b.py\n")
    assert encoding == "labkit/b.py:1: names no encoding: path.read_text()"


def test_every_tool_is_run_and_every_package_checked():
    commands = [" ".join(command) for command in style.commands()]
    assert {command.split()[0] for command in commands} == {"mypy", "deptry", "lint-imports", "ruff", "shellcheck"}
    shell = next(command for command in commands if command.startswith("shellcheck"))
    assert {"lab", ".ci/run", "labkit/mpi/mpirun.sh"} <= set(shell.split())
