"""The benchmark's flags: those of tf_cnn_benchmarks, with the same names and meanings."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from labkit.bench.config import BenchConfig, DataFormat, Device, Framework, OptimizerName, VariableUpdate
from labkit.models.registry import MODELS, Dataset
from labkit.system import paths
from labkit.system.arguments import Parser, add_switch, integer

EXAMPLES = """\
examples:
  lab bench --model=resnet50 --batch_size=16 --num_batches=30
  lab bench --forward_only --use_fp16 --json result.json
  lab bench --config eigen,onednn,onednn-threads-bf16,onednn-threads-bf16-fused-huge
  lab bench --config onednn-threads-bf16,torch-threads-bf16 --batch_size=32
  mpirun -n 2 ./lab bench --variable_update=horovod --num_intra_threads=1

Write flags as --name=value or --name value; switch off flags without a value with --noNAME."""

TORCH_MODELS = ("resnet50", "resnet50_v1.5", "resnet101", "mnist")
_TENSORFLOW_ONLY = (
    *("optimizer", "variable_update", "data_format", "fused_batch_norm", "fused_shortcuts", "xla_compile", "mkl"),
    "trace_file",
)


def parse(args: Sequence[str]) -> BenchConfig:
    """Return the configuration that the flags describe.

    Raises
    ------
    LabError
        When a flag is unknown, or has an impossible value.
    """
    command_line = parser()
    values = vars(command_line.parse_args(args))
    data_name = values.pop("data_name", None)
    config = BenchConfig(**values)
    if data_name not in (None, config.data_name):
        command_line.error(f"--model={config.model} needs --data_name={config.data_name}, not {data_name}.")
    for file in filter(None, (config.json, config.trace_file)):
        if not file.parent.is_dir():
            command_line.error(f"there is no folder {file.parent} to write {file.name} to: create it first.")
    if config.data_format == "NCHW" and config.mkl is False:
        command_line.error("--data_format=NCHW needs oneDNN: on a CPU, TensorFlow's own kernels support only NHWC.")
    if config.framework == "pytorch":
        if config.model not in TORCH_MODELS:
            command_line.error(f"--framework=pytorch supports the models {', '.join(TORCH_MODELS)}.")
        if unsupported := [name for name in _TENSORFLOW_ONLY if getattr(config, name) != getattr(BenchConfig(), name)]:
            command_line.error(f"--framework=pytorch doesn't support --{unsupported[0]}.")
    elif config.torch_compile:
        command_line.error("--torch_compile needs --framework=pytorch; for TensorFlow, use --xla_compile.")
    return config


def as_flags(config: BenchConfig, without: Sequence[str] = ()) -> list[str]:
    """Return the flags of one run that differ from the defaults, except those named in `without`."""
    excluded = {"configurations", "rounds", *without}  # the first two describe a comparison
    defaults = BenchConfig()
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return [
        f"--{name}={value}"
        for name, value in values.items()
        if name not in excluded and value != getattr(defaults, name)
    ]


def set_variables(config: BenchConfig) -> None:
    """Set environment variables for the flags. TensorFlow, oneDNN, OpenMP and PyTorch read them once, at start-up."""
    variables = {}
    if config.kmp_blocktime is not None:
        variables["KMP_BLOCKTIME"] = config.kmp_blocktime
    if config.mkl is not None:
        variables["TF_ENABLE_ONEDNN_OPTS"] = str(int(config.mkl))
    if config.variable_update != "horovod":  # Horovod needs Keras; the networks here don't
        variables["TF_USE_LEGACY_KERAS"] = "1"  # then TensorFlow doesn't import Keras, half of its start-up time
    if config.mkl and config.num_intra_threads:
        variables["OMP_NUM_THREADS"] = str(config.num_intra_threads)
    os.environ.update(variables)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.STATE / "torch-compile"))  # compiled code
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # two lines from before absl starts remain


def parser() -> Parser:
    """Return the parser; each flag is a field of `BenchConfig`, except --data_name, which follows from the model."""
    parser = Parser(
        "./lab bench",
        "Measure the images (or sequences) per second that a network trains on, or classifies, on these cores.",
        EXAMPLES,
    )
    count, count_or_0 = integer(1), integer(0)

    group = parser.add_argument_group("workload")
    group.add_argument(
        "--framework", choices=get_args(Framework), help="pytorch after ./lab setup --torch (tensorflow)"
    )
    group.add_argument("--model", choices=MODELS, help="the network (resnet50)")
    group.add_argument("--batch_size", type=count, metavar="N", help="images per step and rank (16)")
    group.add_argument("--num_batches", type=count, metavar="N", help="timed steps (30)")
    group.add_argument("--num_warmup_batches", type=count, metavar="N", help="warm-up steps (3)")
    group.add_argument("--display_every", type=count, metavar="N", help="steps between printed lines (10)")
    add_switch(group, "forward_only", "classify instead of training")
    group.add_argument("--optimizer", choices=get_args(OptimizerName), help="the optimizer (sgd)")
    group.add_argument("--data_name", choices=get_args(Dataset), help="the dataset (the model's)")
    group.add_argument(
        "--variable_update",
        choices=get_args(VariableUpdate),
        help="horovod: one of several ranks under mpirun; the others are equivalent on one device",
    )

    group = parser.add_argument_group("execution")
    group.add_argument("--device", type=str.lower, choices=get_args(Device), help="only cpu")
    group.add_argument("--data_format", choices=get_args(DataFormat), help="layout of the images (NHWC)")
    add_switch(group, "use_fp16", "16-bit activations: bfloat16 on a CPU. Weights stay in float32")
    add_switch(group, "fused_batch_norm", "batch norm as one operation; if off, as in Keras 3 (true)")
    add_switch(group, "fused_shortcuts", "residual networks: compile each shortcut's addition and ReLU with XLA")
    add_switch(group, "xla_compile", "compile the step with XLA")
    add_switch(group, "torch_compile", "compile the PyTorch network, over a minute the first time")
    add_switch(group, "mkl", "oneDNN on or off, and OMP_NUM_THREADS as num_intra_threads (TensorFlow's choice)")
    group.add_argument("--num_intra_threads", type=count_or_0, metavar="N", help="0: TensorFlow's choice (0)")
    group.add_argument("--num_inter_threads", type=count_or_0, metavar="N", help="0: TensorFlow's choice (0)")
    group.add_argument("--kmp_blocktime", metavar="MS", help="OpenMP builds: ms a thread spins before it sleeps")

    group = parser.add_argument_group("output")
    group.add_argument("--json", type=Path, metavar="FILE", help="step times, machine, versions and settings")
    group.add_argument("--trace_file", type=Path, metavar="FILE", help="one step's timeline, for chrome://tracing")

    group = parser.add_argument_group("configurations")
    group.add_argument(
        "--config",
        dest="configurations",
        type=lambda text: tuple(text.split(",")),
        metavar="NAME[,NAME…]",
        help="compare alternately: eigen (oneDNN off), onednn (what pip installs), torch (PyTorch), openmp (TensorFlow "
        "2.14 with OpenMP, from ./lab setup --openmp), each with any of these suffixes, in this order: -compile "
        "(torch), -threads (one per core, one operation at a time), -bf16, -fused and -xla (TensorFlow), -huge (2 MB "
        "pages), -interleave (over NUMA nodes); or all, from default to fast",
    )
    group.add_argument("--rounds", type=count, metavar="N", help="runs of each configuration (6)")
    return parser
