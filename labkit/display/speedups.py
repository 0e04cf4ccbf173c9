"""The steps of the ladder: what each lab compares, and the factor between the two on this machine."""

from typing import NamedTuple


class Step(NamedTuple):
    """A step of the ladder.

    Attributes
    ----------
    lab : str
        The lab that takes it, such as "03".
    what : str
        What is compared with what, the reference last.
    work : str
        "training" or "inference".
    """

    lab: str
    what: str
    work: str = "training"


# By the kind of work, then in the order of the labs. Each factor is measured on its lab's own model.
STEPS = {
    "graph": Step("01", "graph vs eager Python"),
    "onednn": Step("02", "oneDNN vs Eigen"),
    "threads": Step("03", "threads set vs left alone"),
    "precision": Step("03", "bfloat16 vs float32"),
    "batch": Step("03", "best batch size vs the lab's own"),
    "tuner": Step("05", "settings found by search vs default"),
    "ranks": Step("07", "ranks vs threads, same cores"),
    "wires": Step("08", "all nodes vs one"),
    "bits": Step("04", "INT8 vs FP32", "inference"),
}
