"""The training loop of one rank: set-up, training, evaluation and checkpoints."""

import itertools
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from labkit.data import tfrecords
from labkit.data.synthetic_batch import synthetic_batches
from labkit.models.losses import cross_entropy, l2_loss
from labkit.models.networks import Network
from labkit.models.optimizers import Momentum
from labkit.system import files
from labkit.system.errors import LabError, reason
from labkit.system.words import plural
from labkit.train import checkpoints, records
from labkit.train.config import TrainConfig
from labkit.train.log import Log
from labkit.train.schedule import learning_rate, peak_rate

STOPPED_STATUS = 75  # exit status: EX_TEMPFAIL of sysexits.h, "try again later"
IMAGENET_IMAGES = 1_281_167  # the size of its training set, and of an epoch of the synthetic batch
SYNTHETIC_EVALUATION_BATCHES = 10
DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}

Batches = Iterator[tfrecords.Batch]


def run(config: TrainConfig) -> int:
    """Train, evaluate, or both, and return the exit status: 0, or `STOPPED_STATUS`.

    Raises
    ------
    LabError
        When data or checkpoints are unusable, the loss is not finite, or TensorFlow or Horovod fails, for example
        because another rank has exited.
    """
    # Horovod: find out which rank this is, and of how many.
    hvd.init()
    try:
        return _run(config)
    except (tf.errors.OpError, HorovodInternalError) as error:
        # When one rank exits, Horovod raises an error on all others.
        raise LabError(f"rank {hvd.rank()} cannot continue: {reason(error)}") from error


def _run(config: TrainConfig) -> int:
    if config.deterministic:
        tf.random.set_seed(config.seed)
        tf.config.experimental.enable_op_determinism()
    training = Training(config)
    first = training.restore()
    if config.trains:
        if not training.train(first):
            return STOPPED_STATUS
    elif not first:
        raise LabError(
            f"there is nothing to evaluate in {config.results_dir}: train first, or name another --results_dir."
        )
    if config.evaluates:
        training.evaluate(training.plan.steps if config.trains else first)
    return 0


class Plan(NamedTuple):
    """The plan of a run: training images, images per step, steps per epoch and in total."""

    images: int
    global_batch: int
    steps_per_epoch: float
    steps: int


def make_plan(config: TrainConfig, n_images: int, ranks: int) -> Plan:
    """Return the plan for this number of training images and ranks."""
    global_batch = config.batch_size * config.accumulate * ranks
    steps_per_epoch = n_images / global_batch
    steps = config.num_iter if config.iter_unit == "batch" else math.ceil(config.num_iter * steps_per_epoch)
    return Plan(n_images, global_batch, steps_per_epoch, steps)


