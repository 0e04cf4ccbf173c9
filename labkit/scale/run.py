"""`lab scale`: from a command to a table, a picture and the words of how it scales over nodes and wires."""

import contextlib
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from labkit.network import Network, command
from labkit.network.network import MAX_NODES, Node
from labkit.network.units import MAX_RATE, parse_rate, show_rate
from labkit.scale import measure, report
from labkit.scale.measure import NO_LIMIT, Point, Scaling, count_nodes
from labkit.system import files, metrics, scratch, turns
from labkit.system.errors import LabError

PLACEHOLDER = "{nodes}"


@dataclass(frozen=True)
class ScaleConfig:
    """The options of `lab scale`, as its help explains them.

    Attributes
    ----------
    nodes, rates : str
        Numbers of nodes and rates of wires, with commas between them.
    rounds : int
        Runs of each number of nodes at each rate.
    metric, json_field : str or None
        Where the metric is, as for `lab tune`.
    minimize : bool
        Whether the metric is a time.
    strong : bool
        Whether that is the time of work which the nodes share.
    threshold : float
        The efficiency below which it is said to break.
    timeout : float
        Seconds for one run.
    json, picture : Path or None
        The files to write.
    """

    nodes: str = "1,2,4"
    rates: str = "100 Mbit/s,1 Gbit/s"
    rounds: int = 3
    metric: str | None = None
    json_field: str | None = None
    minimize: bool = False
    strong: bool = False
    threshold: float = 0.5
    timeout: float = 600.0
    json: Path | None = None
    picture: Path | None = None


def scale(argv: Sequence[str], config: ScaleConfig, console: Console) -> Scaling:
    """Measure a command, print what came of it, and write it to the files that are asked for.

    Parameters
    ----------
    argv : sequence of str
        The command; `{nodes}` in it stands for the number of nodes.
    config : ScaleConfig
        The rest of the command line.
    console : Console
        Where to print the results.

    Raises
    ------
    LabError
        When something makes no sense, no network can be made here, or the command fails on a single node.
    KeyboardInterrupt
        When interrupted before one round was over.
    """
    nodes, rates = _numbers(config.nodes), _rates(config.rates)
    _check(argv, config)
    read_metric, unit = metrics.reader(config.metric, config.json_field), metrics.unit(config.metric, config.json_field)
    with turns.take(), _networks(max(nodes), rates) as networks:
        command.require(argv[0], command.environment(networks[NO_LIMIT]))
        print("\n".join(_head(argv, nodes, networks)), flush=True)
        with command.borrowed_cores(networks[NO_LIMIT]), _runner(argv, read_metric, networks, config.timeout) as run:
            wanted = measure.points(nodes, rates)
            scaling = measure.take_turns(wanted, run, config.rounds, unit, config.minimize, config.strong)
        notes = _notes(nodes, networks)
    if not scaling.rounds:
        raise KeyboardInterrupt
    breaks = report.find_breaks(scaling, config.threshold)
    console.print("", report.table(scaling, unit), sep="\n", highlight=False)
    print("", *report.notes(scaling), *notes, sep="\n")
    print(f"\nWhere it breaks: efficiency below {config.threshold:.0%}, or no gain from more nodes, beyond chance")
    for wires, found in breaks.items():
        print(f"  {wires}: {found.text}")
    if config.json:
        what = {"command": list(argv), "unit": unit, "threshold": config.threshold, "notes": notes}
        files.write(config.json, json.dumps(what | report.as_dict(scaling, breaks), indent=1))
    if config.picture:
        from labkit.display import plots
        from labkit.scale import picture

        figure, alt = picture.draw(scaling, config.threshold)
        plots.save(figure, config.picture)
        print(f"{config.picture}: {alt}")
    return scaling


# What was asked for


def _numbers(text: str) -> list[int]:
    """Return the numbers of nodes in order, and 1 among them."""
    numbers = {1}
    for part in text.split(","):
        number = int(part) if part.strip().isdecimal() else 0
        if not 1 <= number <= MAX_NODES:
            raise LabError(f"--nodes {text!r}: give whole numbers from 1 to {MAX_NODES}, such as 1,2,4.")
        numbers.add(number)
    if numbers == {1}:
        raise LabError("--nodes 1 leaves nothing to compare: give a larger number too, such as 1,2,4.")
    return sorted(numbers)


def _rates(text: str) -> list[str]:
    """Return the rates as they are shown, the fastest first."""
    try:
        rates = {parse_rate(part) for part in text.split(",")}
    except LabError as error:
        raise LabError(f"--rates {text!r}: {error}") from error
    return list(dict.fromkeys(show_rate(rate) for rate in sorted(rates, reverse=True)))


