"""Whether this machine is as fast as one of its class, by what `lab roofline` has measured on it and kept."""

from collections.abc import Mapping
from importlib import metadata
from typing import Literal

from labkit.display import machines
from labkit.roofline import measure
from labkit.roofline.measure import Limits
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine
from labkit.system.words import plural

MEASURE = "./lab roofline"
SLOWER = 1.3  # a lab may take so many times as long elsewhere before its plan is wrong: `minutes.SLOWER`
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


def usual_shares() -> dict[str, float]:
    """Return for each instruction the smallest share of its speed that an FP32 matmul reached on a known machine."""
    shares: dict[str, float] = {}
    for machine in machines.read_all():
        if paper := machine["limits"]["instructions"].get("float32"):
            share = machine["limits"]["peaks"]["float32"] / paper["speed"]
            shares[paper["instruction"]] = min(share, shares.get(paper["instruction"], share))
    return shares


def judge(
    limits: Limits | None, machine: Machine, shares: Mapping[str, float]
) -> tuple[Literal["ok", "warn"], str, str]:
    """Return the status, what was seen, and what to look at: the fastest FP32 matmul vs its instruction alone."""
    if limits is None:
        return "ok", f"not measured; on an idle machine, in about 20 s: `{MEASURE}`", ""
    product, paper = limits.peak("float32"), limits.instructions.get("float32")
    seen = f"FP32: {product:,.0f} GFLOP/s"
    if paper is None:
        return "ok", f"{seen}; without a C compiler and AVX2 there is nothing to compare it with", ""
    share = product / paper["speed"]
    cores = plural(machine.usable_cores, "core")
    seen += f", {share:.0%} of what {cores} could do by {paper['instruction']} at their clock ({paper['speed']:,.0f})"
    if limits.others.busy:
        return "warn", f"{seen}, but other work had the cores", f"`{MEASURE} --again` while nothing else runs"
    if share < (usual := shares.get(paper["instruction"], 0) / SLOWER):
        return "warn", f"{seen}; at least {usual:.0%} is usual", REMEDY
    return "ok", seen, ""
