"""Which knobs has a command, and what may each be on this machine?"""

import difflib
import math
import platform
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.machine import Machine, this_machine

DEFAULTS = Path(__file__).with_name("knobs.toml")
# Where a knob's value goes, and what else each type has.
PLACES = ("env", "flag", "prefix")
TYPES = {"integer": {"low", "high", "step", "log"}, "choice": {"values", "most"}, "library": {"values"}}
EVERY = {"type", "text", "needs", *PLACES}
KINDS = {"env": str, "flag": str, "prefix": str, "text": str, "needs": list, "values": list, "log": bool}
WORDS = {str: "a text", list: "a list", bool: "true or false"}
MOST = 100_000  # values of a knob: a search tries some dozens, and each has to be listed
IMAGE = 0.1e9  # bytes an image of ResNet-50's training takes at most: batch 64 takes 4 to 6 GB (measured, lab bench)
# Beside the loader's own cache: where distributions and conda put libraries.
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", f"{sys.prefix}/lib")


@dataclass(frozen=True)
class Knob:
    """One thing that can be set before a command runs.

    Attributes
    ----------
    values : tuple
        What it may be; None leaves it alone.
    env, flag, prefix : str
        Where the value goes: a variable, behind the command, or before it. One of them.
    text : str
        What it is.
    """

    values: tuple[Any, ...]
    env: str = ""
    flag: str = ""
    prefix: str = ""
    text: str = ""


def values(knobs: Mapping[str, Knob]) -> dict[str, tuple[Any, ...]]:
    """Return the space of some knobs, as `search` takes it."""
    return {name: knob.values for name, knob in knobs.items()}


def default(knobs: Mapping[str, Knob]) -> dict[str, Any]:
    """Return the settings that leave every knob alone."""
    return dict.fromkeys(knobs)


@dataclass(frozen=True)
class Here:
    """What decides which knobs act: this machine, and the command.

    Attributes
    ----------
    machine : Machine
        Its cores, nodes and memory.
    libraries : mapping of str to str
        Path of each shared library that the loader knows, by name.
    numactl : bool
        Whether that program is installed.
    glibc : tuple of int
        Its version, such as (2, 36); empty when the C library is another.
    huge_pages : str
        The kernel's mode: "always", "madvise", "never"; empty when it has none.
    openmp, bench : bool
        Whether the command runs an OpenMP build, and whether it is `lab bench`.
    """

    machine: Machine
    libraries: Mapping[str, str]
    numactl: bool
    glibc: tuple[int, ...]
    huge_pages: str
    openmp: bool = False
    bench: bool = False

    @property
    def words(self) -> dict[str, int]:
        """The numbers that a file may call by name."""
        machine = self.machine
        fed = len(machine.cpus) if machine.quota is None else max(1, int(machine.quota))
        return {
            "cpus": min(len(machine.cpus), fed),
            "cores": machine.usable_cores,
            "nodes": len(machine.numa),
            "images": int(machine.memory / 2 / IMAGE),  # not what is free: a search that goes on has the same space
        }

    @property
    def lacks(self) -> dict[str, str]:
        """Why what a knob may need is not here, and what to do; empty when it is."""
        return {
            "openmp": "" if self.openmp else "the command runs no OpenMP build (say --openmp if it does)",
            "bench": "" if self.bench else "the command is not lab bench",
            "numactl": "" if self.numactl else "numactl is not installed: sudo apt-get install numactl",
            "nodes": "" if len(self.machine.numa) > 1 else "there is one NUMA node here",
            "huge pages": self._no_huge_pages,
        }

    @property
    def _no_huge_pages(self) -> str:
        if self.glibc < (2, 35):
            return "the C library is no glibc 2.35 or later, and malloc has no such tunable"
        # With any other mode glibc doesn't ask: malloc.c, do_set_hugetlb.
        return {
            "madvise": "",
            "always": "the kernel gives them to all who don't ask, too (transparent huge pages: always)",
        }.get(self.huge_pages, f"the kernel gives none (transparent huge pages: {self.huge_pages or 'not built in'})")


def look(openmp: bool = False, bench: bool = False) -> Here:
    """Look at this machine."""
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = mode.read_text().partition("[")[2].partition("]")[0] if mode.exists() else ""
    name, version = platform.libc_ver()
    glibc = tuple(int(part) for part in version.split(".")) if name == "glibc" else ()
    return Here(this_machine(), _libraries(), bool(shutil.which("numactl")), glibc, chosen, openmp, bench)


def _libraries() -> dict[str, str]:
    found = {file.name: str(file) for folder in map(Path, LIBRARIES) for file in folder.glob("lib*malloc*.so*")}
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if Path(ldconfig).exists():  # a line: libm.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libm.so.6
        cache = processes.run([ldconfig, "-p"], timeout=30).lines
        lines = [line.split() for line in cache if "x86-64" in line and "=>" in line]
        found |= {line[0]: line[-1] for line in lines}
    return found


