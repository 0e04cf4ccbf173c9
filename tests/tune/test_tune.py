"""Tests of `lab tune`: it finds the best settings, reports failures, resumes, and confirms before it claims a gain."""

import itertools
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from lab_command import run_lab
from machines import machine

from labkit.system import load, processes
from labkit.system.errors import LabError
from labkit.tune import report, run, space
from labkit.tune.config import IMAGES_PER_SECOND, TuneConfig
from labkit.tune.search import PRUNING_MARGIN, Trial, best, search, size
from labkit.tune.trial import Command, format_metric, read_metric

GRID = {"threads": [1, 2, 3, 4, 5, 6, 7, 8], "pin": ["", "compact", "scatter"], "spin": [None, 0, 1, 200]}


def speed(settings):
    """A synthetic landscape with its top at 5 threads, scatter, 1."""
    pin = {"": 0, "compact": 4, "scatter": 8}[settings["pin"]]
    spin = {None: 0, 0: 2, 1: 6, 200: 3}[settings["spin"]]
    return 100 - 5 * abs(settings["threads"] - 5) + pin + spin


TOP = {"threads": 5, "pin": "scatter", "spin": 1}


# The search, without processes


@pytest.mark.slow
def test_equal_metrics_give_equal_searches_that_start_with_the_default():
    default = {"threads": 8, "pin": "", "spin": None}
    first, same = (search(GRID, speed, 15, default=default) for _ in range(2))
    assert [trial.settings for trial in first] == [trial.settings for trial in same]
    assert first[0].settings == default


@pytest.mark.parametrize("shift", [1, -50])  # negative metrics too
def test_minimize_finds_the_minimum(shift):
    trials = search({"x": range(30)}, lambda settings: shift + (settings["x"] - 11) ** 2, 20, minimize=True)
    assert best(trials, minimize=True).settings == {"x": 11}


@pytest.mark.parametrize("minimize", [False, True])
def test_only_trials_far_behind_the_best_are_pruned(minimize):
    beyond = 1 + 1.1 * PRUNING_MARGIN if minimize else 1 - 1.1 * PRUNING_MARGIN
    within = 1 + 0.9 * PRUNING_MARGIN if minimize else 1 - 0.9 * PRUNING_MARGIN
    figures = {"best": 50.0, "beyond": 50 * beyond, "within": 50 * within}
    trials = search(
        {"x": list(figures)}, lambda settings: figures[settings["x"]], 3, repeats=3, default={"x": "best"},
        minimize=minimize,
    )  # fmt: skip
    assert {trial.settings["x"]: (trial.state, len(trial.values)) for trial in trials} == {
        "best": ("done", 3), "beyond": ("pruned", 1), "within": ("done", 3),
    }  # fmt: skip


@pytest.mark.slow
def test_failures_are_recorded_and_the_search_continues():
    def fragile(settings):
        if settings["threads"] > 6:
            raise LabError("exit status 1. Its last lines:\n  no memory")
        return speed(settings)

    trials = search(GRID, fragile, size(GRID))
    failed = [trial for trial in trials if trial.state == "failed"]
    assert len(failed) == 2 * 3 * 4
    assert all(math.isnan(trial.value) for trial in failed)
    assert {trial.failure.splitlines()[-1] for trial in failed} == {"  no memory"}
    assert best(trials).settings == TOP


def test_budget_in_minutes():
    trials = search(GRID, lambda settings: time.sleep(0.05) or speed(settings), 96, minutes=0.5 / 60)
    assert 1 <= len(trials) < 20


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 7])
def test_a_search_resumes_as_if_it_had_not_been_interrupted(at):
    default = {"threads": 8, "pin": "", "spin": None}
    trials = search(GRID, speed, 20, default=default, earlier=search(GRID, speed, at, default=default) if at else ())
    assert len(trials) == 20
    assert trials[0].settings == default
    assert len({str(trial.settings) for trial in trials}) == 20, "no completed trial is measured again"


# The knobs

ON_TWO = machine(2)


