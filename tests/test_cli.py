import errno
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import typer.main

from labkit import cli
from labkit.bench import configurations
from labkit.doctor import checks
from labkit.measure.figures import summarize
from labkit.report import page
from labkit.slurm import cluster, supervisor
from labkit.system import errors

LAB = (sys.executable, "-c", "from labkit.cli import main; main()")


def run(monkeypatch, *arguments: str) -> int:
    """Run a command line as `./lab` does; return its exit code."""
    monkeypatch.setattr("sys.argv", ["lab", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    return exit_info.value.code or 0


@pytest.mark.parametrize("ok", [True, False])
def test_the_doctors_exit_code_says_whether_all_labs_can_run(monkeypatch, capsys, ok):
    report = SimpleNamespace(ok=ok, as_dict=lambda: {"ok": ok})
    monkeypatch.setattr(checks, "examine", lambda: report)
    assert run(monkeypatch, "doctor", "--json") == (0 if ok else 1)
    assert json.loads(capsys.readouterr().out) == {"ok": ok}


REFUSED = [
    *(
        (OSError(number, os.strerror(number), "/data/x"), f"lab: /data/x: {os.strerror(number)}. ")
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
    ),
    (PermissionError(errno.EPERM, "Operation not permitted"), "Operation not permitted. LAB_TRACEBACK=1 before"),
    (OSError(errno.EMFILE, "Too many open files"), "Too many open files. Raise the limit on open files (ulimit -n)"),
    (OSError(errno.EIO, "Input/output error", "/data/x"), "/data/x: Input/output error. Check that path"),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/x/\udcff\x1b[2J"), "/x/��[2J: Not a directory. Check"),
    (MemoryError(), "out of memory"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "a text file is not valid UTF-8"),
    (RuntimeError("Could not determine home directory."), "you have no home directory: set the variable HOME"),
    (sqlite3.OperationalError("database or disk is full"), "cannot use a database: database or disk is full."),
    (errors.LabError("x" * 5000), "xxx … xxx"),
]


@pytest.mark.parametrize(("error", "message"), REFUSED, ids=lambda value: type(value).__name__)
def test_system_errors_are_reported_in_one_line_with_exit_code_2(monkeypatch, capsys, error, message):
    def examine():
        raise error

    monkeypatch.setattr(checks, "examine", examine)
    monkeypatch.delenv("LAB_TRACEBACK", raising=False)
    assert run(monkeypatch, "doctor") == 2
    printed = capsys.readouterr().err
    assert printed.startswith("lab: ")
    assert message in printed
    assert printed.count("\n") == 1
    assert len(printed) < 1000
    monkeypatch.setenv("LAB_TRACEBACK", "1")
    monkeypatch.setattr("sys.argv", ["lab", "doctor"])
    with pytest.raises(type(error)):
        cli.main()


@pytest.mark.parametrize("kind", [TypeError, AttributeError, AssertionError, KeyError, RuntimeError, RecursionError])
def test_a_bug_in_the_kit_keeps_its_traceback_and_asks_for_a_report(monkeypatch, kind):
    def examine():
        raise kind("x")

    monkeypatch.setattr(checks, "examine", examine)
    monkeypatch.setattr("sys.argv", ["lab", "doctor"])
    with pytest.raises(kind) as raised:
        cli.main()
    assert "please report it" in raised.value.__notes__[0]


def test_writing_output_to_a_full_disk_is_reported_in_one_line():
    with Path("/dev/full").open("w") as full:
        completed_process = subprocess.run([*LAB, "--version"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert completed_process.returncode == 2
    assert completed_process.stderr.count("\n") == 1
    assert "No space left on device. Free some space" in completed_process.stderr


@pytest.fixture
def own_environment(monkeypatch):
    """Restore the environment variables after the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_bench_divides_the_steps_between_rounds_and_reports_missing_configurations(monkeypatch, capsys, tmp_path):
    calls = []

    def compare(names, *flags, rounds):
        calls.append((names, flags, rounds))
        speed = summarize([2.0] * rounds, "images/s")
        return configurations.Comparison({"eigen": speed}, {"torch": "not here: ./lab setup --torch"})

    monkeypatch.setattr(configurations, "compare", compare)
    out = tmp_path / "out.json"
    flags = ("--config=eigen,torch", "--rounds=4", "--num_batches=10", "--model=mnist", f"--json={out}")
    assert run(monkeypatch, "bench", *flags) == 1
    assert calls == [(["eigen", "torch"], ("--model=mnist", "--num_batches=3"), 4)]
    assert "./lab setup --torch" in capsys.readouterr().out
    assert json.loads(out.read_text())["speeds"]["eigen"]["rounds"] == [2.0] * 4


@pytest.mark.usefixtures("own_environment")
def test_reset_and_report_use_the_folder_that_start_sets(monkeypatch, capsys, tmp_path):
    started, rendered = [], []
    monkeypatch.setattr("jupyterlab.labapp.LabApp.initialize_server", lambda argv: started.extend(argv) or Mock())
    monkeypatch.setattr(page, "render", lambda folder, *room: rendered.append(folder) or "")
    assert run(monkeypatch, "start", "07", "--port", "8899", "--folder", str(tmp_path / "mine")) == 0
    assert os.environ["LAB_FOLDER"] == str(tmp_path / "mine"), "lab reset in JupyterLab's terminal finds it"
    assert f"--ServerApp.root_dir={tmp_path / 'mine'}" in started
    assert "--ServerApp.port=8899" in started
    assert "--LabApp.default_url=/lab/tree/07_horovod_mnist.ipynb" in started
    copy = tmp_path / "mine/07_horovod_mnist.ipynb"
    copy.write_text("my work")
    capsys.readouterr()
    assert run(monkeypatch, "reset", "07") == 0
    assert capsys.readouterr().out == f"{copy} is a fresh copy. Your old one: {copy.with_suffix('.backup-1.ipynb')}\n"
    assert run(monkeypatch, "report", "--out", str(tmp_path / "page.html")) == 0
    assert rendered == [tmp_path / "mine/work"]


def test_an_unwritable_folder_is_reported_with_how_to_name_another(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert run(monkeypatch, "start", "--folder", str(tmp_path / "file/mine")) == 2
    error = capsys.readouterr().err
    assert "Not a directory. Choose a folder of your own with --folder or the variable LAB_FOLDER." in error
    assert error.count("\n") == 1


def test_cluster_up_prints_what_to_type_next(monkeypatch, capsys):
    slurm = cluster.Slurm("own", 3, 1, {"SLURM_CONF": "/tmp/x/slurm.conf"})
    monkeypatch.setattr(cluster, "start_slurm", lambda nodes, network: slurm)
    monkeypatch.setattr(supervisor, "address", lambda: "127.0.1.1")
    assert run(monkeypatch, "cluster", "up", "--nodes", "3") == 0
    output = capsys.readouterr().out
    assert "only you can use it. Nodes: 3, cores per node: 1." in output
    assert "  export SLURM_CONF=/tmp/x/slurm.conf\n  sinfo\n" in output
    assert "./lab cluster down" in output
    assert "listens" not in output
    monkeypatch.setattr(supervisor, "address", lambda: "192.0.2.7")
    run(monkeypatch, "cluster", "up", "--nodes", "1000")
    output = capsys.readouterr().out
    assert "listens on 192.0.2.7" in output
    assert "The nodes share cores" in output


def listed(text: str) -> set[str]:
    """Return the commands that a help text lists."""
    return {
        line.split()[1] for line in text.splitlines() if line.startswith("│ ") and not line.startswith(("│  ", "│ -"))
    }


def test_help_lists_the_commands_for_students_and_help_all_the_rest(monkeypatch, capsys):
    commands = set(typer.main.get_command(cli.application()).commands)
    assert run(monkeypatch, "--help") == 0
    short = capsys.readouterr().out
    now_and_then = {"setup", "kernel", "data", "leave", "catchup"}
    assert listed(short) == {"start", "doctor", "reset", "report", "join", "hand", *now_and_then}
    assert "--help-all" in short
    assert run(monkeypatch, "--help-all") == 0
    assert listed(capsys.readouterr().out) == commands
    assert run(monkeypatch, "--help") == 0  # as before, also in the same process
    assert capsys.readouterr().out == short


def test_completion_is_set_up_for_the_shell_that_asks_and_the_tab_key_completes_all_commands():
    from_bash = ["bash", "-c", '"$@"; exit $?', "bash"]  # these tests may run without a shell, as from cron
    asked = subprocess.run([*from_bash, *LAB, "--show-completion"], capture_output=True, text=True)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "complete -o default -F _lab_completion lab" in asked.stdout
    request = {"_LAB_COMPLETE": "complete_bash", "COMP_WORDS": "lab ", "COMP_CWORD": "1"}
    completions = subprocess.run(LAB, capture_output=True, text=True, env=os.environ | request).stdout.split()
    assert {"start", "hub", "roofline"} <= set(completions)


def test_the_command_line_imports_nothing_slow():
    code = "import labkit.cli, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert "labkit" in loaded
    assert not {"tensorflow", "numpy", "matplotlib", "jupytext", "IPython", "nbformat", "requests"} & set(loaded)
