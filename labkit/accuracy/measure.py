"""Measure the accuracy of testbeds: `lab network accuracy`."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column

from labkit.accuracy import on_ranks, theory
from labkit.mpi import run_ranks
from labkit.system import load, scratch
from labkit.system.errors import LabError
from labkit.system.statistics import interval
from labkit.system.tables import plain_table
from labkit.testbed import Testbed, fidelity
from labkit.testbed.units import parse_rate, show_rate

RATES = ("10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "5 Gbit/s", "10 Gbit/s")
NODES = (2, 4, 8, 16)
WAYS = {
    "one_flow": "one flow",
    "all_flows": "all flows",
    "one_server": "one server",
    "ring": "ring",
    "all_reduce": "MPI_Allreduce",
}
HEADS = WAYS | {"one_flow": "flow", "all_flows": "flows", "one_server": "server", "all_reduce": "MPI"}  # of columns
MAX_BYTES, BYTES_S = 4_000_000, 0.32  # what the values have: this, or on slow wires what takes so long
ROW_S = 3.0  # what a row's rounds may take, where three do not take longer


@dataclass(frozen=True)
class Row:
    """The accuracy of nodes on wires of a rate.

    Attributes
    ----------
    nodes : int
        Their number.
    rate : float
        The wires' rate, in bit/s.
    n_bytes : int
        The bytes of the values that were sent, and added up.
    seconds : dict of str to list of float
        The times of each operation of `labkit.accuracy.on_ranks`, round by round.
    wires : fidelity.Fidelity
        Whether they were the limit.
    others : load.Others
        What disturbed it; also the reason why it is the cores' and not the wires'.
    """

    nodes: int
    rate: float
    n_bytes: int
    seconds: dict[str, list[float]]
    wires: fidelity.Fidelity
    others: load.Others

    @property
    def round_trip(self) -> float:
        """The seconds in which 8 bytes go to another node and come back."""
        return float(np.median(self.seconds["pings"])) / on_ranks.PINGS

    def off(self, way: str) -> tuple[float, float, float]:
        """Return by which share an operation takes longer than in theory, and the ends of the 95% interval."""
        mean, half = interval(np.log(self.seconds[way]))
        least = theory.seconds(way, self.nodes, self.n_bytes, self.rate)
        value, low, high = np.exp([mean, mean - half, mean + half]) / least - 1
        return float(value), float(low), float(high)

    def as_dict(self) -> dict[str, Any]:
        """Return it as `json.dumps` takes it."""
        return {
            "nodes": self.nodes,
            "rate": self.rate,
            "bytes": self.n_bytes,
            "round_trip": self.round_trip,
            "off": {way: self.off(way) for way in WAYS},
            "waited": self.wires.waited,
            "packets": self.wires.packets,
            "used": self.wires.used,
            "lost": self.wires.lost,
            "others": self.others.as_dict(),
        }


def measure(nodes: Iterable[int], rates: Iterable[str]) -> Iterator[Row]:
    """Measure each number of nodes on wires of each rate; a line on stderr says what is measured now.

    Raises
    ------
    LabError
        For a number of nodes on which nothing travels, or that no testbed can have.
    """
    if min(nodes := list(nodes)) < 2:
        raise LabError(f"accuracy is that of wires, which 2 nodes or more have, not {min(nodes)}.")
    for rate in rates:
        for count in nodes:
            print(f"{count} nodes, {show_rate(parse_rate(rate))} …", file=sys.stderr, flush=True)
            yield measure_row(count, parse_rate(rate))


def measure_row(nodes: int, rate: float) -> Row:
    """Measure so many nodes on wires of a rate, in bit/s."""
    n_bytes = 4 * round(min(MAX_BYTES, BYTES_S * rate / 8) / 4)
    with scratch.folder() as folder, Testbed(nodes, rate) as testbed:
        out = folder / "seconds.json"
        run = run_ranks(nodes, on_ranks.__file__, out, n_bytes, ROW_S, threads=1, show=False, network=testbed)
        seconds = json.loads(out.read_text())
    return Row(nodes, rate, n_bytes, seconds, run.wires, run.others)


def predictions(rows: Sequence[Row]) -> list[tuple[Row, str, float]]:
    """Return, for each row behind the first two of its rate, each collective's seconds as predicted from those two."""
    found = []
    for rate in dict.fromkeys(row.rate for row in rows):
        of_rate = [row for row in rows if row.rate == rate]
        for row in of_rate[2:]:
            for way in theory.COLLECTIVES:
                known = {each.nodes: float(np.median(each.seconds[way])) for each in of_rate[:2]}
                found.append((row, way, theory.predict(way, row.n_bytes, known, row.nodes)))
    return found


def render(rows: Sequence[Row], console: Console) -> None:
    """Print the rows, what they predict, and what disturbed them."""
    names = ("nodes, wires", "ping", *HEADS.values(), "±", "waited", "used", "packets", "limit")
    table = plain_table(*(Column(name, justify="right") for name in names), header=True)
    for row in rows:
        limit = "⚠ cores" if row.others.doubt else "⚠ busy" if row.others.busy else "wires"
        offs = [row.off(way) for way in WAYS]
        widest = max((high - low) / 2 for _, low, high in offs)
        seen = row.wires
        shares = f"{widest:.0%}", *(f"{share:.0%}" for share in (seen.waited, seen.used, seen.packets))
        ping = f"{1e6 * row.round_trip:,.0f} µs"
        table.add_row(
            f"{row.nodes}, {show_rate(row.rate)}",
            ping,
            *(f"{value:+.0%}" for value, *_ in offs),
            *shares,
            limit,
        )
    console.print(table)
    console.print(
        "Longer than theory: the bytes at the wire's rate, with all headers "
        f"({theory.PAYLOAD_BYTES:,} of {theory.PACKET_BYTES:,} bytes are payload).\n"
        "±: the widest 95% interval of the row; ping: 8 bytes, there and back.\n"
        "waited: for a core, on the node that waited longest; used: of the cores, where nodes share them;\n"
        "packets: what passing them on took of the cores."
    )
    for row, way, seconds in predictions(rows):
        measured = float(np.median(row.seconds[way]))
        console.print(
            f"{show_rate(row.rate)}, {WAYS[way]} on {row.nodes} nodes: predicted from fewer nodes "
            f"{1e3 * seconds:,.1f} ms, measured {1e3 * measured:,.1f} ms ({seconds / measured - 1:+.0%})"
        )