@pytest.mark.parametrize("file", sorted({*space.DEFAULT_KNOBS.parent.glob("*.toml")} - {space.DEFAULT_KNOBS}))
@pytest.mark.parametrize("cores", [2, 64])
def test_thread_counts_in_the_kits_knobs_go_from_one_to_the_unset_default(file, cores):
    for name, knob in space.read(file, machine(cores)).items():
        assert knob.values.count(None) == 1
        if name in ("intra", "inter", "threads"):
            assert (knob.values[0], knob.values[-1]) == (1, None)
            assert {power for power in (1, 2, 4, 8, 16, 32) if power < cores} < {*knob.values}


def test_none_replaces_the_default_among_the_values(tmp_path):
    file = tmp_path / "knobs.toml"
    file.write_text('[batch]\ntype = "choice"\nvalues = [32, 64, 256]\ndefault = 64\nflag = "-b {value}"')
    knob = space.read(file, ON_TWO)["batch"]
    assert knob.values == (32, None, 256)


def test_a_default_beyond_the_cpu_quota_is_an_extra_value():
    assert space.read(space.BENCH_KNOBS, machine(64, quota=4.0))["intra"].values == (1, 2, 3, 4, None)


def test_integers_in_steps_and_on_a_logarithmic_scale(tmp_path):
    file = tmp_path / "knobs.toml"
    file.write_text(
        '[intra]\ntype = "integer"\nlow = 10\nhigh = 56\nstep = 2\nflag = "--intra={value}"\n'
        '[wide]\ntype = "integer"\nlow = 1\nhigh = 100000000000\nlog = true\nenv = "A"'
    )
    knobs = space.read(file, ON_TWO)
    assert knobs["intra"].values == (*range(10, 57, 2), None)
    assert {1, 100_000_000_000, None} <= set(knobs["wide"].values)
    assert len(knobs["wide"].values) < 100


KNOB = '[a]\ntype = "integer"\nlow = 1\nhigh = 4\nenv = "A"\n'
CHOICE = '[a]\ntype = "choice"\nenv = "A"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (KNOB.replace("integer", "intger"), r"knob a.type must be one of \['integer', 'choice'\]"),
        (KNOB + "hihg = 3", "knob a must not contain {'hihg'}"),
        (KNOB.replace("high = 4", ""), r"knob a must contain \['high'\]"),
        (KNOB + 'flag = "-n {value}"', "exactly one of env, flag and prefix"),
        (KNOB.replace("4", "0"), "from 1 to 0"),
        (KNOB.replace("4", "100000000000"), "more than 10,000 values"),
        (KNOB.replace("4", "1" + "0" * 5000), "is not TOML"),
        (KNOB.replace("low = 1", "low = 0") + "log = true", "at least 1 with log"),
        (KNOB.replace('"A"', '"A B"'), "knob a.env"),
        (CHOICE, r"knob a must contain \['values'\]"),
        (CHOICE + 'values = ["a\\u0000"]', "knob a.values"),
        (CHOICE + "values = [1, 1]", "knob a.values must contain unique items"),
        ("[a\n" + KNOB, r"is not TOML: .*line 1"),
        ("", "must contain at least 1 properties"),
    ],
)
def test_an_invalid_knobs_file(tmp_path, text, message):
    file = tmp_path / "knobs.toml"
    file.write_text(text)
    with pytest.raises(LabError, match=message) as error:
        space.read(file, ON_TWO)
    assert "knobs.toml" in str(error.value)
    assert "\n" not in str(error.value)


# One run of a command


KNOBS = {
    "threads": space.Knob((1, 2, None), env="THREADS"),
    "batch": space.Knob((None, 8), flag="--batch={value}"),
    "numa": space.Knob((None, "a b"), prefix="env X={value}"),
}


def test_a_command_gets_its_variables_flags_and_prefix():
    show = "import os, sys; print('seen', os.environ.get('THREADS'), os.environ.get('X'), sys.argv[1:], 7)"
    command = Command([sys.executable, "-S", "-c", show], KNOBS, r"seen None None \[\] (\d)")
    assert command({"threads": None, "batch": None, "numa": None}) == 7
    command = Command([sys.executable, "-S", "-c", show], KNOBS, r"seen 2 a b \['--batch=8'\] (\d)")
    assert command({"threads": 2, "batch": 8, "numa": "a b"}) == 7


