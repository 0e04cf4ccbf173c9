"""The knobs of a command, read from a TOML file, and the values that each can have on this host."""

import difflib
import math
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.system import files, huge_pages, processes
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine

DEFAULT_KNOBS = Path(__file__).with_name("knobs.toml")
# Where a knob's value goes, and what else each type has.
PLACES = ("env", "flag", "prefix")
TYPE_KEYS = {"integer": {"low", "high", "step", "log"}, "choice": {"values", "most"}, "library": {"values"}}
COMMON_KEYS = {"type", "text", "needs", *PLACES}
KEY_TYPES = {"env": str, "flag": str, "prefix": str, "text": str, "needs": list, "values": list, "log": bool}
TYPE_NAMES = {str: "a text", list: "a list", bool: "true or false"}
MAX_VALUES = 100_000  # of a knob: a search tries some dozens, and each has to be listed
IMAGE_BYTES = 0.1e9  # that an image of ResNet-50's training takes at most: batch 64 takes 4 to 6 GB (lab bench)
# Beside the loader's own cache: where distributions and conda put libraries.
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", f"{sys.prefix}/lib")


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


def space_of(knobs: Mapping[str, Knob]) -> dict[str, tuple[Any, ...]]:
    """Return the space of some knobs, as `search` takes it."""
    return {name: knob.values for name, knob in knobs.items()}


def default_settings(knobs: Mapping[str, Knob]) -> dict[str, Any]:
    """Return the settings that leave every knob alone."""
    return dict.fromkeys(knobs)


@dataclass(frozen=True)
class Host:
    """What decides which knobs act: the machine, its software, and the command that it runs.

    Attributes
    ----------
    machine : Machine
        Its cores, nodes and memory.
    libraries : mapping of str to str
        Path of each shared library that the loader knows, by name.
    numactl : bool
        Whether that program is installed.
    no_huge_pages : str
        Why malloc can't have pages of 2 MB for the asking; empty when it can.
    openmp, bench : bool
        Whether the command runs an OpenMP build, and whether it is `lab bench`.
    """

    machine: Machine
    libraries: Mapping[str, str]
    numactl: bool
    no_huge_pages: str
    openmp: bool = False
    bench: bool = False

    @property
    def named_numbers(self) -> dict[str, int]:
        """The numbers that a file of knobs can call by name."""
        machine = self.machine
        quota = len(machine.cpus) if machine.quota is None else max(1, int(machine.quota))
        return {
            "cpus": min(len(machine.cpus), quota),
            "cores": machine.usable_cores,
            "nodes": len(machine.numa),
            "images": int(
                machine.memory / 2 / IMAGE_BYTES
            ),  # not what is free: a search that goes on has the same space
        }

    @property
    def unmet(self) -> dict[str, str]:
        """Why each need that a knob can have is not met, and what to do; empty when it is met."""
        return {
            "openmp": "" if self.openmp else "the command runs no OpenMP build (say --openmp if it does)",
            "bench": "" if self.bench else "the command is not lab bench",
            "numactl": "" if self.numactl else "numactl is not installed: sudo apt-get install numactl",
            "nodes": "" if len(self.machine.numa) > 1 else "there is one NUMA node here",
            "huge pages": self.no_huge_pages,
        }


def inspect_host(openmp: bool = False, bench: bool = False) -> Host:
    """Return what this host has; `openmp` and `bench` tell about the command."""
    numactl = bool(shutil.which("numactl"))
    return Host(usable_machine(), _libraries(), numactl, huge_pages.why_not(), openmp, bench)


def _libraries() -> dict[str, str]:
    found = {file.name: str(file) for folder in map(Path, LIBRARY_FOLDERS) for file in folder.glob("lib*malloc*.so*")}
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if Path(ldconfig).exists():  # a line: libm.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libm.so.6
        cache = processes.run([ldconfig, "-p"], timeout=30).lines
        lines = [line.split() for line in cache if "x86-64" in line and "=>" in line]
        found |= {line[0]: line[-1] for line in lines}
    return found


def read(file: Path, host: Host) -> tuple[dict[str, Knob], dict[str, str]]:
    """Read a file of knobs.

    Parameters
    ----------
    file : Path
        In TOML; `knobs.toml` beside this module tells how it is written.
    host : Host
        What the knobs have to act on.

    Returns
    -------
    knobs : dict of str to Knob
        Those that can act on this host.
    left_out : dict of str to str
        Why the others cannot.

    Raises
    ------
    LabError
        When it can't be read, or makes no sense.
    """
    try:
        tables = tomllib.loads(files.read(file).decode())
    except OSError as error:
        raise LabError(f"cannot read {file}: {error.strerror}. Name the file of knobs.") from error
    except (ValueError, RecursionError) as error:
        raise LabError(f"{file} is not TOML: {error}.") from error
    knobs: dict[str, Knob] = {}
    left_out: dict[str, str] = {}
    for name, table in tables.items():
        try:
            _check(table, host)
            unmet = [host.unmet[need] for need in table.get("needs", []) if host.unmet[need]]
            found = () if unmet else _values(table, host)
        except LabError as error:
            raise LabError(f"{file}, knob {name}: {error}") from error
        if unmet:
            left_out[name] = unmet[0]
        elif not found:
            left_out[name] = f"none of {', '.join(map(str, table['values']))} is there"
        else:
            places = {place: table[place] for place in PLACES if place in table}
            knobs[name] = Knob(found, **places, text=table.get("text", ""))
    if not knobs:
        why = "".join(f" {name}: {reason}." for name, reason in left_out.items())
        raise LabError(f"{file} has no knob that can act here.{why}")
    return knobs, left_out


