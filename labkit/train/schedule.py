"""Learning-rate schedule: linear warm-up, then cosine decay or step decay."""

import math

# Shares of the run after which the rate is divided by 10, without --use_cosine_lr: 30, 60 and 80 of 90 epochs, as in
# Goyal et al. 2017 (arXiv 1706.02677).
DROPS = (1 / 3, 2 / 3, 8 / 9)
BASE_BATCH = 256  # the global batch that --lr_init is meant for, as in the same paper


def peak_rate(lr_init: float, global_batch: int) -> float:
    """Return the rate at the end of the warm-up, linear in the global batch."""
    return lr_init * global_batch / BASE_BATCH


def learning_rate(step: int, steps: int, warmup_steps: float, peak: float, cosine: bool) -> float:
    """Return the rate of a step.

    Parameters
    ----------
    step : int
        The step, from 0 to `steps` - 1.
    steps : int
        The steps of the whole run, including the warm-up.
    warmup_steps : float
        The steps over which the rate rises linearly from 0.
    peak : float
        The rate after the warm-up.
    cosine : bool
        Whether the rate then falls as half a cosine, to 0 at the end, or in steps (`DROPS`).
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if cosine:
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps)))
    return peak * 0.1 ** sum(step >= part * steps for part in DROPS)
