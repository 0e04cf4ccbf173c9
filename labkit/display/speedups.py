"""The steps from the default to the fastest: what each lab changes, and by which factor it was faster here."""

from typing import Any, NamedTuple


class Step(NamedTuple):
    """A step of the ladder.

    Attributes
    ----------
    lab : str
        The lab that takes it, such as "03".
    what : str
        What is set beside what.
    """

    lab: str
    what: str


# In the order of the labs. Each factor is measured on its lab's own model, so they are not multiplied.
STEPS = {
    "graph": Step("01", "a graph beside eager Python"),
    "onednn": Step("02", "oneDNN beside Eigen"),
    "threads": Step("03", "threads set beside the default"),
    "batch": Step("03", "the best batch size beside the first"),
    "bits": Step("04", "fewer bits beside float32"),
    "tuner": Step("05", "settings found by search beside the default"),
    "ranks": Step("07", "ranks beside threads, on the same cores"),
    "wires": Step("08", "all nodes beside one"),
}


def as_kept(row: dict[str, Any], share: float | None) -> dict[str, Any]:
    """Return a step as a lab keeps it.

    Parameters
    ----------
    row : dict
        Of a closing table (`results.row`), which has the factor.
    share : float or None
        How much of the machine's limit the faster of the two reaches, in percent; None where there is no limit.
    """
    return {
        "text": row["texts"][2],
        "numbers": row["numbers"],
        "busy": row["busy"],
        "share": None if share is None else round(float(share), 1),
    }