@pytest.mark.parametrize(
    ("pattern", "lines", "number"),
    [
        (IMAGES_PER_SECOND, ["total images/sec: 1.5", "total images/sec: 17.25", "bye"], 17.25),
        (r"[\d,.]+(?= GFLOP)", ["1,234.5 GFLOP/s"], 1234.5),
        ("speed (.*)", ["speed 1e3"], 1000),
    ],
)
def test_the_metric_is_the_last_match(pattern, lines, number):
    assert read_metric(pattern, lines) == number


@pytest.mark.parametrize(
    ("lines", "message"),
    [(["slow"], "no line that matches"), (["speed fast"], "'fast', which is not"), (["speed nan"], "not a number")],
)
def test_lines_without_a_metric(lines, message):
    with pytest.raises(LabError, match=message):
        read_metric("speed (.*)", lines)


@pytest.mark.parametrize(
    ("metric", "text"), [(13_580_000.4, "13,580,000"), (1234.5, "1,234"), (123.456, "123.5"), (0.0123456, "0.01235")]
)
def test_metrics_are_printed_without_an_exponent(metric, text):
    assert format_metric(metric) == text


# The results


def test_the_env_file_sets_the_variables(tmp_path):
    knobs = {"a": space.Knob((None, "x y'z"), env="A"), "b": space.Knob((None, 1), env="B"), "c": KNOBS["batch"]}
    command = Command(["train", "my file"], knobs)
    file = tmp_path / "best.env"
    file.write_text(report.env_file(command, {"a": "x y'z", "b": None, "c": 8}, "confirmed"))
    shown = subprocess.run(
        ["bash", "-euc", f'source {file}; env'], env={"B": "mine"}, capture_output=True, text=True, check=True
    ).stdout.splitlines()  # fmt: skip
    assert "A=x y'z" in shown
    assert "B=mine" in shown
    assert "# flags: --batch=8" in file.read_text()
    assert "train 'my file' --batch=8" in file.read_text()


def confirm(objective, tmp_path, *promised, rounds=6, minimize=False):
    """Return the confirmation of trials with x = 1, 2 … and these metrics, compared with x unset, the default."""
    command = Mock(side_effect=objective, knobs={"x": space.Knob((2.0,), env="X")})
    command.line.return_value, command.flags.return_value = "train", []
    command.variables.side_effect = lambda settings: {"X": str(settings["x"])} if settings["x"] else {}
    settings = [{"x": None}, *({"x": number} for number in range(1, 1 + len(promised)))]
    trials = [Trial(of, value, (value,), "done") for of, value in zip(settings, (10, *promised), strict=True)]
    config = TuneConfig(rounds=rounds, minimize=minimize)
    finalists = run._finalists(trials, settings[0], config)
    return run._confirm(tmp_path, command, finalists, config, print)


@pytest.mark.parametrize(
    ("best", "minimize", "verdict", "file"),
    [
        ([12, 13, 12, 12, 12, 11], False, "faster", "confirmed: trial 2 has the largest lower bound, 1.10× the"),
        ([12, 13, 12, 12, 12, 11], True, "slower", "not confirmed: no lower bound is above 1"),
        ([12, 9, 12, 12, 12, 11], False, "no difference shown (at most ±20%)", "not confirmed: "),
    ],
)
def test_a_gain_is_confirmed_by_fresh_rounds(tmp_path, best, minimize, verdict, file):
    metrics = {1: iter(best), None: itertools.repeat(10)}
    confirmation = confirm(lambda settings: next(metrics[settings["x"]]), tmp_path, 12, minimize=minimize)
    assert confirmation.speedups["trial 2"].verdict == verdict
    text = (tmp_path / "best.env").read_text()
    assert file in text
    assert ("export X=1" in text) == (verdict == "faster")
    assert json.loads((tmp_path / "confirmation.json").read_text())["trial 2"] == best


