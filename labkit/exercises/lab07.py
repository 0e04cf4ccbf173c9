"""Are the answers to lab 07 right: shares, learning rate, steps, and two scripts that must be really distributed?"""

import math
import shutil
from pathlib import Path

import numpy as np

from labkit.exercises.answers import call, facts, run_answer
from labkit.exercises.core import Lab
from labkit.exercises.verdicts import expect

lab = Lab("07")

IMPORTS = "import math\n\nimport numpy as np"  # of plan.py, and so all that its functions may use
PROBE = Path(__file__).with_name("lab07_ranks.py")
DIGITS, STEPS, RATE = 256, 3, 0.02


@lab.exercise(
    1,
    hints=(
        "How many does each rank get, when all must get equally many? Integer division tells.",
        "Rank r takes the r-th block of that length: from r * length to (r + 1) * length.",
        "If ranks took different numbers of steps, the ones with one more would wait for ever in the last all-reduce.",
    ),
    imports=IMPORTS,
)
def shards(answer) -> None:
    """Shares are disjoint, equally long, inside range(n), and lose fewer than `size`."""
    for n, size in [(12, 1), (12, 4), (10, 4), (1797, 7), (5, 5)]:
        shares = [np.asarray(call(answer, n, rank, size), dtype=np.int64) for rank in range(size)]
        lengths = [len(share) for share in shares]
        every = np.concatenate(shares)
        case = f"for n = {n} and {size} ranks"
        expect(len(set(lengths)) == 1, f"all ranks to get equally many {case}; yours get {lengths}")
        expect(len(set(every)) == len(every), f"no index on two ranks {case}; {len(every) - len(set(every))} are")
        expect(
            set(every) <= set(range(n)),
            f"indices from 0 to {n - 1} {case}; yours reach from {every.min()} to {every.max()}",
        )
        expect(n - len(every) < size, f"fewer than {size} to be left out {case}; yours leave out {n - len(every)}")


@lab.exercise(
    2,
    hints=(
        "Two cases: before `warmup`, and from it on.",
        "On a straight line from base to base * size, the share of the way at a step is step / warmup.",
        "base * (1 + (size - 1) * step / warmup), and base * size once step >= warmup, which also spares you 0 / 0.",
    ),
    imports=IMPORTS,
    beside=(1,),
)
def learning_rates(answer) -> None:
    """A ramp from base to base * size, then constant."""
    for step, base, size, warmup, right in [
        (0, 0.1, 4, 10, 0.1),
        (10, 0.1, 4, 10, 0.4),
        (5, 0.1, 4, 10, 0.25),
        (500, 0.1, 4, 10, 0.4),
        (3, 0.1, 1, 10, 0.1),
        (0, 0.1, 4, 0, 0.4),
        (25, 0.01, 8, 100, 0.0275),
    ]:
        got = call(answer, step, base, size, warmup)
        asked = f"learning_rate(step={step}, base={base}, size={size}, warmup={warmup})"
        expect(isinstance(got, int | float | np.floating), f"{asked} to be a number; it is {got!r}")
        expect(math.isclose(got, right, rel_tol=1e-6), f"{asked} to be {right}; it is {got:.6g}")


@lab.exercise(
    3,
    hints=(
        "How many digits has one rank? You worked it out in exercise 1.",
        "Then how many whole batches fit into its share?",
        "n // size // batch",
    ),
    imports=IMPORTS,
    beside=(1, 2),
)
def steps(answer) -> None:
    """Whole batches in a rank's share."""
    for n, batch, size, right in [
        (8000, 64, 1, 125),
        (8000, 64, 2, 62),
        (8000, 64, 4, 31),
        (100, 64, 2, 0),
        (1000, 10, 3, 33),
    ]:
        got = call(answer, n, batch, size)
        asked = f"steps_per_epoch(n={n}, batch={batch}, size={size})"
        expect(isinstance(got, int | np.integer), f"{asked} to be a whole number; it is {got!r}")
        expect(got == right, f"{asked} to be {right}; it is {got}")


@lab.exercise(
    4,
    hints=(
        "Go through the table of six steps, and through the comments that start with `# Horovod:`. Which names does "
        "the rest of the script use that only you can set?",
        "hvd.init(), then hvd.rank() and hvd.size(); shard() for the digits; hvd.DistributedGradientTape(tape); "
        "hvd.broadcast_variables(list, root_rank=0); if rank == 0: …",
        "The list to broadcast is [v.value for v in model.variables + optimizer.variables] + [done]. The step that "
        "learning_rate() wants is epoch * steps + step.",
    ),
)
def train_hvd(answer) -> None:
    """Two ranks agree, equal one process on all digits, follow the learning rate, and rank 0 alone writes."""
    out = Path(answer).parent / "check"
    shutil.rmtree(out, ignore_errors=True)
    # With a warm-up of one epoch, which is one step here, the rate is RATE once and then 2 * RATE.
    ranks = _distributed(answer, [RATE, 2 * RATE, 2 * RATE], "--warmup", 1, "--out", out / "rank-{rank}")
    rates = [rank["rate"] for rank in ranks]
    expect(
        all(math.isclose(rate, 2 * RATE, rel_tol=1e-5) for rate in rates),
        f"the learning rate to be {2 * RATE} after the warm-up, twice the {RATE} of one rank; it is {rates[0]:.4g}",
    )
    _equals_one_process(ranks)
    wrote = [rank["rank"] for rank in ranks if rank["wrote"]]
    expect(wrote == [0], f"a checkpoint from rank 0 alone (step 6); checkpoints came from ranks {wrote}")


@lab.exercise(
    5,
    hints=(
        "It is what train_step of work/train_hvd.py does, with self in place of model and self.optimizer.",
        "Wrap the tape with hvd.DistributedGradientTape, take its gradient by [v.value for v in "
        "self.trainable_variables], and give self.optimizer.apply_gradients the pairs of both.",
        "And before fit: hvd.broadcast_variables([v.value for v in model.variables], root_rank=0)",
    ),
)
def fit_hvd(answer) -> None:
    """Two ranks under fit agree and equal one process on all digits."""
    _equals_one_process(_distributed(answer, [2 * RATE] * STEPS))


def _distributed(answer: str, rates: list[float], *args: object) -> list[dict]:
    """Run a script on 2 ranks, each rank's share one batch, and give the facts of each rank."""
    common = ("--digits", DIGITS, "--batch", DIGITS // 2, "--epochs", STEPS, "--lr", RATE)
    run = run_answer(2, PROBE, answer, ",".join(map(str, rates)), *common, *args, timeout=180)
    return facts(run)


def _equals_one_process(ranks: list[dict]) -> None:
    """Decide on the weights: same on all ranks, and those of one process on all digits."""
    first = ranks[0]
    if first["spread"] > 0.5 * first["spread_of_seeds"]:
        expect(
            first["spread"] == 0,
            f"both ranks to hold the same weights; they differ by {first['spread']:.3g}, as much as two fresh "
            "models do. Nobody gave them the same start (step 5)",
        )
    expect(
        first["spread"] == 0,
        f"both ranks to hold the same weights; they began alike and drifted apart by {first['spread']:.3g}. Their "
        "gradients are not averaged (step 4)",
    )
    expect(
        first["error"] < 1e-3,
        "two ranks to take the step that one process takes with all digits; the weights are off by "
        f"{100 * first['error']:.0f}% of the way they went. Does each rank train on its own share (step 3), with the "
        "right learning rate in each step, and are gradients averaged rather than added up?",
    )
