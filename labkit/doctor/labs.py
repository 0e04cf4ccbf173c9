"""The checks that each lab depends on. To add a lab, add a line to `LABS`."""

from typing import NamedTuple


class Lab(NamedTuple):
    """A lab and the names of the checks it depends on.

    It cannot run if a check in `needs` fails. A failed check in `better_with` only makes it less interesting.
    """

    name: str
    needs: tuple[str, ...]
    better_with: tuple[str, ...] = ()


TENSORFLOW = ("ISA", "memory", "TensorFlow")

LABS = (
    Lab("00 Welcome", needs=("MPI",), better_with=("cores",)),
    Lab("01 TensorFlow graphs", needs=(*TENSORFLOW, "MPI"), better_with=("cores",)),
    Lab("02 oneDNN under an MNIST CNN", needs=(*TENSORFLOW, "MPI", "data"), better_with=("cores",)),
    Lab(
        "03 ResNet-50, from default to fast",
        needs=(*TENSORFLOW, "MPI"),
        better_with=("cores", "PyTorch", "numactl"),
    ),
    Lab("04 Fewer bits", needs=(*TENSORFLOW, "MPI", "OpenVINO", "data")),
    Lab("05 Let a program tune it", needs=TENSORFLOW, better_with=("cores", "PyTorch")),
    Lab("06 How gradients travel", needs=("memory", "MPI", "data"), better_with=("cores", "network")),
    Lab(
        "07 Horovod on the MNIST CNN",
        needs=(*TENSORFLOW, "MPI", "Horovod", "data"),
        better_with=("cores", "network"),
    ),
    Lab(
        "08 ResNet-50 on a cluster",
        needs=(*TENSORFLOW, "MPI", "Horovod"),
        better_with=("cores", "network", "Slurm"),
    ),
    Lab("09 K-Means with daal4py", needs=("memory", "MPI", "daal4py"), better_with=("cores",)),
    Lab("10 Language models", needs=(*TENSORFLOW, "memory", "MPI", "OpenVINO"), better_with=("cores",)),
    Lab("11 After the all-reduce", needs=("memory", "MPI"), better_with=("cores", "network", "PyTorch")),
)
