"""Which of the user's variables reach the kit's programs, for those that the script `lab` doesn't start."""

from collections.abc import MutableMapping
from fnmatch import fnmatchcase

from labkit.system import paths

RULES = paths.ENV / "variables.txt"  # `lab` reads it too


def settle(environ: MutableMapping[str, str]) -> None:
    """Clear and set variables as `env/variables.txt` says."""
    rules = [(line[0], line[2:]) for line in RULES.read_text().splitlines() if line[:1] in {*"+-!="}]
    for name in list(environ):
        mark = next((mark for mark, pattern in rules if fnmatchcase(name, pattern)), "+")
        if mark in "-!":
            del environ[name]
    for mark, setting in rules:
        if mark == "=":
            name, _, value = setting.replace("{kit}", str(paths.ROOT)).partition("=")
            environ[name] = value
