"""One rank of the training program: `python -m labkit.train --help`."""

import os
import sys

from labkit.system import flags
from labkit.system.errors import LabError
from labkit.system.imports import gc_paused, lighten_keras
from labkit.train.config import TrainConfig

PROGRAM = "python -m labkit.train"
DESCRIPTION = """\
Train and evaluate ResNet-50 on all ranks that it is started on.

Run the same command again to continue from the last checkpoint in --results_dir. On SIGTERM, SIGUSR1 or Ctrl-C, it
saves a checkpoint and exits with status 75: not finished, run it again."""
EXAMPLE = """\
Example: `mpirun -n 2 python -m labkit.train --model resnet8 --data_dir data/synthetic --num_iter 10 --use_cosine_lr`;
on a cluster: `sbatch --nodes 2 env/slurm/train.sbatch --num_iter 50 --data_dir /datasets/imagenet`"""


def main() -> None:
    """Run with the command-line flags; errors that users can fix are one line, with exit code 2."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides start-up notices, not errors
    try:
        config = flags.parse(TrainConfig, sys.argv[1:], PROGRAM, DESCRIPTION, EXAMPLE)
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