def _check(argv: Sequence[str], config: ScaleConfig) -> None:
    if not argv:
        raise LabError("give a command after --, such as mpirun -n {nodes} python train.py.")
    if not 0 < config.timeout < math.inf:
        raise LabError(f"--timeout {config.timeout:g} is no time to wait: give a number above 0.")
    if not 0 < config.threshold <= 1:
        raise LabError(f"--break {config.threshold:g} is no efficiency: give a number from 0 to 1, such as 0.5.")
    if config.strong and not config.minimize:
        raise LabError("--strong is about a time, and goes with --minimize: a throughput needs neither.")
    for file in filter(None, (config.json, config.picture)):
        if not file.absolute().parent.is_dir():
            raise LabError(f"there is no folder {file.parent} to write {file.name} to: make it, or name another.")
    if config.picture and config.picture.suffix.lower() != ".png":
        raise LabError(f"--picture {config.picture}: pictures are PNG, so give a name that ends in .png.")


# On the nodes


@contextlib.contextmanager
def _networks(nodes: int, rates: Sequence[str]) -> Iterator[dict[str, Network]]:
    """Make a network for each rate, and one without a limit, for as long as the block runs.

    Each has the largest number of nodes, and fewer are a part of them: so a node has the same share of the cores in
    all that is measured.
    """
    with contextlib.ExitStack() as held:
        yield {
            wires: held.enter_context(Network(nodes, rate))
            for wires, rate in ((NO_LIMIT, show_rate(MAX_RATE)), *((rate, rate) for rate in rates))
        }


@contextlib.contextmanager
def _runner(
    argv: Sequence[str], read_metric: metrics.ReadMetric, networks: Mapping[str, Network], timeout: float
) -> Iterator[Callable[[Point], float]]:
    """Yield a function that runs the command once, and returns its metric."""
    with scratch.folder() as folder:
        hosts = folder / "hosts"

        def run(point: Point) -> float:
            network = networks[point.wires]
            files.write(hosts, "".join(f"{node.address}\n" for node in part(network, point.nodes)))
            value = metrics.measure(
                [*network.enter(), *(word.replace(PLACEHOLDER, str(point.nodes)) for word in argv)],
                read_metric,
                {**command.environment(network), "HYDRA_HOST_FILE": hosts},
                timeout=timeout,
            )
            if value <= 0:
                raise LabError(f"a metric of {value:g} has no ratio: print one that is above 0.")
            return value

        yield run


def part(network: Network, nodes: int) -> list[Node]:
    """Return that many of a network's nodes: those which share as few cores as can be."""
    chosen: list[Node] = []
    for _ in range(nodes):
        taken = Counter(cpu for node in chosen for cpu in node.cpus)
        left = [node for node in network.nodes if node not in chosen]
        chosen.append(min(left, key=lambda node: sum(taken[cpu] for cpu in node.cpus)))
    return chosen


def _head(argv: Sequence[str], nodes: Sequence[int], networks: Mapping[str, Network]) -> list[str]:
    """Return what is measured, in lines."""
    free = networks[NO_LIMIT]
    cpus = len(free.nodes[0].cpus)
    shown = shlex.join(argv).replace(shlex.quote(PLACEHOLDER), PLACEHOLDER)
    lines = [f"{shown}, on {', '.join(map(str, nodes))} nodes of {cpus} CPU{'s' * (cpus > 1)} each"]
    if not any(PLACEHOLDER in word for word in argv):
        lines.append(
            f"It has no {PLACEHOLDER}, so it is the same each time; mpirun without -n starts a rank on each node."
        )
    for wires, network in networks.items():
        if wires != NO_LIMIT:
            lines += filter(None, [str(network), network.warning])
    return lines


def _notes(nodes: Sequence[int], networks: Mapping[str, Network]) -> list[str]:
    """Return what one has to know about these nodes to read the table."""
    free = networks[NO_LIMIT]
    notes = [
        f"no limit: the same nodes on wires of {show_rate(free.rate)}, over which a transfer got "
        f"{show_rate(free.measured)}; what is lost there is not lost to the wires' rate"
    ]
    for number in nodes:
        cpus = [cpu for node in part(free, number) for cpu in node.cpus]
        if (share := len(set(cpus)) / len(cpus)) < 1:
            notes.append(
                f"{count_nodes(number)} take turns on {len(set(cpus))} CPU{'s' * (len(set(cpus)) > 1)}: what fills the "
                f"CPUs of its node reaches about {share:.0%} there at most, whatever the wires"
            )
    return notes
