"""One rank of the training program: `python -m labkit.train --help`."""

import os
import sys

from labkit.system.errors import LabError
from labkit.system.imports import lighten_keras, uncollected
from labkit.train import flags


def main() -> None:
    """Run as the flags say; an error that the user can mend is one line, and exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # notices at every start; errors still come
    try:
        config = flags.parse(sys.argv[1:])
        lighten_keras()
        with uncollected():
            from labkit.train import loop
        status = loop.run(config)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    raise SystemExit(status)


if __name__ == "__main__":
    main()
