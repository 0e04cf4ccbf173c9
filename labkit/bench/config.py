"""`BenchConfig`: the configuration of a benchmark run; each field is a flag."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit.models.registry import MODELS, Dataset

OptimizerName = Literal["sgd", "rmsprop"]
VariableUpdate = Literal["parameter_server", "replicated", "horovod"]
Device = Literal["cpu"]
DataFormat = Literal["NHWC", "NCHW"]
Framework = Literal["tensorflow", "pytorch"]

WEIGHT_DECAY = 4e-5  # tf_cnn_benchmarks' factor
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class BenchConfig:
    """The configuration of a run; each field is a flag of `lab bench`, most of them from tf_cnn_benchmarks.

    Attributes
    ----------
    model : str
        A network in the registry.
    batch_size, num_batches, num_warmup_batches, display_every : int
        Images per step and rank; timed steps; warm-up steps; steps between printed lines.
    framework
        TensorFlow or PyTorch, which supports some of the models and flags: see `flags`.
    forward_only : bool
        Whether to classify instead of training.
    optimizer
        The optimizer.
    variable_update
        With "horovod", this is one of several ranks; the other two are the same on one device.
    device, data_format
        The CPU, and the layout of the images.
    use_fp16, fused_batch_norm, fused_shortcuts, xla_compile, torch_compile : bool
        Whether activations are bfloat16, a batch norm is one operation, XLA compiles a shortcut's addition with its
        ReLU, XLA compiles the whole step, and torch.compile compiles the PyTorch network.
    mkl : bool or None
        Whether oneDNN is on; None leaves it to TensorFlow.
    num_intra_threads, num_inter_threads : int
        TensorFlow's threads; 0 leaves them to TensorFlow.
    kmp_blocktime : str or None
        The OpenMP variable of the same name.
    json, trace_file : Path or None
        Files to write: the result, one step's timeline.
    configurations : tuple of str
        Names of `configurations.known` to compare; empty to measure in this process.
    rounds : int
        Runs of each configuration.
    """

    framework: Framework = "tensorflow"
    model: str = "resnet50"
    batch_size: int = 16
    num_batches: int = 30
    num_warmup_batches: int = 3
    display_every: int = 10
    forward_only: bool = False
    optimizer: OptimizerName = "sgd"
    variable_update: VariableUpdate = "parameter_server"
    device: Device = "cpu"
    data_format: DataFormat = "NHWC"
    use_fp16: bool = False
    fused_batch_norm: bool = True
    fused_shortcuts: bool = False
    xla_compile: bool = False
    torch_compile: bool = False
    mkl: bool | None = None
    num_intra_threads: int = 0
    num_inter_threads: int = 0
    kmp_blocktime: str | None = None
    json: Path | None = None
    trace_file: Path | None = None
    configurations: tuple[str, ...] = ()
    rounds: int = 6

    @property
    def data_name(self) -> Dataset:
        """The model's dataset."""
        return MODELS[self.model].dataset
