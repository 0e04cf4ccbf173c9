import functools
import math
import types

import numpy as np
import pandas as pd
import pytest

from labkit.exercises.answers import remember_lines
from labkit.exercises.moving import isolate, module_text
from labkit.exercises.outcomes import NotYet


def notebook(*cells: str, **names) -> dict:
    """Return the variables of a notebook after some cells."""
    variables = {"np": np, "math": math, "functools": functools, "__name__": "__main__"} | names
    for cell in cells:
        file = f"<cell {hash(cell)}>"
        remember_lines(file, cell)
        exec(compile(cell, file, "exec"), variables)
    return variables


FILL = "def fill(n):\n    return 2 * n\n"
ANSWERS = {  # the cells of a notebook in which `double` is right
    "itself": "def double(n):\n    return 2 * n\n",
    "an import": "def double(n):\n    return int(np.multiply(2, n))\n",
    "names from modules": "from math import floor as down\nfrom collections import Counter\n"
    "def double(n):\n    return down(2 * n) + len(Counter())\n",
    "a ufunc": "times = np.multiply\ndef double(n):\n    return int(times(2, n))\n",
    "an import of its own": "def double(n):\n    import math\n    return math.prod([2, n])\n",
    "helpers": "SCALE = 2\ndef inner(n):\n    return SCALE * n\ndef outer(n):\n    return inner(n)\n"
    "def double(n):\n    return outer(n)\n",
    "each other": "def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n > 0 and even(n - 1)\n"
    "def double(n):\n    return 2 * n if even(n) or odd(n) else None\n",
    "another name": f"{FILL}double = fill\n",
    "a name that moved on": f"{FILL}double = fill\ndef fill(n):\n    return 0\n",
    "a default": "SCALE = 2\ndef double(n, scale=SCALE):\n    return scale * n\n",
    "a decorator": "def logged(function):\n    @functools.wraps(function)\n    def call(*given):\n"
    "        return function(*given)\n    return call\n@logged\ndef double(n):\n    return 2 * n\n",
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
    "data": "TABLE, FAR = np.array([2]), math.inf\ndef double(n):\n    return int(TABLE[0] * n) if n < FAR else 0\n",
    "in a block": "if True:\n    def double(n):\n        return 2 * n\n",
    "a local of a global's name": "handle = object()\ndef double(n):\n    handle = 2\n    return handle * n\n",
    "an attribute of a global's name": "real = object()\ndef double(n):\n    return 2 * n.real\n",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_function_uses_moves_with_it(kind):
    double = notebook(ANSWERS[kind])["double"]
    assert isolate("double", double)(3) == 6
    module = {}
    exec(module_text({"double": double}), module)
    assert module["double"](3) == 6


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("def f(s):\n    def double(n):\n        return s * n\n    return double\ndouble = f(2)\n", "by `def name"),
        ("handle = open('/dev/null')\ndef double(n):\n    return handle\n", "it uses handle, which can't"),
        ("table = {'f': lambda n: n}\ndef double(n):\n    return table\n", "it uses table, which can't"),
        ("long = np.zeros(10**6)\ndef double(n):\n    return long\n", "it uses long, which can't"),
    ],
)
def test_what_cannot_move_is_reported(cell, message):
    with pytest.raises(NotYet, match="Expected a function") as mistake:
        isolate("double", notebook(cell)["double"])
    assert message in str(mistake.value)


def test_a_name_that_is_defined_nowhere_is_the_functions_own_error():
    double = isolate("double", notebook("# a comment\n\ndef double(n):\n    return n * scale\n")["double"])
    with pytest.raises(NameError, match="scale"):
        double(3)


def test_lines_keep_their_numbers():
    text = f"{FILL}\n\ndef double(n):\n    return fill(n.missing)\n"
    with pytest.raises(AttributeError) as error:
        isolate("double", notebook(text)["double"])(3)
    assert error.traceback[-1].lineno + 1 == 6


def test_functions_share_what_they_use():
    variables = notebook(FILL, "def one(n):\n    return fill(n)\n", "def two(n):\n    return fill(one(np.int64(n)))\n")
    text = module_text({name: variables[name] for name in ("one", "two")})
    assert [text.count(part) for part in ("import numpy as np", "def fill", "def one", "def two")] == [1, 1, 1, 1]
    assert text.startswith("import numpy as np\n\n\ndef fill")


def test_a_function_of_a_module_on_disk_is_imported():
    assert module_text({"mean": np.mean, "sqrt": math.sqrt}) == "from numpy import mean\nfrom math import sqrt\n"
    assert module_text({"frame": pd.DataFrame}).startswith("from pandas")
    assert isinstance(isolate("f", math.sqrt), types.BuiltinFunctionType)
