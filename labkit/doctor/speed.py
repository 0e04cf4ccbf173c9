"""Whether this machine is as fast as one of its class, by what `lab roofline` has measured on it and kept."""

from importlib import metadata
from typing import Literal

from labkit.roofline import measure
from labkit.roofline.measure import Limits
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine
from labkit.system.words import plural

MEASURE = "./lab roofline"
# On the machine of the stored runs, the fastest FP32 product reaches 516 of the 569 GFLOP/s that its instruction does
# alone (lab 03, section 4): 91%. A lab may take 1.3 times as long elsewhere before its plan is wrong: `minutes.SLOWER`.
STORED_SHARE, SLOWER = 516 / 569, 1.3
WANTED_SHARE = STORED_SHARE / SLOWER
REMEDY = (
    f"`{MEASURE} --again` while nothing else runs; if it stays so, look at power saving (a laptop's plug and profile), "
    "at a neighbour on the same host (`st` in `top`), and at a container's or job's limits on cores"
)


def kept_limits() -> Limits | None:
    """Return the limits of this machine that were measured and kept; None when there are none."""
    try:
        kept = measure.path_for(measure.conditions(usable_machine()), measure.CACHE).exists()
    except metadata.PackageNotFoundError:  # an environment that is broken: other checks say so
        return None
    return measure.limits() if kept else None


def judge(limits: Limits | None, machine: Machine) -> tuple[Literal["ok", "warn"], str, str]:
    """Return the status, what was seen, and what to look at: the fastest FP32 product vs its instruction alone."""
    if limits is None:
        return "ok", f"not measured: `{MEASURE}` does, in about 20 s on an idle machine", ""
    product, paper = limits.peak("float32"), limits.instructions.get("float32")
    seen = f"FP32: {product:,.0f} GFLOP/s"
    if paper is None:
        return "ok", f"{seen}; without a C compiler there is nothing to compare it with", ""
    share = product / paper["speed"]
    cores = plural(machine.usable_cores, "core")
    seen += f", {share:.0%} of what {cores} could do by {paper['instruction']} at their clock ({paper['speed']:,.0f})"
    if limits.others.busy:
        return "warn", f"{seen}, but other work had the cores", f"`{MEASURE} --again` while nothing else runs"
    if share < WANTED_SHARE:
        return "warn", f"{seen}; at least {WANTED_SHARE:.0%} is usual", REMEDY
    return "ok", seen, ""
