"""Tests of each `./lab` command: its help, one good case, and one bad input.

`OPTIONS` lists every command with the options that users rely on, `WORKS` a cheap case for commands that need neither
TensorFlow nor a network, `REFUSED` an input that must fail with one line and exit code 2.
"""

import json
import os
import re

import pytest
import typer.main
from classroom_group import with_classroom
from test_cli import run

from labkit import cli

OPTIONS = {
    "setup": "--from --classroom --author --torch",
    "start": "--folder --no-browser --port",
    "kernel": "--folder --prefix",
    "doctor": "--json",
    "reset": "--folder",
    "report": "--folder --out --from --json",
    "data fetch": "",
    "join": "--folder --seat --check --ca",
    "hand": "--folder",
    "leave": "--folder",
    "bench": "--model --batch_size --num_batches --use_fp16 --config --rounds --json",
    "roofline": "--again --json",
    "tune": "--knobs --metric --minimize --trials --minutes --repeats --rounds --out",
    "testbed": "--nodes --rate --racks --uplink",
    "cluster up": "--nodes --network",
    "cluster status": "",
    "cluster down": "",
    "agenda": "--route --labs --start --hours --people --slots --out",
    "rehearse": "--route --labs",
    "guide": "--route --labs --start --hours --helpers --out",
    "slides": "--route --start --out",
    "catchup": "--to --folder",
    "class": "--zip --name --folder",
    "room open": "--address --port --route --labs --start --hours --cert --key --people",
    "room status": "",
    "room close": "--out",
    "hub up": "--students --labs --address --cert --key --memory --files",
    "hub warm": "",
    "hub status": "",
    "hub down": "",
    "pack": "--out --python",
    "test": "--fast --all --lab --exercise",
    "style": "",
    "lint": "",
    "build": "--execute",
    "site": "--out",
}

CLASSROOM = {"guide", "slides", "room", "hub"}  # their packages are installed by the first such command

# Cases run in a folder where `mine` is a student's folder, and `collected` has Ada's submission.
RESULTS = {
    "lab": "02",
    "quick": False,
    "when": "2026-01-31 12:00",
    "on": {"cpu": "A CPU", "cores": 2},
    "exercises": {"1": "passed"},
}
WORKS = [  # command line, exit code, part of its output, the file that it writes, part of that file
    ("--version", 0, "lab ", "", ""),
    ("--help", 0, "start Open the labs in JupyterLab", "", ""),
    ("--help-all", 0, "Teaching", "", ""),
    ("setup", 0, "The environment is ready. Next: ./lab start", "", ""),
    ("reset 01 --folder mine", 0, "is a fresh copy", "mine/01_tensorflow_graphs.ipynb", "check(1"),
    ("report --folder mine --out me.html", 0, "/me.html", "me.html", "A CPU"),
    ("hand --folder mine", 0, "You have not joined a room", "", ""),
    ("tune --trials 1 --repeats 1 --out t -- echo total images/sec: 5", 0, "best", "t/trials.jsonl", "5"),
    ("cluster status", 1, "Start it: ./lab cluster up", "", ""),
    ("cluster down", 0, "The labs' Slurm was not running", "", ""),
    ("agenda --labs 00,07 --start 8:30", 0, "08:30–08:40 Welcome", "", ""),
    ("agenda --route two-days --out a.md", 0, "/a.md", "a.md", "| time |"),
    ("guide --labs 00 --out g.html", 0, "It contains the answers", "g.html", "<h1>"),
    ("guide --route half --helpers --out h.html", 0, "/h.html", "h.html", "<h1>"),
    ("slides 00 --out s.html", 0, "/s.html", "s.html", "reveal"),
    ("catchup 00 --to 2 --folder mine", 0, "Continue with exercise 2", "mine/00_welcome.ipynb", "check(2"),
    ("class collected", 0, "ada", "", ""),
    ("hub status", 1, "No hub is up. Start one: ./lab hub up", "", ""),
    ("hub down", 0, "No hub was up", "", ""),
    ("lint 00", 0, "", "", ""),
]

