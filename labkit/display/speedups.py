"""The steps of the speed-up ladder: what each lab compares."""

from typing import NamedTuple


class Step(NamedTuple):
    """A step of the ladder."""

    lab: str  # that takes it, such as "03"
    what: str  # the comparison, with the baseline last
    work: str = "training"  # or "inference"


# By kind of work, then in lab order. Each speed-up is measured on its lab's own model.
STEPS = {
    "graph": Step("01", "graph vs eager Python"),
    "onednn": Step("02", "oneDNN vs Eigen"),
    "norm": Step("03", "fused vs Keras 3's normalisation"),
    "threads": Step("03", "threads set vs default"),
    "precision": Step("03", "bfloat16 vs float32"),
    "batch": Step("03", "best batch size vs default"),
    "tuner": Step("05", "tuned settings vs default"),
    "ranks": Step("07", "ranks vs threads, same cores"),
    "bits": Step("04", "INT8 vs FP32", "inference"),
}
