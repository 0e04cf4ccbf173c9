"""Check this machine's speed against others of its class, using stored `lab roofline` results."""

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
MAX_SLOWDOWN = 1.3  # a slower machine breaks the labs' time plans: `minutes.MAX_SLOWDOWN`
REMEDY = (
    f"`{MEASURE} --again` while nothing else runs; if it is still slow, check power saving (a laptop's plug and "
    "profile), other VMs on the same host (`st` in `top`), and the container's or job's limits on cores"
)


def stored_limits() -> Limits | None:
    """Return this machine's stored limits, or None if it was not measured."""
    try:
        measured = measure.path_for(measure.conditions(usable_machine()), measure.CACHE).exists()
    except metadata.PackageNotFoundError:  # a broken environment, which other checks report
        return None
    return measure.limits() if measured else None


def usual_shares() -> dict[str, float]:
    """Return, for each instruction, the lowest share of its peak that an FP32 matmul reached on a known machine."""
    shares: dict[str, float] = {}
    for machine in machines.read_all():
        if peak := machine["limits"]["instructions"].get("float32"):
            share = machine["limits"]["peaks"]["float32"] / peak["speed"]
            shares[peak["instruction"]] = min(share, shares.get(peak["instruction"], share))
    return shares


def judge(
    limits: Limits | None, machine: Machine, shares: Mapping[str, float]
) -> tuple[Literal["ok", "warn"], str, str]:
    """Return status, observation and fix: the fastest FP32 matmul vs the peak of its instruction."""
    if limits is None:
        return "ok", f"not measured (`{MEASURE}` on an idle machine, about 20 s)", ""
    matmul, peak = limits.peak("float32"), limits.instructions.get("float32")
    seen = f"{matmul:,.0f} GFLOP/s in FP32"
    if peak is None:
        return "ok", f"{seen}; comparing it with the CPU's peak needs a C compiler and AVX2", ""
    share = matmul / peak["speed"]
    cores = plural(machine.usable_cores, "core")
    seen += f", {share:.0%} of the {peak['instruction']} peak of {cores} ({peak['speed']:,.0f})"
    if limits.others.busy:
        return "warn", f"{seen}, but other work used the cores", f"`{MEASURE} --again` while nothing else runs"
    if share < (usual := shares.get(peak["instruction"], 0) / MAX_SLOWDOWN):
        return "warn", f"{seen}; at least {usual:.0%} is usual", REMEDY
    return "ok", seen, ""
