# mpirun -n 2 python labkit/doctor/scripts/allreduce_daal4py.py
"""Check that a distributed daal4py algorithm gives every rank what one process gets from all the rows."""

import sys
from importlib.metadata import version

import daal4py
import numpy as np

ROWS, COLUMNS = 500, 8


def main() -> str:
    """Sum each rank's rows over all ranks; print the result, or exit with an error."""
    rank, size = daal4py.my_procid(), daal4py.num_procs()
    if size == 1:
        raise SystemExit("This rank is alone: mpirun belongs to another MPI than the library daal4py found.")
    rows = np.random.default_rng(0).normal(size=(size * ROWS, COLUMNS))
    mine = rows[rank * ROWS : (rank + 1) * ROWS]
    distributed = daal4py.low_order_moments(distributed=True).compute(mine).sum
    batch = daal4py.low_order_moments().compute(rows).sum
    if not np.allclose(distributed, batch):
        raise SystemExit(f"Rank {rank} of {size} got {distributed.ravel()}, one process {batch.ravel()}.")
    return f"the sum over {size} ranks is that of one process (daal4py {version('scikit-learn-intelex')})"


if __name__ == "__main__":
    daal4py.daalinit()
    sys.stdout.write(f"{main()}\n")  # in one write: two ranks share the screen
    daal4py.daalfini()
