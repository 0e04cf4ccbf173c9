"""`TrainConfig`: the configuration of one training run; each field is a flag."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from labkit.models.registry import MODELS
from labkit.system.arguments import Flag
from labkit.system.errors import LabError


@dataclass(frozen=True)
class TrainConfig:
    """The network, images and recipe of a training run; each field is a flag of `python -m labkit.train`.

    Raises
    ------
    LabError
        If `data_dir` isn't a folder, or the loss is scaled in 32 bits or without its flag.
    """

    mode: Annotated[Literal["train", "evaluate", "train_and_evaluate"], Flag("the task")] = "train_and_evaluate"
    model: Annotated[
        str,
        Flag(
            "the network; the small ones take 32×32 pixels",
            choices=tuple(name for name, model in MODELS.items() if model.recipe),
        ),
    ] = "resnet50_v1.5"
    iter_unit: Annotated[Literal["epoch", "batch"], Flag("unit of --num_iter")] = "epoch"
    num_iter: Annotated[int, Flag("epochs or batches in total", min=1)] = 50
    batch_size: Annotated[int, Flag("images per batch and rank", min=1)] = 32
    accumulate: Annotated[int, Flag("batches per step and rank", min=1)] = 1
    evaluate_every: Annotated[int, Flag("epochs between evaluations; 0: one at the end", min=0)] = 0

    lr_init: Annotated[float, Flag("learning rate for a global batch of 256", min=0)] = 0.256
    lr_warmup_epochs: Annotated[float, Flag("epochs of linear warm-up from 0", min=0)] = 8
    use_cosine_lr: Annotated[bool, Flag("cosine decay; by default, divide by 10 three times")] = False
    label_smoothing: Annotated[float, Flag("share of the target spread over all classes", min=0, max=1)] = 0.1
    momentum: Annotated[float, Flag("momentum", min=0, max=1)] = 0.875
    weight_decay: Annotated[float, Flag("weight decay", min=0)] = 2**-15
    optimizer: Annotated[Literal["momentum", "lars"], Flag("see `labkit.models.optimizers`")] = "momentum"
    precision: Annotated[Literal["fp32", "bf16", "fp16"], Flag("precision of activations")] = "fp32"
    use_static_loss_scaling: Annotated[bool, Flag("scale the loss, so that small gradients survive 16 bits")] = False
    loss_scale: Annotated[float, Flag("the loss scale", min=1)] = 1024
    use_xla: Annotated[bool, Flag("compile both passes with XLA; slower on most CPUs")] = False
    compression: Annotated[Literal["none", "fp16"], Flag("compression of gradients sent between ranks")] = "none"

    data_dir: Annotated[Path | None, Flag("folder with TFRecords; by default, one synthetic batch")] = None
    least_area: Annotated[float, Flag("smallest share of a picture in a crop", min=0.01, max=1)] = 0.08
    results_dir: Annotated[Path, Flag("folder for log and checkpoints")] = Path("results")
    log_every: Annotated[int, Flag("steps between log lines", min=1)] = 10
    warmup_steps: Annotated[int, Flag("initial steps that are not timed", min=0)] = 2
    checkpoint_every: Annotated[int, Flag("steps between checkpoints", min=1)] = 500
    seed: Annotated[int, Flag("seed of the images' order and crops", min=0)] = 0
    deterministic: Annotated[bool, Flag("bit-identical runs; slower")] = False

    def __post_init__(self) -> None:
        """Check flags that depend on others, and the folder."""
        if self.data_dir and not self.data_dir.is_dir():
            raise LabError(f"--data_dir={self.data_dir} is not a folder: name the folder with the TFRecords.")
        if self.use_static_loss_scaling and self.precision == "fp32":
            raise LabError("--use_static_loss_scaling needs 16 bits: add --precision fp16, or leave it out.")
        if self.loss_scale != TrainConfig.loss_scale and not self.use_static_loss_scaling:
            raise LabError("--loss_scale has no effect alone: add --use_static_loss_scaling, or leave it out.")

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
