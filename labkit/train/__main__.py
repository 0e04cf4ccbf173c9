"""One rank of the training program: `python -m labkit.train --help`."""

import os
import sys

from labkit.system.errors import LabError
from labkit.system.imports import gc_paused, lighten_keras
from labkit.train import flags


def main() -> None:
    """Run with the command-line flags; errors that users can fix are one line, with exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides start-up notices, not errors
    try:
        config = flags.parse(sys.argv[1:])
        lighten_keras()
        with gc_paused():
            from labkit.train import loop
        status = loop.run(config)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    raise SystemExit(status)


if __name__ == "__main__":
    main()
