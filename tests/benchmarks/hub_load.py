"""Load-test a hub: students' waiting times from login to the JupyterLab page, and to a first result.

python tests/benchmarks/hub_load.py --users 40            # cold: no server runs when all log in at once
python tests/benchmarks/hub_load.py --users 40 --warm     # after a warm-up as with ./lab hub warm

For maintainers; not run by tests. It starts a separate hub on loopback, logs everyone in (by default at the same
moment), and stops it. Hub, servers and browsers share this machine: measure on an idle one. As root, each server has
its own account.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from hub_student import Student, code_on_card, request_for

from labkit_classroom.hub import settings, verify
from labkit_classroom.hub.control import Hub

STATIC = Path(sys.prefix, "share", "jupyter", "lab", "static")
SCRIPTS = sorted(STATIC.glob("*.js"), key=lambda file: file.stat().st_size)[-8:]  # most bytes of a page load
CELL = "import tensorflow as tf\nprint(float(tf.reduce_sum(tf.ones(100))))"


class Waits(NamedTuple):
    """Seconds from the start until login succeeded, JupyterLab's page and its scripts were loaded, and a cell ran."""

    login: float
    page: float
    scripts: float
    result: float


def arrive(url: str, seat: str, code: str, cell: str) -> Waits:
    """Log in, open JupyterLab, load its largest scripts, run a cell."""
    student, times = Student(url, seat), [time.monotonic()]
    student.log_in(code).raise_for_status()
    times.append(time.monotonic())
    page = student.open_lab()
    page.raise_for_status()
    times.append(time.monotonic())
    for script in SCRIPTS:
        student.browser.get(f"{student.server}/static/lab/{script.name}", timeout=120).raise_for_status()
    times.append(time.monotonic())
    student.run(cell)
    times.append(time.monotonic())
    return Waits(*(after - times[0] for after in times[1:]))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--warm", action="store_true", help="start all servers before the first login")
    parser.add_argument("--tensorflow", action="store_true", help="import TensorFlow in the first cell")
    parser.add_argument("--at-once", type=int, help="concurrent logins (default: all)")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lab-hub-load-", dir="/tmp"))
    folder.chmod(0o755)
    hub = Hub(folder / "hub")
    mode = settings.TRIAL if os.geteuid() else settings.ACCOUNTS
    request = request_for(folder / "students", args.users, mode=mode)
    try:
        hub.start(request)
        codes = {seat: code_on_card(hub.cards, seat) for seat in request.seats}
        if args.warm:
            began = time.monotonic()
            hub.client.warm(lambda up, of: print(f"{up} of {of} up"))
            print(f"warm-up: {time.monotonic() - began:.0f} s")
        with ThreadPoolExecutor(args.at_once or args.users) as pool:
            cell = CELL if args.tensorflow else "print(6 * 7)"
            waits = list(pool.map(lambda seat: arrive(request.url, seat, codes[seat], cell), request.seats))
        servers = verify.processes_of(request, request.seats)
        memory = sum(server.memory_full_info().pss for server in servers) / args.users
    finally:
        hub.stop()
        shutil.rmtree(folder)
    print(f"{args.users} students, {'warm' if args.warm else 'cold'}; seconds  median   p95")
    for name, values in zip(Waits._fields, zip(*waits, strict=True), strict=True):
        print(f"{name:>20} {statistics.median(values):16.1f} {statistics.quantiles(values, n=20)[-1]:5.1f}")
    print(f"memory per student, server without a kernel: {memory / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
