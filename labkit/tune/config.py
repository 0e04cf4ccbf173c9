"""`TuneConfig`: the configuration of a search; each field is a flag of `lab tune`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from labkit.system.arguments import Flag

IMAGES_PER_SECOND = r"total images/sec: ([\d.]+)"  # as lab bench and tf_cnn_benchmarks print it
KNOBS = "TOML file of settings to vary; by default, labkit/tune/knobs.toml, or knobs-bench.toml without a command."


@dataclass(frozen=True)
class TuneConfig:
    """The options of `lab tune`."""

    knobs: Annotated[Path | None, Flag(KNOBS)] = None
    metric: Annotated[str, Flag("Regular expression for the metric; its last match counts.")] = IMAGES_PER_SECOND
    minimize: Annotated[bool, Flag("Lower is better, as for times.")] = False
    trials: Annotated[int | None, Flag("Maximum number of points to try, 40 unless --minutes is given.")] = None
    minutes: Annotated[float | None, Flag("Start no trial after this many minutes.")] = None
    repeats: Annotated[int, Flag("Runs per point; their median counts.", min=1)] = 3
    rounds: Annotated[int, Flag("Fresh rounds of default vs best trials at the end.", min=2)] = 6
    out: Annotated[Path | None, Flag("The output folder; by default, work/tune-NAME.")] = None
