"""What can be asked of the training program?"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from labkit.models.registry import MODELS
from labkit.system.errors import LabError

EXAMPLES = """\
examples:
  python -m labkit.train --num_iter 20 --iter_unit batch
  mpirun -n 2 python -m labkit.train --model resnet8 --data_dir data/drawn --num_iter 10 --cosine_lr
  sbatch --nodes 2 env/slurm/train.sbatch --num_iter 50 --data_dir /datasets/imagenet --results_dir run1

The same line again goes on from the last checkpoint in --results_dir. Told to stop (SIGTERM, SIGUSR1, Ctrl-C), it saves
one and leaves with exit status 75: not done, run it again."""


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Return the flags.

    Raises
    ------
    LabError
        When one is unknown, or makes no sense.
    """
    asked = _parser().parse_args(args)
    if asked.data_dir and not asked.data_dir.is_dir():
        raise LabError(f"--data_dir={asked.data_dir} is no folder: name the one that has the TFRecords.")
    if asked.static_loss_scale != 1 and asked.precision == "fp32":
        raise LabError("--static_loss_scale is for 16 bits: add --precision fp16, or leave it out.")
    return asked


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise LabError(f"{message.rstrip('.')}. python -m labkit.train --help lists the flags.")


def _number(kind: type, name: str, least: float, most: float = float("inf")):
    def convert(text: str) -> float:
        value = kind(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        if not value <= most:
            raise argparse.ArgumentTypeError(f"{text} is more than {most}")
        return value

    convert.__name__ = name  # what argparse calls it
    return convert


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m labkit.train",
        description="Train and evaluate ResNet-50 on as many ranks as it is started on.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whole, count = _number(int, "whole number", 0), _number(int, "whole number", 1)
    positive = _number(float, "number", 0)

    what = parser.add_argument_group("what is done")
    modes = ["train", "evaluate", "train_and_evaluate"]
    what.add_argument("--mode", choices=modes, default="train_and_evaluate", help="what to do (train_and_evaluate)")
    models = [name for name, model in MODELS.items() if model.recipe]
    what.add_argument(
        "--model",
        choices=models,
        default=models[0],
        help="the network; the small ones take 32×32 pixels (resnet50_v1.5)",
    )
    what.add_argument("--iter_unit", choices=["epoch", "batch"], default="epoch", help="unit of --num_iter (epoch)")
    what.add_argument("--num_iter", type=count, default=50, metavar="N", help="epochs, or steps, in all (50)")
    what.add_argument("--batch_size", type=count, default=32, metavar="N", help="images at a time, a rank (32)")
    what.add_argument("--accumulate", type=count, default=1, metavar="N", help="batches in a step, a rank (1)")
    what.add_argument(
        "--evaluate_every", type=whole, default=0, metavar="N", help="epochs between evaluations; 0: one at the end (0)"
    )

    what = parser.add_argument_group("the recipe")
    what.add_argument("--lr_init", type=positive, default=0.256, metavar="R", help="rate for 256 images a step (0.256)")
    what.add_argument("--lr_warmup_epochs", type=positive, default=8, metavar="N", help="rate rises from 0 over N (8)")
    what.add_argument(
        "--cosine_lr", action="store_true", help="then it falls as a cosine; else to a tenth, three times"
    )
    what.add_argument(
        "--label_smoothing",
        type=_number(float, "number", 0, 1),
        default=0.1,
        metavar="P",
        help="certainty not asked for (0.1)",
    )
    what.add_argument(
        "--momentum",
        type=_number(float, "number", 0, 1),
        default=0.875,
        metavar="M",
        help="share of past steps (0.875)",
    )
    what.add_argument(
        "--weight_decay", type=positive, default=3.0517578125e-05, metavar="D", help="pulls weights to 0 (2^-15)"
    )
    what.add_argument(
        "--optimizer", choices=["momentum", "lars"], default="momentum", help="how weights follow gradients (momentum)"
    )
    what.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32", help="of activations (fp32)")
    what.add_argument(
        "--static_loss_scale",
        type=_number(float, "number", 1),
        default=1,
        metavar="S",
        help="of the loss, in 16 bits (1)",
    )
    what.add_argument("--compression", choices=["none", "fp16"], default="none", help="of gradients on the way (none)")

    what = parser.add_argument_group("data, and what it leaves")
    what.add_argument("--data_dir", type=Path, metavar="DIR", help="TFRecords; without, one made-up batch")
    area = _number(float, "number", 0.01, 1)
    what.add_argument(
        "--least_area", type=area, default=0.08, metavar="A", help="least share of a picture in a crop (0.08)"
    )
    what.add_argument(
        "--results_dir", type=Path, default=Path("results"), metavar="DIR", help="log and checkpoints (results)"
    )
    what.add_argument("--log_every", type=count, default=10, metavar="N", help="steps between log lines (10)")
    what.add_argument("--warmup_steps", type=whole, default=2, metavar="N", help="first steps, not timed (2)")
    what.add_argument("--checkpoint_every", type=count, default=500, metavar="N", help="steps between them (500)")
    what.add_argument("--seed", type=whole, default=0, metavar="N", help="of the images' order and crops (0)")
    what.add_argument("--deterministic", action="store_true", help="the same to the last bit each time; slower")
    return parser
