import json

import pytest

from labkit.system.errors import LabError
from labkit.train.log import Log, read


def write(folder, *steps):
    log = Log(folder, enabled=True)
    for step in steps:
        log.write(f"step {step}", event="train", step=step, cross_entropy=0.5)


def test_each_line_is_json_in_the_file_and_words_on_the_screen(tmp_path, capsys):
    write(tmp_path, 10, 20)
    assert capsys.readouterr().out == "step 10\nstep 20\n"
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [10, 20]
    assert read(tmp_path)[1] == {"event": "train", "step": 20, "cross_entropy": 0.5}


def test_other_ranks_say_nothing(tmp_path, capsys):
    log = Log(tmp_path, enabled=False)
    log.print("hello")
    log.write("hello", step=1)
    log.resume(0)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_steps_that_come_again_are_taken_back_and_half_a_line_with_them(tmp_path):
    write(tmp_path, 10, 20, 30)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"event": "tra')
    assert [record["step"] for record in read(tmp_path)] == [10, 20, 30]
    Log(tmp_path, enabled=True).resume(20)
    write(tmp_path, 30)
    assert [record["step"] for record in read(tmp_path)] == [10, 20, 30]


@pytest.mark.parametrize("spoilt", [b"\x00" * 30, b"\xff{", b'{"event": "tra{"step": 20}', b"3", b"[]", b"{}"])
def test_a_spoilt_line_is_left_out_and_the_others_stay(tmp_path, spoilt):
    write(tmp_path, 10)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(spoilt + b"\n")
    write(tmp_path, 20)
    assert [record["step"] for record in read(tmp_path)] == [10, 20]
    Log(tmp_path, enabled=True).resume(10)
    assert [record["step"] for record in read(tmp_path)] == [10]


def test_a_log_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(LabError, match=r"cannot write .*log\.jsonl: Is a directory"):
        write(tmp_path, 10)


def test_no_log_yet_is_an_empty_one(tmp_path):
    assert read(tmp_path) == []


def test_what_is_no_finite_number_is_null(tmp_path):
    Log(tmp_path, enabled=True).write("x", step=1, images_per_second=float("nan"), loss=float("inf"))
    assert read(tmp_path) == [{"step": 1, "images_per_second": None, "loss": None}]
