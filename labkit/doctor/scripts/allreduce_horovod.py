# mpirun -n 2 python labkit/doctor/scripts/allreduce_horovod.py
"""Check that a Horovod allreduce gives every rank the sum over all ranks."""

import sys

import horovod
import horovod.tensorflow as hvd
import tensorflow as tf


def main() -> str:
    """Sum a number over all ranks; return a line about the result, or exit with an error."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        raise SystemExit("This rank is alone: mpirun belongs to a different MPI from the one Horovod was built with.")
    total = hvd.allreduce(tf.fill([1000], float(rank + 1)), op=hvd.Sum).numpy()
    expected = size * (size + 1) / 2
    if not (total == expected).all():
        raise SystemExit(f"Rank {rank} of {size} got {total.min()} to {total.max()}, expected {expected}.")
    return f"{horovod.__version__}, sums correctly over {size} ranks"


if __name__ == "__main__":
    sys.stdout.write(f"{main()}\n")  # in one write, as two ranks share the screen
