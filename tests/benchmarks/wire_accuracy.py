"""Measure the excess time of operations on a testbed over theory: the table in docs/wires.md.

    python tests/benchmarks/wire_accuracy.py                             # all rates and nodes: about five minutes
    python tests/benchmarks/wire_accuracy.py --nodes 4 --rate "1 Gbit/s" # one row, in seconds

Theory is the bytes at the wire's rate, including packet headers. Prints percentages with the widest 95% interval of the
row, then the cores' load meanwhile. `--json FILE` also writes the seconds of each round.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from labkit.measure.figures import summarize
from labkit.mpi import run_ranks
from labkit.testbed import Testbed
from labkit.testbed.units import parse_rate

RATES = ("10 Mbit/s", "100 Mbit/s", "1 Gbit/s", "5 Gbit/s", "10 Gbit/s")
NODES = (2, 4, 8, 16)
OPERATIONS = ("one_flow", "all_flows", "one_server", "ring", "all_reduce")
MAX_BYTES, BYTES_S = 4_000_000, 0.32  # the size of the values, or on slow wires their transfer time
ROW_S = 3.0  # for a row's rounds, unless six take longer
PINGS = 50  # per round
# An Ethernet packet without jumbo frames: 1,500 bytes, of which IP and TCP (with timestamps) use 52, plus a 14-byte
# Ethernet header, which a testbed's wire counts too (tc-tbf(8)).
PACKET_BYTES, PAYLOAD_BYTES = 1514, 1448


def theory(operation: str, nodes: int, n_bytes: int, rate: float) -> float:
    """Return the seconds of an operation: the busiest wire's bytes, with headers, at its rate."""
    all_reduce = 2 * (nodes - 1) / nodes
    passes = {"one_server": 2.0 * (nodes - 1), "ring": all_reduce, "all_reduce": all_reduce}.get(operation, 1.0)
    return passes * n_bytes * PACKET_BYTES / PAYLOAD_BYTES * 8 / rate


def measure(nodes: int, rate: float) -> dict[str, object]:
    """Measure one row, and return it in a form for `json.dumps`."""
    n_bytes = 4 * round(min(MAX_BYTES, BYTES_S * rate / 8) / 4)
    script = Path(__file__).with_name("wire_accuracy_ranks.py")
    with tempfile.TemporaryDirectory() as folder, Testbed(nodes, rate) as testbed:
        out = Path(folder, "seconds.json")
        run = run_ranks(nodes, script, out, n_bytes, ROW_S, threads=1, show=False, network=testbed)
        seconds = json.loads(out.read_text())
    excess, widest = {}, 0.0
    for operation in OPERATIONS:
        figure, minimum = summarize(seconds[operation]), theory(operation, nodes, n_bytes, rate)
        excess[operation] = figure.value / minimum - 1
        widest = max(widest, (figure.high - figure.low) / minimum / 2)
    return {
        "nodes": nodes,
        "rate": rate,
        "bytes": n_bytes,
        "round_trip": float(np.median(seconds["pings"])) / PINGS,
        "excess": excess,
        "interval": widest,
        "used": run.wires.used,
        "limit": "cores" if run.others.doubt else "busy" if run.others.busy else "wires",
        "seconds": seconds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, help="default: 2, 4, 8 and 16")
    parser.add_argument("--rate", help="default: 10 Mbit/s to 10 Gbit/s")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    if args.nodes is not None and args.nodes < 2:
        parser.error("a wire has two ends: at least 2 nodes")
    rows = []
    print("nodes        rate     ping µs", *(f"{operation:>10}" for operation in OPERATIONS), "    ±   used  limit")
    for rate in [args.rate] if args.rate else RATES:
        for nodes in [args.nodes] if args.nodes else NODES:
            rows.append(row := measure(nodes, parse_rate(rate)))
            shares = (row["interval"], row["used"])
            print(
                f"{nodes:5} {rate:>11} {1e6 * row['round_trip']:11.0f}",
                *(f"{share:>+10.0%}" for share in row["excess"].values()),
                *(f"{share:6.0%}" for share in shares),
                row["limit"],
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
