"""No cell takes a name from an optional section, as far as that can be read off the sources."""

import pytest

from labkit.exercises import minutes, sources
from labkit.exercises.minutes import Section
from labkit_author import core_path

PLAN = [Section("1"), Section("2", core=False), Section("3", core=False), Section("4"), Section("questions")]


def lab(write_source, **cells):
    """The notebook of a made-up lab: cells by their section, `one` to `four`, and `end`."""
    headings = {"one": "1 · One", "two": "2 · Two", "three": "3 · Three", "four": "4 · Four", "end": "Remember"}
    texts = []
    for name, heading in headings.items():
        texts.append(f"[markdown]\n# ## {heading}")
        texts += [cells.get(name, "pass")] if isinstance(cells.get(name, ""), str) else cells[name]
    return sources.read(write_source("[markdown]\n# # T", *texts))


def taken(notebook):
    return [(name, section) for _, _, name, section in core_path.dependencies(notebook, PLAN)]


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ({"two": "a = 1", "four": "b = a"}, [("a", "2")]),
        ({"two": "a = 1", "end": "print(a)"}, [("a", "2")]),
        ({"two": "a = 1", "three": "b = a"}, [("a", "2")]),
        ({"one": "a = 0", "two": "a = 1", "four": "b = a"}, [("a", "2")]),
        ({"two": "a = 0", "four": "a += 1"}, [("a", "2")]),
        ({"two": "def f():\n    return 1", "four": "b = [f() for _ in 'x']"}, [("f", "2")]),
        ({"two": "a = 1", "four": "def f():\n    return a\n\n\nf()"}, [("a", "2")]),
        ({"one": "def f():\n    return a", "two": "a = 1", "four": "f()"}, [("a", "2")]),
        ({"one": "def f():\n    return [a for _ in 'x']\n\n\ng = {'f': f}", "two": "a = 1", "four": "g"}, [("a", "2")]),
        ({"one": "f = lambda: a", "two": "a = 1", "four": "f()"}, [("a", "2")]),
        ({"two": "import math", "four": "math.pi"}, [("math", "2")]),
        ({"two": "for a in 'x':\n    pass", "four": "b = a"}, [("a", "2")]),
        ({"two": "with open('x') as a:\n    pass", "four": "b = a"}, [("a", "2")]),
        ({"two": "if (a := 1):\n    pass", "four": "b = a"}, [("a", "2")]),
        ({"two": "def f():\n    global a\n    a = 1", "four": "b = a"}, [("a", "2")]),
        ({"two": "a = 1", "four": "if b:\n    a = 2\nc = a"}, [("a", "2")]),
        ({"two": "a = 1", "four": "try:\n    b\nexcept OSError:\n    a = 2\nc = a"}, [("a", "2")]),
        ({"two": "a = 1", "four": "try:\n    c = a\nexcept NameError:\n    c = 0"}, [("a", "2")]),
        ({"two": "match 1:\n    case a:\n        pass", "four": "b = a"}, [("a", "2")]),
        ({"one": "a = 1", "two": "del a", "four": "b = a"}, [("a", "2")]),
        ({"two": "%%writefile work/x.py\na = 1", "four": "run_ranks(2, 'work/x.py')"}, [("work/x.py", "2")]),
        ({"two": "%%writefile work/x.py\na = 1", "four": "run(work / 'x.py')"}, [("work/x.py", "2")]),
        ({"two": "%%writefile work/x.py\na = 1", "four": "import x"}, [("work/x.py", "2")]),
        ({"one": "f = lambda: 'work/x.py'", "two": "a = 1\nf = 'work/x.py'", "four": "f"}, [("f", "2")]),
        (
            {"two": "%%writefile work/x.py\na = 1", "four": ["%%writefile work/y.py\nfrom x import a", "'work/y.py'"]},
            [("work/x.py", "2")],
        ),
        (
            {"two": "%%writefile work/x.py\na = 1", "four": ["%%writefile work/y.py\nrun('work/x.py')", "import y"]},
            [("work/x.py", "2")],
        ),
        (
            {"two": ["%%writefile work/x.py\na = 1", "x = check(1, 'work/x.py')"], "four": "x"},
            [("work/x.py", "2"), ("x", "2")],
        ),
        ({"one": "%%writefile work/x.py\na = 1", "two": "%run work/x.py", "four": "b = a"}, [("a", "2")]),
    ],
)
def test_what_is_taken_from_an_optional_section_is_found(write_source, cells, found):
    assert taken(lab(write_source, **cells)) == found


@pytest.mark.parametrize(
    "cells",
    [
        {"one": "a = 1", "two": "b = a", "three": "b = a + 1", "four": "c = a"},
        {"two": ["a = 1", "b = a"], "four": "print"},
        {"two": "a = 1", "four": "a = 2\nb = a"},
        {"two": "a = 1", "four": "b = [a for a in 'x']"},
        {"two": "a = 1", "four": "def f(a):\n    return a\n\n\nf(1)"},
        {"two": "total = 1", "four": "def f():\n    total = 0\n    total += 1\n    return total\n\n\nf()"},
        {"two": "a = 1", "four": "if b:\n    a = 2\nelse:\n    a = 3\nc = a"},
        {"two": "a = 1", "four": "if b:\n    a = 2\nelse:\n    raise ValueError\nc = a"},
        {"two": "a = 1", "four": "try:\n    a = 2\nexcept OSError:\n    a = 3\nc = a"},
        {"two": "a = 1", "four": "for a in 'x':\n    b = a"},
        {"two": "def f():\n    return 1", "four": "def f():\n    return 2\n\n\nf()"},
        {"one": "a = {}", "two": "a['x'] = 1", "four": "b = a"},
        {"one": "%%writefile work/x.py\na = 1", "two": "'work/x.py'", "four": "'work/x.py'"},
        {"two": "%%writefile work/x.py\na = 1", "four": "%%writefile work/y.py\nimport x"},
        {"two": "%%writefile work/x.py\na = 1", "four": "%%writefile work/x.py\na = 2", "end": "'work/x.py'"},
        {"two": "a = results.hand_in('2')", "end": "results.table('', results.handed_in('2'))"},
    ],
)
def test_what_is_not_taken_is_no_problem(write_source, cells):
    assert taken(lab(write_source, **cells)) == []


def test_a_cell_under_a_heading_without_a_number_is_of_no_section(write_source):
    notebook = lab(write_source, four="x = 1", end="y = 2")
    assert minutes.section_of(notebook)[-3:] == ["4", "", ""]
