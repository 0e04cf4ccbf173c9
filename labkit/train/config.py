"""`TrainConfig`: the configuration of one training run; each field is a flag."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Mode = Literal["train", "evaluate", "train_and_evaluate"]
IterUnit = Literal["epoch", "batch"]
OptimizerName = Literal["momentum", "lars"]
Precision = Literal["fp32", "bf16", "fp16"]
Compression = Literal["none", "fp16"]


@dataclass(frozen=True)
class TrainConfig:
    """The network, images and recipe of a training run; each field is a flag of `python -m labkit.train`.

    Attributes
    ----------
    mode, model
        The task, and the network's name in the registry.
    iter_unit, num_iter
        How long: epochs, or steps, in all.
    batch_size, accumulate : int
        Images at a time, and batches in a step, both of one rank.
    evaluate_every : int
        Epochs between evaluations; 0 is one at the end.
    lr_init, lr_warmup_epochs, use_cosine_lr
        The learning rate for 256 images a step, the epochs over which it rises, and whether it falls as a cosine.
    label_smoothing, momentum, weight_decay, optimizer
        Of the recipe, see `labkit.models.losses` and `labkit.models.optimizers`.
    precision, use_static_loss_scaling, loss_scale
        Of activations; whether the loss has a factor that keeps small gradients from vanishing in 16 bits, and which.
    use_xla : bool
        Whether XLA compiles the forward and the backward pass.
    compression
        Of gradients, on their way between ranks.
    data_dir : Path or None
        The folder of TFRecords; None is one synthetic batch.
    least_area : float
        The least share of a picture in a crop.
    results_dir : Path
        The folder of log and checkpoints.
    log_every, checkpoint_every : int
        Steps between log lines, and between checkpoints.
    warmup_steps : int
        First steps, which are not timed.
    seed, deterministic
        Of the images' order and crops, and whether each run is the same to the last bit.
    """

    mode: Mode = "train_and_evaluate"
    model: str = "resnet50_v1.5"
    iter_unit: IterUnit = "epoch"
    num_iter: int = 50
    batch_size: int = 32
    accumulate: int = 1
    evaluate_every: int = 0
    lr_init: float = 0.256
    lr_warmup_epochs: float = 8
    use_cosine_lr: bool = False
    label_smoothing: float = 0.1
    momentum: float = 0.875
    weight_decay: float = 2**-15
    optimizer: OptimizerName = "momentum"
    precision: Precision = "fp32"
    use_static_loss_scaling: bool = False
    loss_scale: float = 1024
    use_xla: bool = False
    compression: Compression = "none"
    data_dir: Path | None = None
    least_area: float = 0.08
    results_dir: Path = Path("results")
    log_every: int = 10
    warmup_steps: int = 2
    checkpoint_every: int = 500
    seed: int = 0
    deterministic: bool = False

    @property
    def trains(self) -> bool:
        """Whether the run trains, with an evaluation after it or without."""
        return self.mode != "evaluate"

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates."""
        return self.mode != "train"

    @property
    def static_loss_scale(self) -> float:
        """The factor of the loss; 1 without loss scaling."""
        return self.loss_scale if self.use_static_loss_scaling else 1.0