def make_train_step(
    config: TrainConfig, network: Network, optimizer: Momentum
) -> Callable[[Batches, float], tf.Tensor]:
    """Return the function that takes one step.

    It takes `accumulate` batches and a rate, and returns the cross-entropy. The gradient is that of
    all ranks' batches combined into one; batch norms see one batch at a time.
    """
    scale, share = config.static_loss_scale, 1 / config.accumulate
    compression = getattr(hvd.Compression, config.compression)
    sums = [tf.Variable(tf.zeros(w.shape), trainable=False) for w in network.weights] if config.accumulate > 1 else []

    def backward(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = cross_entropy(network(images, training=True), labels, config.label_smoothing)
            scaled = scale * loss  # otherwise small gradients vanish in 16 bits
        gradients = tape.gradient(scaled, network.weights)
        return loss, [g * (share / scale) for g in gradients]

    if config.use_xla:  # XLA can't compile Horovod's operations, so all gradients become available at once
        backward = tf.function(backward, autograph=False, jit_compile=True)

    @tf.function(autograph=False)  # nothing to convert, and autograph would search Horovod for seconds
    def accumulate(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, gradients = backward(images, labels)
        for total, g in zip(sums, gradients, strict=True):
            total.assign_add(g)
        return loss

    @tf.function(autograph=False)
    def update(images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        loss, gradients = backward(images, labels)
        if sums:
            gradients = [total + g for total, g in zip(sums, gradients, strict=True)]
        # Horovod: average each gradient over all ranks as soon as it is complete, while the gradients of earlier layers
        # are computed.
        gradients = [hvd.allreduce(g, op=hvd.Average, compression=compression) for g in gradients]
        optimizer.apply(gradients, rate)
        for total in sums:
            total.assign(tf.zeros_like(total))
        return loss

    def step(batches: Batches, rate: float) -> tf.Tensor:
        losses = [accumulate(*next(batches)) for _ in range(config.accumulate - 1)]
        losses.append(update(*next(batches), tf.constant(rate, tf.float32)))
        return share * tf.add_n(losses)

    return step


class Training:
    """One rank of a training run: network, optimizer, images, log.

    Parameters
    ----------
    config : TrainConfig
        The configuration of the run.

    Attributes
    ----------
    plan : Plan
        The images and steps of the run.
    """

    def __init__(self, config: TrainConfig):
        self.config, self.stop = config, _StopSignal()
        self.network = Network(config.model, dtype=DTYPES[config.precision])
        self.optimizer = Momentum(
            self.network.weights, config.momentum, config.weight_decay, lars=config.optimizer == "lars"
        )
        self.state = tf.train.Checkpoint(
            weights=self.network.weights, averages=self.network.averages, velocities=self.optimizer.velocities
        )
        self.log = Log(config.results_dir, enabled=hvd.rank() == 0)
        self.data = self._index("train")
        self.plan = make_plan(config, len(self.data) if self.data else IMAGENET_IMAGES, hvd.size())
        self.log.print(
            f"{config.model} on {plural(hvd.size(), 'rank')}: {self.plan.global_batch} images per step, "
            f"{self.plan.steps_per_epoch:,.1f} steps per epoch; "
            + (f"{len(self.data):,} images in {len(self.data.files)} files" if self.data else "one synthetic batch")
        )

    def train(self, first: int) -> bool:
        """Train from step `first`; return whether training finished, rather than being stopped by a signal."""
        config, plan = self.config, self.plan
        train_step = make_train_step(config, self.network, self.optimizer)
        batches = _TimedBatches(self._batches(first * config.accumulate))
        # The linear scaling rule: n times the batch size, n times the learning rate.
        peak, warmup = peak_rate(config.lr_init, plan.global_batch), config.lr_warmup_epochs * plan.steps_per_epoch
        seconds: list[float] = []  # of the steps since the last log line, without warm-up
        for step in range(first, plan.steps):
            rate = learning_rate(step, plan.steps, warmup, peak, config.use_cosine_lr)
            began = time.perf_counter()
            loss = train_step(batches, rate)
            # Horovod: sum over the ranks, so that all see the same loss, and stop together if one has to stop.
            local = tf.stack([loss / hvd.size(), float(self.stop.requested)])
            loss, stop = map(float, hvd.allreduce(local, op=hvd.Sum, name="agree"))
            if step - first >= config.warmup_steps:
                seconds.append(time.perf_counter() - began)
            done = step + 1
            if not math.isfinite(loss):
                raise LabError(
                    f"the loss of step {done} is {loss}: lower --lr_init or lengthen --lr_warmup_epochs; in fp16, try "
                    "another --loss_scale. The last checkpoint is intact."
                )
            at_end = done == plan.steps
            if done % config.log_every == 0 or at_end or stop:
                self._log_step(done, loss, rate, seconds, batches.waited)
                seconds, batches.waited = [], 0.0
            evaluate = config.evaluate_every and _crosses(done, config.evaluate_every * plan.steps_per_epoch)
            if done % config.checkpoint_every == 0 or at_end or stop or evaluate:
                seconds_to_save = self.save(done)
                if stop and not at_end:
                    # Horovod: when one rank exits, the others are killed, so none exits before rank 0 has saved.
                    seconds_to_save = hvd.broadcast_object(seconds_to_save, 0)
                    self.stop.ignore_more()
                    text = f"stopped: step {done} saved in {seconds_to_save:.2f} s. Run the same command to continue."
                    self.log.write(text, event="stop", step=done, seconds=seconds_to_save)
                    return False
            if evaluate and not at_end and config.evaluates:
                self.evaluate(done)
        return True

    def _log_step(self, done: int, loss: float, rate: float, seconds: list[float], waited: float) -> None:
        plan, l2 = self.plan, float(l2_loss(self.network.weights, self.config.weight_decay))
        speed = plan.global_batch * len(seconds) / sum(seconds) if seconds else math.nan
        self.log.write(
            f"step {done:>6}/{plan.steps}  epoch {done / plan.steps_per_epoch:7.2f}  {speed:8.1f} images/s  "
            f"cross entropy {loss:.4f}  L2 {l2:.4f}  rate {rate:.5f}",
            event="train",
            step=done,
            epoch=done / plan.steps_per_epoch,
            images_per_second=speed,
            cross_entropy=loss,
            l2_loss=l2,
            total_loss=loss + l2,
            learning_rate=rate,
            seconds_for_data=waited,
            time=time.time(),
        )

    def evaluate(self, step: int) -> None:
        """Classify each validation image once, split among the ranks, and log top-1 and top-5."""
        self._average()
        network = self.network
        size, _, channels = network.model.shape

        # The last batch may be smaller: without a signature, it would be traced separately.
        @tf.function(
            autograph=False,
            input_signature=[tf.TensorSpec((None, size, size, channels), tf.float32), tf.TensorSpec((None,), tf.int32)],
        )
        def count_hits(pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            logits = network(pixels, training=False)
            hits = [tf.ones_like(labels, tf.bool), *(tf.math.in_top_k(labels, logits, k) for k in (1, 5))]
            return tf.stack([tf.reduce_sum(tf.cast(hit, tf.int64)) for hit in hits])

        began = time.perf_counter()
        counts = tf.zeros(3, tf.int64)
        for batch in self._validation():
            counts += count_hits(*batch)
        # Horovod: ranks may have different numbers of images, so add counts rather than averaging percentages.
        n, top1, top5 = map(int, hvd.allreduce(counts, op=hvd.Sum, name="counts"))
        speed = n / (time.perf_counter() - began)
        self.log.write(
            f"evaluated after step {step}: top-1 {top1 / n:.3%}, top-5 {top5 / n:.3%} of {n:,}, {speed:.1f} images/s",
            event="evaluate",
            step=step,
            images=n,
            top1=top1 / n,
            top5=top5 / n,
            images_per_second=speed,
        )

    # Images

    def _index(self, kind: tfrecords.Kind) -> tfrecords.Records | None:
        # Horovod: each rank indexes some of the files, and they exchange the results.
        folder = self.config.data_dir
        return tfrecords.index(folder, kind, hvd.rank(), hvd.size(), hvd.allgather_object) if folder else None

    def _batches(self, start: int) -> Batches:
        config = self.config
        if not self.data:
            return synthetic_batches(self.network.model, config.batch_size, rank=hvd.rank())
        # Horovod: each rank reads its share of each global batch.
        share = hvd.rank(), hvd.size()
        size, classes = self.network.model.shape[0], self.network.model.classes
        return iter(
            records.training(self.data, size, config.batch_size, *share, config.seed, start, config.least_area, classes)
        )

    def _validation(self) -> Batches:
        data = self._index("validation")
        if not data:
            return itertools.islice(self._batches(0), SYNTHETIC_EVALUATION_BATCHES)
        size, classes = self.network.model.shape[0], self.network.model.classes
        return iter(records.evaluation(data, size, self.config.batch_size, hvd.rank(), hvd.size(), classes))

    # State

    def save(self, step: int) -> float:
        """Save a checkpoint on rank 0, and return the seconds it took."""
        began = time.perf_counter()
        self._average()
        # Horovod: all ranks have the same state, and two writers corrupt a file.
        if hvd.rank() == 0:
            checkpoints.save(self._folder, self.state, step, self._settings)
        return time.perf_counter() - began

    def restore(self) -> int:
        """Restore rank 0's newest checkpoint on all ranks, and return the number of steps done."""
        step, skipped, error = 0, tuple[str, ...](), ""
        if hvd.rank() == 0:
            try:
                with files.writing(self.config.results_dir, "name another --results_dir"):
                    self.config.results_dir.mkdir(parents=True, exist_ok=True)
                step, skipped = checkpoints.restore(self._folder, self.state, self._check_settings)
            except (LabError, OSError) as problem:
                error = str(problem)
        # Horovod: if one rank cannot continue, none can.
        if error := hvd.broadcast_object(error, 0):
            raise LabError(error)
        step, skipped = hvd.broadcast_object((step, skipped), 0)
        # Horovod: all ranks start from the same weights, whether restored or new.
        hvd.broadcast_variables([*self.network.weights, *self.network.averages, *self.optimizer.velocities], 0)
        for text in skipped:
            self.log.print(f"skipped a damaged checkpoint: {text}")
        if step:
            self.log.print(f"continuing after step {step}")
        self.log.resume(step)
        return step

    @property
    def _folder(self) -> Path:
        return self.config.results_dir / "checkpoints"

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings that must match for a run to continue from a checkpoint."""
        return {
            "model": self.config.model,
            "images": self.plan.images,
            "global_batch": self.plan.global_batch,
            "seed": self.config.seed,
        }

    def _check_settings(self, settings: dict[str, Any]) -> None:
        """Raise LabError unless a checkpoint's settings match this run's; to evaluate, only the model must match."""
        for name in self._settings if self.config.trains else ["model"]:
            if settings.get(name) != self._settings[name]:
                raise LabError(
                    f"{self._folder} is from a run with {name} {settings.get(name)}, but this run has "
                    f"{self._settings[name]}: name another --results_dir, or use the same settings (the global batch "
                    "is ranks × --batch_size × --accumulate)."
                )

    def _average(self) -> None:
        """Average batch norms' moving averages over the ranks, since each saw different images."""
        # Horovod: the mean of moving averages is the moving average of the means, so this can happen at any step.
        averages = self.network.averages
        means = hvd.grouped_allreduce([tf.convert_to_tensor(v) for v in averages], op=hvd.Average)
        for variable, mean in zip(averages, means, strict=True):
            variable.assign(mean)


def _crosses(done: int, interval: float) -> bool:
    """Whether this step completed another `interval` steps, which need not be an integer."""
    return math.floor(done / interval + 1e-9) > math.floor((done - 1) / interval + 1e-9)


class _StopSignal:
    """Record that Slurm or the user asked the program to stop. A second Ctrl-C stops it immediately."""

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

    def __init__(self) -> None:
        self.requested = False
        for number in self.SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def ignore_more(self) -> None:
        """Ignore further signals, so that the exit status stays 75: srun repeats them once a rank has exited."""
        for number in self.SIGNALS:
            signal.signal(number, signal.SIG_IGN)


class _TimedBatches:
    """A rank's batches, with the time spent waiting for them.

    Attributes
    ----------
    waited : float
        The seconds spent waiting since it was last set to 0.
    """

    def __init__(self, batches: Batches):
        self.batches, self.waited = batches, 0.0

    def __iter__(self) -> "_TimedBatches":
        return self

    def __next__(self) -> tuple[tf.Tensor, tf.Tensor]:
        began = time.perf_counter()
        batch = next(self.batches)
        self.waited += time.perf_counter() - began
        return batch
