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
        The length of the run, in epochs or steps.
    batch_size, accumulate : int
        Images per batch, and batches per step, both per rank.
    evaluate_every : int
        Epochs between evaluations; 0 evaluates once, at the end.
    lr_init, lr_warmup_epochs, use_cosine_lr
        The learning rate for a global batch of 256, the warm-up epochs, and whether it then decays as a cosine.
    label_smoothing, momentum, weight_decay, optimizer
        The recipe: see `labkit.models.losses` and `labkit.models.optimizers`.
    precision, use_static_loss_scaling, loss_scale
        The precision of activations, whether the loss is scaled to keep small gradients from vanishing in 16 bits, and
        the factor.
    use_xla : bool
        Whether XLA compiles the forward and backward passes.
    compression
        The compression of gradients sent between ranks.
    data_dir : Path or None
        The folder with TFRecords; None for one synthetic batch.
    least_area : float
        The smallest share of a picture in a crop.
    results_dir : Path
        The folder for log and checkpoints.
    log_every, checkpoint_every : int
        Steps between log lines, and between checkpoints.
    warmup_steps : int
        Initial steps that are not timed.
    seed, deterministic
        The seed of the images' order and crops, and whether runs are bit-identical.
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
        """Whether the run trains, with or without evaluation."""
        return self.mode != "evaluate"

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates."""
        return self.mode != "train"

    @property
    def static_loss_scale(self) -> float:
        """The loss scale; 1 without loss scaling."""
        return self.loss_scale if self.use_static_loss_scaling else 1.0
