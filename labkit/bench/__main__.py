"""Measure in this process: `python -m labkit.bench --help`."""

import sys

from labkit.bench import flags, run
from labkit.errors import LabError

if __name__ == "__main__":
    try:
        run.measure(flags.parse(sys.argv[1:]))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error
