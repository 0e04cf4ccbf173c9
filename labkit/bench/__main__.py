"""Measure in this process: `python -m labkit.bench --help`."""

import sys
from argparse import Namespace

from labkit.bench import flags
from labkit.system.errors import LabError


def measure(asked: Namespace) -> None:
    """Measure as the flags say: their variables first, then TensorFlow, which reads them when it is imported."""
    flags.set_variables(asked)
    from labkit.bench import run

    run.measure(asked)


def main() -> None:
    """Measure; what the user can mend is one line, and exit code 2."""
    try:
        measure(flags.parse(sys.argv[1:]))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