def test_the_exported_setting_has_the_best_lower_bound_not_the_best_median(tmp_path):
    metrics = {None: [10], 1: [16, 16, 16, 11], 2: [12, 13], 3: [10.5]}
    metrics = {x: itertools.cycle(values) for x, values in metrics.items()}
    confirmation = confirm(lambda settings: next(metrics[settings["x"]]), tmp_path, 15, 13, 12, 9)
    assert [*confirmation.metrics] == ["default", "trial 2", "trial 3", "trial 4"], "the best three, the best first"
    assert confirmation.chosen == "trial 3"
    text = (tmp_path / "best.env").read_text()
    assert "export X=2" in text
    assert "trial 2: launches from 11 to 16, 45% apart" in text
    assert confirmation.promised["trial 2"] == 15


def on_busy_cores(figure):
    """Return an objective with other work on its cores in every other run."""
    runs = itertools.count()

    def objective(settings):
        load._report_to_enclosing(load.Contention(share=0.4 * (next(runs) % 2), busy=True, capacity=1.0))
        return figure(settings)

    return objective


def test_trials_and_confirmations_on_a_busy_machine_are_marked(tmp_path):
    trials = search({"x": [1, 2, 3]}, on_busy_cores(lambda settings: settings["x"]), 3, repeats=2)
    assert next((trial.others, trial.busy) for trial in trials if trial.state == "done") == (0.2, True)
    confirm(on_busy_cores(lambda settings: 1.0), tmp_path, 1, rounds=2)
    assert "⚠ Meanwhile, other work took 20% of the cores" in (tmp_path / "best.env").read_text()


def test_importance_names_the_knob_that_matters():
    grid = {"matters": [1, 2, 3, 4], "little": [1, 2, 3]}
    trials = search(grid, lambda settings: 10 * settings["matters"] + settings["little"] / 10, 12)
    shares = report.importance(grid, trials)
    assert next(iter(shares)) == "matters"
    assert sum(shares.values()) == pytest.approx(1)
    assert report.importance(grid, trials[:2]) == {}
    assert report.importance(grid, [trial._replace(value=1.0) for trial in trials]) == {}


# The command


JOB = """\
echo $A $B >> runs
case $A in
  5) echo "no memory"; exit 1;;
  6) sleep 60;;
  7) echo "forgot to measure"; exit 0;;
esac
echo "speed: $((100 - 10 * (${A:-1} - 3) * (${A:-1} - 3) + ${B:-0}))"
"""
TOML = """\
[a]
type = "integer"
low = 1
high = 7
env = "A"
[b]
type = "choice"
values = [0, 5]
env = "B"
"""
TUNE = ("--knobs", "knobs.toml", "--metric", "speed: (.*)", "--out", "out", "--rounds", "6")
SH = ("--", "sh", "job.sh")


def read_trials(job):
    return [json.loads(line) for line in (job / "out/trials.jsonl").read_text().splitlines()[1:]]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "MIN_TIMEOUT_S", 1.0)
    (tmp_path / "job.sh").write_text(JOB)
    (tmp_path / "knobs.toml").write_text(TOML)
    return tmp_path


@pytest.mark.slow
def test_from_a_command_to_its_best_settings(job, capsys):
    assert run_lab("tune", *TUNE, "--repeats", "1", "--trials", "99", *SH) == 0
    output = capsys.readouterr().out
    trials = read_trials(job)
    assert len(trials) == 8 * 3
    assert (trials[0]["settings"], trials[0]["value"]) == ({"a": None, "b": None}, 60)  # the defaults
    failures = {trial["settings"]["a"]: trial["failure"] for trial in trials if trial["state"] == "failed"}
    assert failures.keys() == {5, 6, 7}
    assert "exit status 1" in failures[5]
    assert "no memory" in failures[5]
    assert "timed out after" in failures[6]
    assert "forgot to measure" in failures[7]
    assert "no memory" in output
    assert "confirmed: trial" in output
    assert "1.75× (1.75 to 1.75): faster" in output
    assert "source out/best.env" in output
    variables = subprocess.run(["bash", "-c", "source out/best.env; echo $A $B"], capture_output=True, text=True).stdout
    assert variables == "3 5\n"
    rounds = json.loads((job / "out/confirmation.json").read_text())
    assert (len(rounds), rounds["default"], [*rounds.values()][1]) == (4, [60.0] * 6, [105.0] * 6)
    for picture in ("search.png", "importance.png"):
        assert (job / "out" / picture).read_bytes().startswith(b"\x89PNG")
        assert f"out/{picture}: " in output