def _check(table: Any, host: Host) -> None:
    """Check the keys of a knob's table, and what they are.

    By hand, and not by a JSON schema, for the sake of its messages. The keys depend on the type; where one is misspelt,
    fastjsonschema says "data must be valid exactly by one definition (0 matches found)", and nothing of what there is.
    What a number may be called, and which needs there are, is the host's to say.

    Raises
    ------
    LabError
        When something makes no sense: what is wrong, and what may be meant.
    """
    if not isinstance(table, dict):
        raise LabError("a knob is a table: write it as [name], and its keys in the lines below.")
    if not isinstance(table.get("type"), str) or table["type"] not in TYPE_KEYS:
        raise LabError(_unknown("type", table.get("type"), TYPE_KEYS))
    known = COMMON_KEYS | TYPE_KEYS[table["type"]]
    for key in table:
        if key not in known:
            raise LabError(_unknown("key", key, sorted(known)))
    if sum(place in table for place in PLACES) != 1:
        raise LabError("it has to say where its value goes, once: env, flag or prefix.")
    for key, kind in KEY_TYPES.items():
        if not isinstance(table.get(key, kind()), kind):
            raise LabError(f"{key} has to be {TYPE_NAMES[kind]}; it is {table[key]!r}.")
    for key in ("env", "flag", "prefix", "text"):
        if not table.get(key, "x").isprintable():
            raise LabError(f"{key} has to be a text that can be printed, of one line; it is {table[key]!r}.")
    if "env" in table and not re.fullmatch(r"[A-Za-z_]\w*", table["env"], re.ASCII):
        raise LabError(f"env has to be the name of a variable; it is {table['env']!r}.")
    for place in ("flag", "prefix"):
        if place in table and "{value}" not in table[place]:
            raise LabError(f"{place} has to have {{value}} in it, where the value goes; it is {table[place]!r}.")
        _check_quotes(table.get(place, ""))
    for need in table.get("needs", []):
        if not isinstance(need, str) or need not in host.unmet:
            raise LabError(_unknown("need", need, host.unmet))


def _check_quotes(text: str) -> None:
    try:
        shlex.split(text)
    except ValueError as error:
        raise LabError(f"{text!r} is nothing that a shell understands ({error}): close its quotes.") from error


def _unknown(what: str, name: Any, known: Sequence[str] | Mapping[str, Any]) -> str:
    if name is None:
        return f"it has no {what}: give one of {', '.join(known)}."
    near = difflib.get_close_matches(str(name), known, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"there is no {what} {name!r}; there are {', '.join(known)}.{meant}"


def _values(table: Mapping[str, Any], host: Host) -> tuple[Any, ...]:
    """Return the values that a knob can have on this host; none when nothing of it is there."""
    if table["type"] == "integer":  # left alone, programs take all cores: what is next to the highest
        return (*_integers(table, host), None)
    values = table.get("values", [])
    if not values or not all(map(_is_value, values)):
        raise LabError('values has to be a list of numbers or texts, such as [1, 2] or ["a", "b"].')
    for value in values:
        if isinstance(value, str) and (place := table.get("flag") or table.get("prefix")):
            _check_quotes(place.replace("{value}", value))
    if len(set(values)) < len(values):
        raise LabError(f"values has one twice: {values}.")
    if table["type"] == "library":
        values = [host.libraries[name] for name in values if name in host.libraries]
    if "most" in table:
        most = _number(table, "most", host)
        if any(isinstance(value, str) for value in values):
            raise LabError("most is for values that are numbers.")
        values = [value for value in values if value <= most]
    return (None, *values) if values else ()


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return value.isprintable()
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integers(table: Mapping[str, Any], host: Host) -> list[int]:
    low, high = _number(table, "low", host), _number(table, "high", host)
    if low > high:
        raise LabError(f"low is {low}, and above high, {high}.")
    if "log" in table and "step" in table:
        raise LabError("it has step and log: give one of them.")
    if not table.get("log"):
        step = _number({"step": 1, **table}, "step", host)
        if step < 1:
            raise LabError(f"step is {step}: give 1 or more.")
        if (count := (high - low) // step + 1) > MAX_VALUES:
            raise LabError(
                f"from {low} to {high} in steps of {step} it has {count:,} values, and {MAX_VALUES:,} are the most: "
                "give a larger step, or log = true."
            )
        return list(range(low, high + 1, step))
    if low < 1:
        raise LabError(f"low is {low}: with log give 1 or more.")
    halves = [high >> halvings for halvings in range(high.bit_length())]
    return sorted({low, *(number for half in halves for number in (half, half * 3 // 4) if number >= low)})


def _number(table: Mapping[str, Any], key: str, host: Host) -> int:
    given = table.get(key)
    number = host.named_numbers.get(given) if isinstance(given, str) else given
    if not isinstance(number, int) or isinstance(number, bool):
        raise LabError(f"{key} has to be a whole number or one of {', '.join(host.named_numbers)}; it is {given!r}.")
    if abs(number) >= 2**63:
        raise LabError(f"{key} has to be a number of 64 bits.")
    return number
