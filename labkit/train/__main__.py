"""One rank of the training program: `python -m labkit.train --help`."""

import os

from labkit.system import flags
from labkit.system.imports import gc_paused, lighten_keras
from labkit.train.config import TrainConfig

HELP = """\
Train and evaluate ResNet-50 on all ranks that it is started on.

Run the same command again to continue from the last checkpoint in --results_dir. On SIGTERM, SIGUSR1 or Ctrl-C, it
saves a checkpoint and exits with status 75: not finished, run it again."""
EXAMPLE = """\
Example: `mpirun -n 2 python -m labkit.train --model resnet8 --data_dir data/synthetic --num_iter 10 --use_cosine_lr`;
on a cluster: `sbatch --nodes 2 env/slurm/train.sbatch --num_iter 50 --data_dir /datasets/imagenet`"""


def train(config: TrainConfig) -> int:
    """Import TensorFlow, train, and return the exit status."""
    lighten_keras()
    with gc_paused():
        from labkit.train import loop
    return loop.run(config)


def main() -> None:
    """Run with the command-line flags."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides start-up notices, not errors
    flags.run(train, TrainConfig, "labkit.train", help=HELP, epilog=EXAMPLE)


if __name__ == "__main__":
    main()
