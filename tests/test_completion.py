"""The Tab key completes commands, options and labs in the shells that there are, for `./lab` and for `lab`."""

import os
import shutil
import sys

import pexpect
import pytest

from labkit.cli import completion
from labkit.exercises import catalogue
from labkit.system import processes
from labkit_classroom.lecture import routes

pytestmark = pytest.mark.slow  # each starts a shell on a terminal

SHELLS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "--interactive"],
}
PROMPT = "ready> "
BEGIN = {
    "bash": f"PS1='{PROMPT}'; bind 'set enable-bracketed-paste off'",
    "zsh": f"PS1='{PROMPT}'; unsetopt zle_bracketed_paste 2>/dev/null; autoload -Uz compinit; compinit -u -D",
    "fish": f"function fish_prompt; echo -n '{PROMPT}'; end",
}


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path, monkeypatch):
    """Start a shell in a folder with a blank in its name, which has a `./lab`, and let it read its script."""
    name = request.param
    if not shutil.which(name):
        pytest.skip(f"COMPLETION BY {name.upper()} NOT TESTED HERE: there is no {name}")
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "lab").write_text("#!/bin/sh\necho WAS STARTED\n")  # which completing must not do
    (folder / "lab").chmod(0o755)
    (folder / "script").write_text(completion.script(completion.Shell(name)))
    monkeypatch.setenv("HOME", str(folder))
    environment = os.environ | {"TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    child = pexpect.spawn(name, SHELLS[name], cwd=str(folder), env=environment, encoding="utf-8", timeout=60)
    child.setwinsize(50, 200)
    child.sendline(BEGIN[name])
    child.sendline("source ./script; echo re''ad")
    child.expect("\nread")
    child.name_of_shell = name
    yield child
    child.close(force=True)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("./lab sta", "./lab start"),
        ("lab sta", "lab start"),
        ("./lab start --no-b", "./lab start --no-browser"),
        ("./lab data fet", "./lab data fetch"),
        ("./lab completion fi", "./lab completion fish"),
        ("./lab agenda --route tw", "./lab agenda --route two-days"),
    ],
)
def test_tab_completes(shell, typed, completed):
    shell.send(typed + "\t")
    shell.expect_exact(completed)


def test_tab_lists_the_labs(shell):
    # fish lists nothing on a terminal that can't draw; it has a command for that.
    shell.send('complete -C "./lab reset "\n' if shell.name_of_shell == "fish" else "./lab reset \t\t")
    for lab in catalogue.labs():
        shell.expect_exact(lab.number)


def test_values_are_those_that_the_commands_take():
    assert [lab for lab, _ in completion.labs("")] == [lab.number for lab in catalogue.labs()]
    assert completion.labs("07") == [("07", "horovod mnist")]
    assert completion.labs("7") == []
    assert completion.routes("") == list(routes.names())
    assert completion.routes("two") == ["two-days"]


def test_a_tab_waits_for_nothing_that_is_slow_to_import():
    code = "import labkit.cli, sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = processes.run([sys.executable, "-c", code]).lines[-1]
    assert "'labkit'" in loaded
    for slow in ("tensorflow", "numpy", "matplotlib", "jupytext", "IPython", "nbformat", "requests"):
        assert f"'{slow}'" not in loaded


def test_the_script_calls_a_program_whatever_its_folder_is_called(monkeypatch, tmp_path):
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    (folder / "labkit").write_text("#!/bin/sh\necho called\n")
    (folder / "labkit").chmod(0o755)
    monkeypatch.setattr(completion.sys, "executable", str(folder / "python"))
    ask = 'COMP_WORDS=(lab x); COMP_CWORD=1; _lab_complete; echo "${COMPREPLY[0]}"'
    assert processes.run(["bash", "-c", completion.script(completion.Shell.BASH) + ask]).lines == ("called",)
