"""One rank of the training program: `python -m labkit.train --help`."""

import gc
import os
import sys

from labkit.system.errors import LabError
from labkit.train import flags


def main() -> None:
    """Run as the flags say; an error that the user can mend is one line, and exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # notices at every start; errors still come
    try:
        config = flags.parse(sys.argv[1:])
        gc.disable()  # an import leaves no garbage, and looking for it among TensorFlow's objects takes a second
        from labkit.train import loop

        gc.freeze()  # nor need they be collected at the end, which takes another
        gc.enable()
        status = loop.run(config)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    raise SystemExit(status)


if __name__ == "__main__":
    main()
