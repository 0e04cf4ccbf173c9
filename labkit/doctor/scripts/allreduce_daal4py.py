# mpirun -n 2 python labkit/doctor/scripts/allreduce_daal4py.py
"""Check that a distributed daal4py algorithm gives every rank the result of a single process."""

import sys
from importlib.metadata import version

import daal4py
import numpy as np

ROWS, COLUMNS = 500, 8


def main() -> str:
    """Sum all ranks' rows; return a line about the result, or exit with an error."""
    rank, size = daal4py.my_procid(), daal4py.num_procs()
    if size == 1:
        raise SystemExit("This rank is alone: mpirun and the library that daal4py loaded belong to different MPIs.")
    rows = np.random.default_rng(0).normal(size=(size * ROWS, COLUMNS))
    local = rows[rank * ROWS : (rank + 1) * ROWS]
    distributed = daal4py.low_order_moments(distributed=True).compute(local).sum
    single = daal4py.low_order_moments().compute(rows).sum
    if not np.allclose(distributed, single):
        raise SystemExit(f"Rank {rank} of {size} got {distributed.ravel()}, a single process {single.ravel()}.")
    return f"{version('scikit-learn-intelex')}, sums correctly over {size} ranks"


if __name__ == "__main__":
    daal4py.daalinit()
    sys.stdout.write(f"{main()}\n")  # in one write, as two ranks share the screen
    daal4py.daalfini()
