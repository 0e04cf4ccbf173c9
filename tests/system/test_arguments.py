import pytest

from labkit.system.arguments import Parser, add_switch, integer, number
from labkit.system.errors import LabError


def parse(*args):
    parser = Parser("./lab try", "Try it.", "examples: none")
    group = parser.add_argument_group("all")
    group.add_argument("--count", type=integer(1))
    group.add_argument("--share", type=number(0, 1))
    add_switch(group, "fast", "as fast as can be")
    return vars(parser.parse_args(args))


def test_only_flags_that_are_set_are_returned():
    assert parse() == {}
    assert parse("--count=3", "--share", "0.5") == {"count": 3, "share": 0.5}


@pytest.mark.parametrize("args", [["--fast"], ["--fast=True"], ["--fast", "yes"], ["--nofast", "--fast=1"]])
def test_a_switch_can_be_turned_on_in_every_notation(args):
    assert parse(*args) == {"fast": True}


@pytest.mark.parametrize("args", [["--nofast"], ["--fast=FALSE"], ["--fast", "--nofast"]])
def test_a_switch_can_be_turned_off_in_every_notation(args):
    assert parse(*args) == {"fast": False}


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("--count=0", "argument --count: 0 is less than 1"),
        ("--count=1.5", "argument --count: invalid integer value: '1.5'"),
        ("--share=2", "argument --share: 2 is more than 1"),
        ("--share=nan", "argument --share: nan is more than 1"),
        ("--share=half", "argument --share: invalid number value: 'half'"),
        ("--fast=maybe", "argument --fast: 'maybe' is neither true nor false"),
        ("--cou=3", "unrecognized arguments: --cou=3"),
    ],
)
def test_invalid_values_are_one_line_errors_that_point_to_help(arg, message):
    with pytest.raises(LabError) as error:
        parse(arg)
    assert str(error.value) == f"{message}. ./lab try --help lists the flags."
