"""Measure in this process: `python -m labkit.bench --help`."""

import sys

from labkit.bench import flags
from labkit.errors import LabError


def main(args: list[str]) -> None:
    """Measure as the flags say; what the user can mend is one line, and exit code 2."""
    try:
        asked = flags.parse(args)
        flags.set_variables(asked)
        from labkit.bench import run  # imports TensorFlow, which reads them

        run.measure(asked)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main(sys.argv[1:])