@pytest.mark.slow
def test_a_metric_that_is_never_printed_is_reported_after_the_default_trial(job, capsys):
    assert run_lab("tune", *TUNE, "--metric", "sped: (.*)", *SH) == 2
    error = capsys.readouterr().err
    assert "fails with its default settings" in error
    assert "speed: 60" in error
    assert len((job / "runs").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_different_space_in_the_same_folder_is_refused(job, capsys):
    assert run_lab("tune", *TUNE, "--repeats", "1", "--trials", "2", *SH) == 0
    runs = (job / "runs").read_text()
    (job / "knobs.toml").write_text(TOML.replace("high = 7", "high = 4"))
    assert run_lab("tune", *TUNE, "--repeats", "1", "--trials", "2", *SH) == 2
    assert "a search with different knobs: name another folder" in capsys.readouterr().err
    assert (job / "runs").read_text() == runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trials", "0"), "--trials must be positive, not 0"),
        (("--minutes", "0"), "--minutes must be positive, not 0"),
        (("--minutes", "nan"), "--minutes must be positive, not nan"),
        (("--knobs", "not-there.toml", *SH), "cannot read not-there.toml"),
        (("--metric", "(", *SH), "not a regular expression"),
        (("--metric", "(a)(b)", *SH), "2 groups"),
        ((*TUNE, "--", "no-such-command"), "cannot start no-such-command"),
    ],
)
def test_bad_input_is_reported_with_exit_code_2(job, capsys, arguments, message):
    (job / "knobs.toml").write_text(TOML)
    assert run_lab("tune", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("content", ["no JSON", "[]", "{}", '{"command": 1}\n{"x": 1}'])
def test_a_damaged_search_is_reported(job, capsys, content):
    (job / "out").mkdir()
    (job / "out/trials.jsonl").write_text(content)
    assert run_lab("tune", *TUNE, *SH) == 2
    assert "out/trials.jsonl is damaged" in capsys.readouterr().err
    assert not (job / "runs").exists()


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line_and_old_files_are_kept(job, monkeypatch, capsys):
    assert run_lab("tune", *TUNE, "--repeats", "1", "--trials", "2", *SH) == 0
    before = {path.name: path.read_bytes() for path in (job / "out").iterdir()}
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    capsys.readouterr()
    assert run_lab("tune", *TUNE, "--repeats", "1", "--trials", "2", *SH) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lab: cannot write {job}/out/best.env: No space left on device. Free some space")
    assert error.count("\n") == 1
    assert run_lab("tune", *TUNE, "--repeats", "1", "--trials", "3", *SH) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lab: cannot write {job}/out/trials.jsonl: No space left"), "not the command's failure"
    assert {path.name: path.read_bytes() for path in (job / "out").iterdir()} == before


@pytest.mark.slow
def test_an_interrupted_command_keeps_its_trials_and_can_be_resumed(job):
    (job / "job.sh").write_text(
        'echo $A $B >> runs\n[ $(wc -l < runs) -eq 4 ] && sleep 60\necho "speed: $((1 + ${A:-0}))"\n'
    )
    options = (*TUNE, "--repeats", "1", "--trials", "6")
    command = [Path(sys.executable).with_name("labkit"), "tune", *options, *SH]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs = job / "runs"
    assert processes.wait_until(lambda: runs.exists() and len(runs.read_text().splitlines()) == 4, 60)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "3 trials are saved" in output
    assert "Traceback" not in output
    assert "not confirmed" in (job / "out/best.env").read_text()
    second = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert second.returncode == 0
    assert "Resuming after 3 trials" in second.stdout
    trials = read_trials(job)
    assert len({str(trial["settings"]) for trial in trials}) == 6
    assert len(runs.read_text().splitlines()) == 4 + 3 + 4 * 6  # including the confirmation


def test_the_default_command_is_the_benchmark():
    command, knobs = run._command([], TuneConfig())
    assert list(command.argv) == [sys.executable, *run.BENCH_FLAGS]
    assert knobs == space.BENCH_KNOBS
    command, _ = run._command(["python", "train.py"], TuneConfig())
    assert command.argv == ["python", "train.py"]