TAKE_NONE = (*("doctor", "data fetch", "cluster status", "cluster down", "hub status", "hub down", "style", "site"),)
REFUSED = [  # command line, part of its message
    *((f"{command} 07", "unexpected extra argument") for command in TAKE_NONE),
    ("nothing", "no such command 'nothing'"),
    ("setup --quick", "no such option"),
    ("start 77", "there is no lab '77'"),
    ("kernel --prefix none", "does not exist"),
    ("reset 77", "there is no lab '77'"),
    ("report --from empty", "there are no results in"),
    ("report --folder mine --json m.json", "can't export: lab 02: no closing table yet."),
    ("data fetch", "LAB_DATA"),
    ("join http://127.0.0.1:9 CODE", "does not answer"),
    ("hand --up", "no such option"),
    ("leave --folder mine", "you have not joined a room"),
    ("bench --model=none", "invalid value for '--model': 'none' is not one of 'resnet50'"),
    ("roofline --model none", "no such option"),
    ("tune --trials 0", "--trials"),
    ("testbed", "give a command after --"),
    ("cluster up --nodes 0", "from 1 to 64, not 0"),
    ("agenda", "name a route"),
    ("rehearse --labs 77", "there is no lab '77'"),
    ("guide --route none", "none"),
    ("slides", "name labs"),
    ("catchup 00 --to 9", "has no exercise 9"),
    ("class empty", "has no results-NN.json"),
    ("class --zip --folder empty", "there are no results"),
    ("room open --cert none.pem", "--key"),
    ("room status", "no board is running here"),
    ("room close", "there is no room"),
    ("hub up --students 0", "--students"),
    ("hub warm", "no hub is up"),
    ("pack --out /proc/pack", "cannot write /proc/pack"),
    ("test --exercise 1", "--lab"),
    ("lint 77", "there is no lab '77'"),
    ("build 77", "there is no lab '77'"),
]


def installed(cases: list[tuple]) -> list:
    """Return the cases, with a skip mark for commands whose packages are not installed."""
    return [pytest.param(*case, marks=[with_classroom] * (case[0].split()[0] in CLASSROOM)) for case in cases]


@pytest.fixture
def lab(monkeypatch, capsys, tmp_path):
    """Return a function that runs a command line as `./lab` does and returns exit code, output and errors."""
    for folder in ("empty", "mine/work", "collected/ada"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("mine/work", "collected/ada"):
        (tmp_path / folder / "results-02.json").write_text(json.dumps(RESULTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ["COLUMNS"] = "200"

    return lambda line: (run(monkeypatch, *line.split()), *capsys.readouterr())


def command_names(group=None, prefix: str = ""):
    for name, command in (group or typer.main.get_command(cli.application())).commands.items():
        yield from command_names(command, f"{name} ") if hasattr(command, "commands") else [prefix + name]


def test_the_tables_cover_all_commands():
    assert set(command_names()) == set(OPTIONS)
    refused = {line for line, _ in REFUSED}
    assert not {name for name in OPTIONS if not any(f"{line} ".startswith(f"{name} ") for line in refused)}


@pytest.mark.parametrize("command", OPTIONS)
def test_help_shows_an_example_and_lists_the_options(lab, command):
    code, text, _ = lab(f"{command} --help")
    assert code == 0
    missing = [option for option in OPTIONS[command].split() if not re.search(rf"{option}(?![\w-])", text)]
    assert not missing
    assert f"Example: ./lab {command}" in text


@pytest.mark.parametrize(
    ("line", "code", "printed", "file", "content"), installed(WORKS), ids=lambda value: str(value)[:40]
)
def test_a_good_case(lab, tmp_path, line, code, printed, file, content):
    status, out, error = lab(line)
    assert (status, error) == (code, ""), error
    assert printed in " ".join(out.split())
    assert not file or content in (tmp_path / file).read_text()


@pytest.mark.parametrize(("line", "message"), installed(REFUSED), ids=lambda value: str(value)[:40])
def test_bad_input_is_reported_in_one_line_with_exit_code_2(lab, line, message):
    os.environ["LAB_DATA"] = "not-there"
    code, _, error = lab(line)
    assert code == 2, error
    assert error.startswith("lab: ")
    assert message in error
    assert error.count("\n") == 1
