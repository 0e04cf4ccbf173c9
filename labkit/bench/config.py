"""`BenchConfig`: the configuration of a benchmark run; each field is a flag."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from labkit.models.registry import MODELS, Dataset
from labkit.system import paths
from labkit.system.arguments import Flag
from labkit.system.errors import LabError

OptimizerName = Literal["sgd", "rmsprop"]

WEIGHT_DECAY = 4e-5  # tf_cnn_benchmarks' factor
LEARNING_RATE = 0.01

CONFIG = (
    "compare alternately, by comma-separated names: eigen (oneDNN off), onednn (what pip installs), torch (PyTorch), "
    "each with any of these suffixes, in this order: "
    "-compile (torch), -threads (one per core, one operation at a time), -intel (torch, on Intel's OpenMP instead of "
    "GNU's), -sleep (torch, waiting threads), -bf16 and -huge (2 MB pages); or all, from default to fast"
)
_TENSORFLOW_ONLY = "optimizer", "variable_update", "xla_compile", "mkl"


@dataclass(frozen=True)
class BenchConfig:
    """The configuration of a run; each field is a flag of `lab bench`, most of them from tf_cnn_benchmarks.

    Raises
    ------
    LabError
        If fields contradict each other.
    """

    framework: Annotated[Literal["tensorflow", "pytorch"], Flag("PyTorch needs ./lab setup --torch")] = "tensorflow"
    model: Annotated[str, Flag("the network", choices=tuple(MODELS))] = "resnet50"
    batch_size: Annotated[int, Flag("images per step and rank", min=1)] = 16
    num_batches: Annotated[int, Flag("timed steps", min=1)] = 30
    num_warmup_batches: Annotated[int, Flag("warm-up steps", min=1)] = 3
    display_every: Annotated[int, Flag("steps between printed lines", min=1)] = 10
    forward_only: Annotated[bool, Flag("classify instead of training")] = False
    optimizer: Annotated[OptimizerName, Flag("the optimizer")] = "sgd"
    data_name: Annotated[Dataset | None, Flag("the dataset, which must be the model's")] = None
    variable_update: Annotated[
        Literal["parameter_server", "replicated", "horovod"],
        Flag("horovod: one of several ranks under mpirun; the others are equivalent on one device"),
    ] = "parameter_server"

    device: Annotated[Literal["cpu", "CPU"], Flag("the only device")] = "cpu"
    data_format: Annotated[Literal["NHWC", "NCHW"], Flag("layout of the images")] = "NHWC"
    use_fp16: Annotated[bool, Flag("16-bit activations: bfloat16 on a CPU. Weights stay in float32")] = False
    xla_compile: Annotated[bool, Flag("compile the step with XLA")] = False
    torch_compile: Annotated[bool, Flag("compile the PyTorch network, over a minute the first time")] = False
    mkl: Annotated[
        bool | None, Flag("oneDNN, and OMP_NUM_THREADS as num_intra_threads; by default, TensorFlow's choice")
    ] = None
    num_intra_threads: Annotated[int, Flag("0: TensorFlow's choice", min=0)] = 0
    num_inter_threads: Annotated[int, Flag("0: TensorFlow's choice", min=0)] = 0
    kmp_blocktime: Annotated[str | None, Flag("OpenMP builds: ms a thread spins before it sleeps")] = None

    json: Annotated[Path | None, Flag("file for step times, machine, versions and settings")] = None
    config: Annotated[str, Flag(CONFIG)] = ""
    rounds: Annotated[int, Flag("runs of each configuration", min=1)] = 6

    def __post_init__(self) -> None:
        """Check fields that depend on others."""
        if self.data_name not in (None, self.dataset):
            raise LabError(f"--model={self.model} needs --data_name={self.dataset}, not {self.data_name}.")
        if self.json and not self.json.parent.is_dir():
            raise LabError(f"there is no folder {self.json.parent} to write {self.json.name} to: create it first.")
        if self.data_format == "NCHW" and self.mkl is False:
            raise LabError("--data_format=NCHW needs oneDNN: on a CPU, TensorFlow's own kernels support only NHWC.")
        if self.framework == "pytorch":
            set_flags = (name for name in _TENSORFLOW_ONLY if getattr(self, name) != getattr(BenchConfig, name))
            if unsupported := next(set_flags, ""):
                raise LabError(f"--framework=pytorch doesn't support --{unsupported}.")
        elif self.torch_compile:
            raise LabError("--torch_compile needs --framework=pytorch; for TensorFlow, use --xla_compile.")

    @property
    def dataset(self) -> Dataset:
        """The model's dataset."""
        return MODELS[self.model].dataset

    def as_flags(self, without: Sequence[str] = ()) -> list[str]:
        """Return the flags of one run that differ from the defaults, except those named in `without`."""
        excluded = {"config", "rounds", *without}  # the first two describe a comparison
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return [
            f"--{name}={value}"
            for name, value in values.items()
            if name not in excluded and value != getattr(BenchConfig, name)
        ]

    def set_variables(self) -> None:
        """Set the environment variables that TensorFlow, oneDNN, OpenMP and PyTorch read once, at start-up."""
        variables = {}
        if self.kmp_blocktime is not None:
            variables["KMP_BLOCKTIME"] = self.kmp_blocktime
        if self.mkl is not None:
            variables["TF_ENABLE_ONEDNN_OPTS"] = str(int(self.mkl))
        if self.variable_update != "horovod":  # Horovod needs Keras; the networks here don't
            variables["TF_USE_LEGACY_KERAS"] = "1"  # then TensorFlow doesn't import Keras, half of its start-up time
        if self.mkl and self.num_intra_threads:
            variables["OMP_NUM_THREADS"] = str(self.num_intra_threads)
        os.environ.update(variables)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.STATE / "torch-compile"))  # compiled code
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # two lines from before absl starts remain