def read(file: Path, here: Here) -> tuple[dict[str, Knob], dict[str, str]]:
    """Read a file of knobs.

    Parameters
    ----------
    file : Path
        In TOML; `knobs.toml` beside this module tells how it is written.
    here : Here
        What the knobs have to act on.

    Returns
    -------
    knobs : dict of str to Knob
        Those that can act here.
    left_out : dict of str to str
        Why the others cannot.

    Raises
    ------
    LabError
        When it can't be read, or makes no sense.
    """
    try:
        tables = tomllib.loads(file.read_text())
    except OSError as error:
        raise LabError(f"cannot read {file}: {error.strerror}. Name the file of knobs.") from error
    except (ValueError, RecursionError) as error:
        raise LabError(f"{file} is no TOML: {error}.") from error
    knobs, left_out = {}, {}
    for name, table in tables.items():
        try:
            _check(table, here)
            lacks = [here.lacks[need] for need in table.get("needs", []) if here.lacks[need]]
            found = () if lacks else _values(table, here)
        except LabError as error:
            raise LabError(f"{file}, knob {name}: {error}") from error
        if lacks:
            left_out[name] = lacks[0]
        elif not found:
            left_out[name] = f"none of {', '.join(map(str, table['values']))} is there"
        else:
            places = {place: table[place] for place in PLACES if place in table}
            knobs[name] = Knob(found, **places, text=table.get("text", ""))
    if not knobs:
        why = "".join(f" {name}: {reason}." for name, reason in left_out.items())
        raise LabError(f"{file} has no knob that can act here.{why}")
    return knobs, left_out


def _check(table: Any, here: Here) -> None:
    if not isinstance(table, dict):
        raise LabError("a knob is a table: write it as [name], and its keys in the lines below.")
    if not isinstance(table.get("type"), str) or table["type"] not in TYPES:
        raise LabError(_unknown("type", table.get("type"), TYPES))
    known = EVERY | TYPES[table["type"]]
    for key in table:
        if key not in known:
            raise LabError(_unknown("key", key, sorted(known)))
    if sum(place in table for place in PLACES) != 1:
        raise LabError("it has to say where its value goes, once: env, flag or prefix.")
    for key, kind in KINDS.items():
        if not isinstance(table.get(key, kind()), kind):
            raise LabError(f"{key} has to be {WORDS[kind]}; it is {table[key]!r}.")
    for key in ("env", "flag", "prefix", "text"):
        if not table.get(key, "x").isprintable():
            raise LabError(f"{key} has to be a text that can be printed, of one line; it is {table[key]!r}.")
    if "env" in table and not re.fullmatch(r"[A-Za-z_]\w*", table["env"], re.ASCII):
        raise LabError(f"env has to be the name of a variable; it is {table['env']!r}.")
    for place in ("flag", "prefix"):
        if place in table and "{value}" not in table[place]:
            raise LabError(f"{place} has to have {{value}} in it, where the value goes; it is {table[place]!r}.")
        _words(table.get(place, ""))
    for need in table.get("needs", []):
        if not isinstance(need, str) or need not in here.lacks:
            raise LabError(_unknown("need", need, here.lacks))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LabError(f"{text!r} is nothing that a shell understands ({error}): close its quotes.") from error


def _unknown(what: str, given: Any, known: Sequence[str] | Mapping[str, Any]) -> str:
    if given is None:
        return f"it has no {what}: give one of {', '.join(known)}."
    near = difflib.get_close_matches(str(given), known, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"there is no {what} {given!r}; there are {', '.join(known)}.{meant}"


def _values(table: Mapping[str, Any], here: Here) -> tuple[Any, ...]:
    """Return what a knob may be; nothing when nothing of it is here."""
    if table["type"] == "integer":  # left alone, programs take all cores: what is next to the highest
        return (*_integers(table, here), None)
    given = table.get("values", [])
    if not given or not all(map(_is_value, given)):
        raise LabError('values has to be a list of numbers or texts, such as [1, 2] or ["a", "b"].')
    for value in given:
        if isinstance(value, str) and (place := table.get("flag") or table.get("prefix")):
            _words(place.replace("{value}", value))
    if len(set(given)) < len(given):
        raise LabError(f"values has one twice: {given}.")
    if table["type"] == "library":
        given = [here.libraries[name] for name in given if name in here.libraries]
    if "most" in table:
        most = _number(table, "most", here)
        if any(isinstance(value, str) for value in given):
            raise LabError("most is for values that are numbers.")
        given = [value for value in given if value <= most]
    return (None, *given) if given else ()


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return value.isprintable()
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integers(table: Mapping[str, Any], here: Here) -> list[int]:
    low, high = _number(table, "low", here), _number(table, "high", here)
    if low > high:
        raise LabError(f"low is {low}, and above high, {high}.")
    if "log" in table and "step" in table:
        raise LabError("it has step and log: give one of them.")
    if not table.get("log"):
        step = _number({"step": 1, **table}, "step", here)
        if step < 1:
            raise LabError(f"step is {step}: give 1 or more.")
        if (count := (high - low) // step + 1) > MOST:
            raise LabError(
                f"from {low} to {high} in steps of {step} it has {count:,} values, and {MOST:,} are the most: give a "
                "larger step, or log = true."
            )
        return list(range(low, high + 1, step))
    if low < 1:
        raise LabError(f"low is {low}: with log give 1 or more.")
    halves = [high >> halvings for halvings in range(high.bit_length())]
    return sorted({low, *(number for half in halves for number in (half, half * 3 // 4) if number >= low)})


def _number(table: Mapping[str, Any], key: str, here: Here) -> int:
    given = table.get(key)
    number = here.words.get(given) if isinstance(given, str) else given
    if not isinstance(number, int) or isinstance(number, bool):
        raise LabError(f"{key} has to be a whole number or one of {', '.join(here.words)}; it is {given!r}.")
    if abs(number) >= 2**63:
        raise LabError(f"{key} has to be a number of 64 bits.")
    return number
