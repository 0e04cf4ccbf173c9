"""What can be asked of the benchmark? The flags of tf_cnn_benchmarks, with the same names and meaning."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from labkit.models.registry import MODELS
from labkit.system.errors import LabError

EXAMPLES = """\
examples:
  lab bench --model=resnet50 --batch_size=16 --num_batches=30
  lab bench --forward_only --use_fp16 --json result.json
  lab bench --setup eigen,onednn,openmp-kmp,openmp-kmp-bf16
  mpirun -n 2 ./lab bench --variable_update=horovod --num_intra_threads=1

Flags are written --name=value or --name value; those without a value are switched off by --noNAME."""


def parse(args: Sequence[str]) -> argparse.Namespace:
    """Return the flags.

    Raises
    ------
    LabError
        When one is unknown, or makes no sense.
    """
    parser = _parser()
    flags = parser.parse_args(args)
    data_name = MODELS[flags.model].dataset
    if flags.data_name not in (None, data_name):
        parser.error(f"--model={flags.model} takes --data_name={data_name}, not {flags.data_name}.")
    flags.data_name = data_name
    if flags.data_dir and not flags.data_dir.is_dir():
        parser.error(f"--data_dir={flags.data_dir} is no folder: name the one that has the TFRecords.")
    for file in filter(None, (flags.json, flags.trace_file, flags.partitioned_graph_file_prefix)):
        if not file.parent.is_dir():
            parser.error(f"there is no folder {file.parent} to write {file.name} to: make it first.")
    if flags.data_format == "NCHW" and flags.mkl is False:
        parser.error("--data_format=NCHW needs oneDNN: on a CPU, TensorFlow's own convolutions know NHWC alone.")
    return flags


def given(flags: argparse.Namespace, but: Sequence[str] = ()) -> list[str]:
    """Return the flags that are not as by default, but for some, as one writes them."""
    defaults = vars(_parser().parse_args([]))
    return [
        f"--{name}={value}"
        for name, value in vars(flags).items()
        if name not in but and value != defaults[name] and name != "data_name"  # which follows the model
    ]


def set_variables(flags: argparse.Namespace) -> None:
    """Set the variables that flags stand for. TensorFlow, oneDNN and OpenMP read them once, when they start."""
    wanted = {name.upper(): getattr(flags, name) for name in ("kmp_blocktime", "kmp_affinity", "kmp_settings")}
    if flags.mkl is not None:
        wanted["TF_ENABLE_ONEDNN_OPTS"] = str(int(flags.mkl))
    if flags.mkl and flags.num_intra_threads:
        wanted["OMP_NUM_THREADS"] = str(flags.num_intra_threads)
    os.environ.update({name: value for name, value in wanted.items() if value is not None})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # notices at every start; errors still come


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise LabError(f"{message.rstrip('.')}. ./lab bench --help lists the flags.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="lab bench",
        description="Measure how many images a second a network trains on, or classifies, on these cores.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def number(least: int):
        def convert(text: str) -> int:
            value = int(text)
            if value < least:
                raise argparse.ArgumentTypeError(f"{value} is less than {least}")
            return value

        convert.__name__ = "whole number"  # what argparse calls it
        return convert

    def flag(name: str, text: str, default: bool | None = False) -> None:
        truth = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

        def convert(value: str) -> bool:
            if value.lower() not in truth:
                raise argparse.ArgumentTypeError(f"{value!r} is neither true nor false")
            return truth[value.lower()]

        what.add_argument(f"--{name}", nargs="?", const=True, default=default, type=convert, metavar="BOOL", help=text)
        what.add_argument(f"--no{name}", dest=name, action="store_false", default=default, help=argparse.SUPPRESS)

    what = parser.add_argument_group("what is measured")
    what.add_argument("--model", choices=MODELS, default="resnet50", help="the network (default: resnet50)")
    what.add_argument("--batch_size", type=number(1), default=16, metavar="N", help="images a step, a rank (16)")
    what.add_argument("--num_batches", type=number(1), default=30, metavar="N", help="steps that are timed (30)")
    what.add_argument("--num_warmup_batches", type=number(1), default=3, metavar="N", help="steps before those (3)")
    what.add_argument("--display_every", type=number(1), default=10, metavar="N", help="steps between lines (10)")
    flag("forward_only", "classify instead of training")
    what.add_argument("--optimizer", choices=["sgd", "momentum", "rmsprop", "adam"], default="sgd", help="(sgd)")
    what.add_argument("--data_dir", type=Path, metavar="DIR", help="a folder of TFRecords (train-00000-of-01024, …)")
    what.add_argument(
        "--data_name",
        choices=sorted({model.dataset for model in MODELS.values()}),
        help="the data's kind (that of the model)",
    )
    what.add_argument(
        "--variable_update",
        choices=["parameter_server", "replicated", "horovod"],
        default="parameter_server",
        help="horovod: one rank of several under mpirun; the others are the same thing on one device",
    )

    what = parser.add_argument_group("how it runs")
    what.add_argument("--device", type=str.lower, choices=["cpu"], default="cpu", help="cpu, the one this kit is for")
    what.add_argument("--data_format", choices=["NHWC", "NCHW"], default="NHWC", help="layout of the images (NHWC)")
    flag("use_fp16", "activations in 16 bits: bfloat16 on a CPU. Weights stay in float32")
    flag("fused_batch_norm", "batch norm as one operation; without, as Keras 3 computes it (true)", default=True)
    flag("xla_compile", "compile the step with XLA")
    flag("mkl", "oneDNN on or off, and OMP_NUM_THREADS as num_intra_threads (TensorFlow's own choice)", default=None)
    what.add_argument(
        "--num_intra_threads", type=number(0), default=0, metavar="N", help="0 is TensorFlow's choice (0)"
    )
    what.add_argument(
        "--num_inter_threads", type=number(0), default=0, metavar="N", help="0 is TensorFlow's choice (0)"
    )
    what.add_argument("--kmp_blocktime", metavar="MS", help="OpenMP builds: ms a thread spins before it sleeps")
    what.add_argument("--kmp_affinity", metavar="TEXT", help="OpenMP builds: which thread stays on which core")
    what.add_argument("--kmp_settings", metavar="0|1", help="OpenMP builds: print all settings at the start")

    what = parser.add_argument_group("what it leaves")
    what.add_argument("--json", type=Path, metavar="FILE", help="every step's time, machine, versions, settings")
    what.add_argument("--trace_file", type=Path, metavar="FILE", help="one step's timeline, for chrome://tracing")
    what.add_argument(
        "--partitioned_graph_file_prefix", type=Path, metavar="PREFIX", help="the graphs that ran, as PREFIX0.pbtxt …"
    )

    what = parser.add_argument_group("set-ups")
    what.add_argument(
        "--setup",
        type=lambda text: text.split(","),
        metavar="NAME[,NAME…]",
        help="compare: eigen, onednn, openmp, openmp-kmp, openmp-kmp-numactl, each also with -bf16; or all",
    )
    what.add_argument("--rounds", type=number(1), default=3, metavar="N", help="turns that the set-ups take (3)")
    return parser
