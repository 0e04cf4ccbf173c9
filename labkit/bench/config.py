"""`BenchConfig`: the configuration of a benchmark run; each field is a flag."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from labkit.models.registry import MODELS
from labkit.system import paths
from labkit.system.arguments import Flag
from labkit.system.errors import LabError

WEIGHT_DECAY = 4e-5
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class BenchConfig:
    """The configuration of a run; each field is a flag of `lab bench`.

    Raises
    ------
    LabError
        If fields contradict each other.
    """

    framework: Annotated[Literal["tensorflow", "pytorch"], Flag("PyTorch needs ./lab setup --torch.")] = "tensorflow"
    model: Annotated[str, Flag("The network.", choices=tuple(MODELS))] = "resnet50"
    batch_size: Annotated[int, Flag("Images per step.", min=1)] = 16
    num_batches: Annotated[int, Flag("Timed steps.", min=1)] = 30
    num_warmup_batches: Annotated[int, Flag("Warm-up steps.", min=1)] = 3

    data_format: Annotated[Literal["NHWC", "NCHW"], Flag("Layout of the images; NCHW is for PyTorch.")] = "NHWC"
    use_fp16: Annotated[bool, Flag("Use bfloat16 activations. Weights stay in float32.")] = False
    xla_compile: Annotated[bool, Flag("Compile the step with XLA.")] = False
    torch_compile: Annotated[bool, Flag("Compile the PyTorch network: over a minute the first time.")] = False
    num_intra_threads: Annotated[int, Flag("Threads per operation; 0 is the framework's default.", min=0)] = 0
    num_inter_threads: Annotated[int, Flag("Operations at a time; 0 is the framework's default.", min=0)] = 0

    json: Annotated[Path | None, Flag("Write step times, machine and settings, or a comparison, to this file.")] = None
    config: Annotated[str, Flag("Compare these configurations alternately: their names, separated by commas.")] = ""
    rounds: Annotated[int, Flag("Runs of each configuration.", min=1)] = 6

    def __post_init__(self) -> None:
        """Check fields that depend on others."""
        if self.json and not self.json.parent.is_dir():
            raise LabError(f"there is no folder {self.json.parent} to write {self.json.name} to: create it first.")
        if self.framework == "pytorch" and self.xla_compile:
            raise LabError("--framework=pytorch doesn't support --xla_compile; use --torch_compile.")
        if self.framework == "tensorflow" and self.data_format == "NCHW":
            raise LabError("--data_format=NCHW needs --framework=pytorch.")
        if self.framework == "tensorflow" and self.torch_compile:
            raise LabError("--torch_compile needs --framework=pytorch; for TensorFlow, use --xla_compile.")

    def as_flags(self, without: Sequence[str] = ()) -> list[str]:
        """Return the flags of one run that differ from the defaults, except those named in `without`."""
        excluded = {"config", "rounds", *without}  # the first two describe a comparison
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in values.items()
            if name not in excluded and value != getattr(BenchConfig, name)
        ]

    def set_variables(self) -> None:
        """Set the environment variables that TensorFlow and PyTorch read once, at start-up."""
        os.environ["TF_USE_LEGACY_KERAS"] = "1"  # then TensorFlow doesn't import Keras, half of its start-up time
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(paths.STATE / "torch-compile"))  # compiled code
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # two lines from before absl starts remain
