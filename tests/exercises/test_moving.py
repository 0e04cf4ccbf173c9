import functools
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
from IPython.core.autocall import ZMQExitAutocall

from labkit.exercises.engine.answers import remember_lines
from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.moving import isolate, module_text


def notebook(*cells: str, **names) -> dict:
    """Return the variables of a notebook after some cells."""
    variables = {"np": np, "math": math, "functools": functools, "__name__": "__main__"} | names
    for cell in cells:
        file = f"<cell {hash(cell)}>"
        remember_lines(file, cell)
        exec(compile(cell, file, "exec"), variables)
    return variables


FILL = "def fill(n):\n    return 2 * n\n"
ANSWERS = {  # cells of a notebook that define a correct `double`
    "itself": "def double(n):\n    return 2 * n\n",
    "an import": "def double(n):\n    return int(np.multiply(2, n))\n",
    "names from modules": "from math import floor as down\nfrom collections import Counter\n"
    "def double(n):\n    return down(2 * n) + len(Counter())\n",
    "a ufunc": "times = np.multiply\ndef double(n):\n    return int(times(2, n))\n",
    "a local import": "def double(n):\n    import math\n    return math.prod([2, n])\n",
    "helpers": "SCALE = 2\ndef inner(n):\n    return SCALE * n\ndef outer(n):\n    return inner(n)\n"
    "def double(n):\n    return outer(n)\n",
    "mutual recursion": "def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n > 0 and even(n - 1)\n"
    "def double(n):\n    return 2 * n if even(n) or odd(n) else None\n",
    "another name": f"{FILL}double = fill\n",
    "a rebound name": f"{FILL}double = fill\ndef fill(n):\n    return 0\n",
    "a default": "SCALE = 2\ndef double(n, scale=SCALE):\n    return scale * n\n",
    "a decorator": "def logged(function):\n    @functools.wraps(function)\n    def call(*args):\n"
    "        return function(*args)\n    return call\n@logged\ndef double(n):\n    return 2 * n\n",
    "a cache": "@functools.lru_cache(maxsize=None)\ndef double(n):\n    return 2 * n\n",
    "a lambda": "SCALE = 2\ndouble = lambda n: (\n    SCALE * n)\n",
    "a partial": f"{FILL}def times(scale, n, add=1):\n    return scale * n + add\n"
    "double = functools.partial(times, 2, add=0)\n",
    "an object": "class Double:\n    def __init__(self, scale):\n        self.scale = scale\n"
    "    def __call__(self, n):\n        return self.scale * n\ndouble = Double(2)\n",
    "a method": "class Double:\n    scale = 2\n    def times(self, n):\n        return self.scale * n\n"
    "double = Double().times\n",
    "a base class": "class Base:\n    def times(self, n):\n        return 2 * n\nclass Double(Base):\n"
    "    def times(self, n):\n        return super().times(n)\ndef double(n):\n    return Double().times(n)\n",
    "a closure": "def make(scale):\n    def times(n):\n        return scale * n\n    return times\ndouble = make(2)\n",
    "a class without functions": "import enum\nclass Scale(enum.Enum):\n    TWO = 2\n"
    "def double(n):\n    return Scale.TWO.value * n\n",
    "a dict of functions": f"{FILL}ways = {{'fill': fill, 'other': lambda n: 0}}\ndef double(n):\n"
    "    return ways['fill'](n)\n",
    "data": "TABLE, FAR = np.array([2]), math.inf\ndef double(n):\n    return int(TABLE[0] * n) if n < FAR else 0\n",
    "in a block": "if True:\n    def double(n):\n        return 2 * n\n",
    "a local with a global's name": "handle = object()\ndef double(n):\n    handle = 2\n    return handle * n\n",
    "an attribute with a global's name": "real = object()\ndef double(n):\n    return 2 * n.real\n",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Return each module's result for 3 in another process."""
    folder = tmp_path_factory.mktemp("modules")
    for number, cell in enumerate(ANSWERS.values()):
        (folder / f"module_{number}.py").write_text(module_text({"double": notebook(cell)["double"]}))
    code = f"print(*(__import__(f'module_{{number}}').double(3) for number in range({len(ANSWERS)})))"
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return dict(zip(ANSWERS, run.stdout.split(), strict=True))


@pytest.mark.parametrize("kind", ANSWERS)
def test_function_moves_with_everything_it_uses(kind, outputs):
    assert isolate("double", notebook(ANSWERS[kind])["double"])(3) == 6
    assert outputs[kind] == "6"


@pytest.mark.parametrize(
    "cell",
    [
        "handle = (n for n in [1])\ndef double(n):\n    return handle\n",
        "handle = {'f': threading.Lock()}\ndef double(n):\n    return handle\n",
    ],
)
def test_unpicklable_globals_are_reported(cell):
    with pytest.raises(NotYet, match="double can't move to the ranks, which are separate processes: cannot pickle"):
        isolate("double", notebook(cell, threading=threading)["double"])


def test_undefined_name_raises_only_when_called():
    double = isolate("double", notebook("# a comment\n\ndef double(n):\n    return n * scale\n")["double"])
    with pytest.raises(NameError, match="scale"):
        double(3)


def test_later_definitions_do_not_affect_a_moved_function():
    variables = notebook(ANSWERS["helpers"])
    double = isolate("double", variables["double"])
    variables["SCALE"] = 100
    assert double(3) == 6


def test_exit_of_a_kernel_becomes_sys_exit():
    double = isolate("double", notebook("def double(n):\n    exit()\n", exit=ZMQExitAutocall())["double"])
    with pytest.raises(SystemExit):
        double(3)


def test_line_numbers_are_kept():
    text = f"{FILL}\n\ndef double(n):\n    return fill(n.missing)\n"
    with pytest.raises(AttributeError) as error:
        isolate("double", notebook(text)["double"])(3)
    assert error.traceback[-1].lineno + 1 == 6


def test_module_shows_the_source_of_its_functions():
    text = module_text(
        {name: notebook(ANSWERS["itself"])["double"] for name in ("double", "same")} | {"sqrt": math.sqrt}
    )
    assert text.count("\n# def double(n):\n#     return 2 * n\n") == 2
    assert "\n# <built-in function sqrt>\n" in text
    assert all(line.startswith("#") for line in text.partition("\nimport pickle\n")[0].splitlines() if line)
