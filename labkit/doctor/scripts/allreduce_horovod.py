# mpirun -n 2 python labkit/doctor/scripts/allreduce_horovod.py
"""Check that an allreduce through Horovod gives every rank the sum over the ranks."""

import sys

import horovod
import horovod.tensorflow as hvd
import tensorflow as tf


def main() -> str:
    """Sum each rank's number over all ranks; print the result, or exit with an error."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        raise SystemExit("This rank is alone: mpirun belongs to another MPI than the library Horovod was built with.")
    total = hvd.allreduce(tf.fill([1000], float(rank + 1)), op=hvd.Sum).numpy()
    expected = size * (size + 1) / 2
    if not (total == expected).all():
        raise SystemExit(f"Rank {rank} of {size} got {total.min()} to {total.max()}, expected {expected}.")
    return f"the sum over {size} ranks is right (Horovod {horovod.__version__})"


if __name__ == "__main__":
    sys.stdout.write(f"{main()}\n")  # in one write: two ranks share the screen
