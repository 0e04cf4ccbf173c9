from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from lab_error import error_of

from labkit.system import flags
from labkit.system.arguments import Flag


@dataclass(frozen=True)
class Config:
    count: Annotated[int, Flag("How many.", min=1)] = 2
    share: Annotated[float, Flag("Of all.", min=0)] = 0.5
    kind: Annotated[Literal["a", "b"], Flag("The kind.")] = "a"
    colour: Annotated[str, Flag("The colour.", choices=("red", "blue"))] = "red"
    fast: Annotated[bool, Flag("As fast as can be.")] = False


def parse(*args):
    return flags.parse(Config, args, "./lab try")


def test_flags_that_are_not_set_have_their_defaults():
    assert parse() == Config()
    assert parse("--count=3", "--share", "0.25", "--kind=b") == Config(count=3, share=0.25, kind="b")


def test_a_switch_is_off_unless_it_is_given():
    assert (parse().fast, parse("--fast").fast) == (False, True)


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("--count=0", "invalid value for '--count': Input should be greater than or equal to 1."),
        ("--count=1.5", "invalid value for '--count': Input should be a valid integer"),
        ("--share=nan", "invalid value for '--share': Input should be"),
        ("--kind=c", "'c' is not one of 'a', 'b'."),
        ("--colour=green", "'green' is not one of 'red', 'blue'."),
        ("--fast=true", "option '--fast' does not take a value."),
        ("--cou=3", "no such option: --cou"),  # no abbreviations
        ("more", "unexpected extra argument"),
    ],
)
def test_invalid_values_are_one_line_errors_that_point_to_help(arg, message):
    error = error_of(parse, arg)
    assert message in error
    assert arg == "--fast=true" or error.endswith(" See ./lab try --help.")


def test_help_lists_flags_and_choices(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert not ended.value.code
    assert "--colour NAME The colour. One of: red, blue." in text
