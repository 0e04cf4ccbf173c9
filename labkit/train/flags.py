"""The flags of the training program."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from labkit.models.registry import MODELS
from labkit.system.arguments import Parser, integer, number
from labkit.system.errors import LabError
from labkit.train.config import Compression, IterUnit, Mode, OptimizerName, Precision, TrainConfig

EXAMPLES = """\
examples:
  python -m labkit.train --num_iter 20 --iter_unit batch
  mpirun -n 2 python -m labkit.train --model resnet8 --data_dir data/synthetic --num_iter 10 --use_cosine_lr
  sbatch --nodes 2 env/slurm/train.sbatch --num_iter 50 --data_dir /datasets/imagenet --results_dir run1

Run the same command again to continue from the last checkpoint in --results_dir. On SIGTERM, SIGUSR1 or Ctrl-C, it
saves a checkpoint and exits with status 75: not finished, run it again."""


def parse(args: Sequence[str]) -> TrainConfig:
    """Return the configuration that the flags describe.

    Raises
    ------
    LabError
        When a flag is unknown, or makes no sense.
    """
    values = vars(parser().parse_args(args))
    config = TrainConfig(**values)
    if config.data_dir and not config.data_dir.is_dir():
        raise LabError(f"--data_dir={config.data_dir} is not a folder: name the folder with the TFRecords.")
    if config.use_static_loss_scaling and config.precision == "fp32":
        raise LabError("--use_static_loss_scaling needs 16 bits: add --precision fp16, or leave it out.")
    if "loss_scale" in values and not config.use_static_loss_scaling:
        raise LabError("--loss_scale has no effect alone: add --use_static_loss_scaling, or leave it out.")
    return config


def parser() -> Parser:
    """Return the parser; each flag is a field of `TrainConfig`."""
    parser = Parser(
        "python -m labkit.train", "Train and evaluate ResNet-50 on all ranks that it is started on.", EXAMPLES
    )
    count, count_or_0, share = integer(1), integer(0), number(0, 1)

    group = parser.add_argument_group("task")
    group.add_argument("--mode", choices=get_args(Mode), help="the task (train_and_evaluate)")
    group.add_argument(
        "--model",
        choices=[name for name, model in MODELS.items() if model.recipe],
        help="the network; the small ones take 32×32 pixels (resnet50_v1.5)",
    )
    group.add_argument("--iter_unit", choices=get_args(IterUnit), help="unit of --num_iter (epoch)")
    group.add_argument("--num_iter", type=count, metavar="N", help="epochs or batches in total (50)")
    group.add_argument("--batch_size", type=count, metavar="N", help="images per batch and rank (32)")
    group.add_argument("--accumulate", type=count, metavar="N", help="batches per step and rank (1)")
    group.add_argument(
        "--evaluate_every", type=count_or_0, metavar="N", help="epochs between evaluations; 0: one at the end (0)"
    )

    group = parser.add_argument_group("recipe")
    group.add_argument("--lr_init", type=number(0), metavar="R", help="learning rate for a global batch of 256 (0.256)")
    group.add_argument("--lr_warmup_epochs", type=number(0), metavar="N", help="epochs of linear warm-up from 0 (8)")
    group.add_argument(
        "--use_cosine_lr", action="store_true", help="cosine decay; by default, divide by 10 three times"
    )
    group.add_argument(
        "--label_smoothing", type=share, metavar="P", help="share of the target spread over all classes (0.1)"
    )
    group.add_argument("--momentum", type=share, metavar="M", help="momentum (0.875)")
    group.add_argument("--weight_decay", type=number(0), metavar="D", help="weight decay (2^-15)")
    group.add_argument("--optimizer", choices=get_args(OptimizerName), help="the optimizer (momentum)")
    group.add_argument("--precision", choices=get_args(Precision), help="precision of activations (fp32)")
    group.add_argument("--use_static_loss_scaling", action="store_true", help="scale the loss, in 16 bits")
    group.add_argument("--loss_scale", type=number(1), metavar="S", help="the loss scale (1024)")
    group.add_argument("--use_xla", action="store_true", help="compile both passes with XLA; slower on most CPUs")
    group.add_argument("--compression", choices=get_args(Compression), help="compression of sent gradients (none)")

    group = parser.add_argument_group("data and results")
    group.add_argument("--data_dir", type=Path, metavar="DIR", help="TFRecords (one synthetic batch)")
    group.add_argument(
        "--least_area", type=number(0.01, 1), metavar="A", help="smallest share of a picture in a crop (0.08)"
    )
    group.add_argument("--results_dir", type=Path, metavar="DIR", help="log and checkpoints (results)")
    group.add_argument("--log_every", type=count, metavar="N", help="steps between log lines (10)")
    group.add_argument("--warmup_steps", type=count_or_0, metavar="N", help="initial steps that are not timed (2)")
    group.add_argument("--checkpoint_every", type=count, metavar="N", help="steps between checkpoints (500)")
    group.add_argument("--seed", type=count_or_0, metavar="N", help="seed of the images' order and crops (0)")
    group.add_argument("--deterministic", action="store_true", help="bit-identical runs; slower")
    return parser
