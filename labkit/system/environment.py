"""Apply the kit's rules for environment variables to notebook kernels that `./lab` did not start."""

from collections.abc import MutableMapping
from fnmatch import fnmatchcase

from labkit.system import paths

RULES = paths.ENV / "variables.txt"  # the script `lab` reads the same file


def settle(environ: MutableMapping[str, str]) -> list[str]:
    """Clear and set variables by the rules; return the names of cleared ones that would have changed results."""
    lines = RULES.read_text(encoding="utf-8").splitlines()
    rules = [(line[0], line[2:].replace("{kit}", str(paths.ROOT))) for line in lines if line[:1] in {*"+-!="}]
    settings = dict(rule.split("=", 1) for mark, rule in rules if mark == "=")
    cleared = []
    for name in sorted(environ):
        mark = next((mark for mark, pattern in rules if fnmatchcase(name, pattern)), "+")
        if mark == "!" and environ[name] != settings.get(name):
            cleared.append(name)
        if mark in "-!":
            del environ[name]
    environ.update(settings)
    return cleared
