import json

import pytest

from labkit.system.errors import LabError
from labkit.train.log import Log, read


def write(folder, *steps):
    log = Log(folder, enabled=True)
    for step in steps:
        log.write(f"step {step}", event="train", step=step, cross_entropy=0.5)


def test_the_file_has_json_lines_and_the_screen_has_text(tmp_path, capsys):
    write(tmp_path, 10, 20)
    assert capsys.readouterr().out == "step 10\nstep 20\n"
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [10, 20]
    assert read(tmp_path)[1] == {"event": "train", "step": 20, "cross_entropy": 0.5}


def test_other_ranks_write_nothing(tmp_path, capsys):
    log = Log(tmp_path, enabled=False)
    log.print("hello")
    log.write("hello", step=1)
    log.resume(0)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_resuming_removes_repeated_steps_and_partial_lines(tmp_path):
    write(tmp_path, 10, 20, 30)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"event": "tra')
    assert [record["step"] for record in read(tmp_path)] == [10, 20, 30]
    Log(tmp_path, enabled=True).resume(20)
    write(tmp_path, 30)
    assert [record["step"] for record in read(tmp_path)] == [10, 20, 30]


@pytest.mark.parametrize("damaged", [b"\x00" * 30, b"\xff{", b'{"event": "tra{"step": 20}', b"3", b"[]", b"{}"])
def test_only_damaged_lines_are_left_out(tmp_path, damaged):
    write(tmp_path, 10)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(damaged + b"\n")
    write(tmp_path, 20)
    assert [record["step"] for record in read(tmp_path)] == [10, 20]
    Log(tmp_path, enabled=True).resume(10)
    assert [record["step"] for record in read(tmp_path)] == [10]


def test_a_log_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(LabError, match=r"cannot write .*log\.jsonl: Is a directory"):
        write(tmp_path, 10)


def test_a_missing_log_is_read_as_empty(tmp_path):
    assert read(tmp_path) == []


def test_numbers_that_are_not_finite_become_null(tmp_path):
    Log(tmp_path, enabled=True).write("x", step=1, images_per_second=float("nan"), loss=float("inf"))
    assert read(tmp_path) == [{"step": 1, "images_per_second": None, "loss": None}]
