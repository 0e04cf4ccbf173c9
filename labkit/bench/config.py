"""`BenchConfig`: the configuration of one run of the benchmark; each field is a flag."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit.models.registry import MODELS, Dataset

OptimizerName = Literal["sgd", "momentum", "rmsprop", "adam"]
VariableUpdate = Literal["parameter_server", "replicated", "horovod"]
Device = Literal["cpu"]
DataFormat = Literal["NHWC", "NCHW"]
Framework = Literal["tensorflow", "pytorch"]

WEIGHT_DECAY = 4e-5  # tf_cnn_benchmarks' factor
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class BenchConfig:
    """The configuration of a run; each field is a flag of `lab bench`, most of them tf_cnn_benchmarks'.

    Attributes
    ----------
    model : str
        A network of the registry.
    batch_size, num_batches, num_warmup_batches, display_every : int
        Images per step and rank; timed steps; steps before those; steps between printed lines.
    framework
        PyTorch has some of the models and flags: see `flags`.
    forward_only : bool
        Whether it classifies instead of training.
    optimizer
        The rule by which the weights follow the gradients.
    variable_update
        With "horovod", this is one rank of several; the other two are the same on one device.
    device, data_format
        The CPU, and the layout of the images.
    use_fp16, fused_batch_norm, fused_shortcuts, xla_compile, torch_compile : bool
        Whether activations are bfloat16, a batch norm is one operation, XLA compiles a shortcut's addition with its
        ReLU, XLA compiles all of the step, and torch.compile compiles PyTorch's network.
    mkl : bool or None
        Whether oneDNN is on; None leaves it to TensorFlow.
    num_intra_threads, num_inter_threads : int
        TensorFlow's threads; 0 leaves them to TensorFlow.
    kmp_blocktime, kmp_affinity, kmp_settings : str or None
        OpenMP's variables of these names.
    json, trace_file : Path or None
        The files to write: the result, one step's timeline.
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
    kmp_affinity: str | None = None
    kmp_settings: str | None = None
    json: Path | None = None
    trace_file: Path | None = None
    configurations: tuple[str, ...] = ()
    rounds: int = 3

    @property
    def data_name(self) -> Dataset:
        """The images that the model is for."""
        return MODELS[self.model].dataset
