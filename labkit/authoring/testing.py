"""Which tests `lab test` runs, and which of them side by side, as pytest's arguments."""

from labkit.exercises import sources
from labkit.system import paths

WORKERS = 3  # processes that share the tests; many tests wait, so two cores have enough for three


def selection(fast: bool = False, lab: str | None = None) -> list[str]:
    """Return the arguments that choose the fast tests, a lab's tests, or a lab's fast tests; none choose all.

    Parameters
    ----------
    fast : bool
        Only the tests without TensorFlow, ranks, Slurm and notebooks (`tests/fast.py`), side by side.
    lab : str, optional
        Only what this lab is held to: its exercises, its source, and both its notebooks.
    """
    arguments = ["--fast", f"-n{WORKERS}", "--dist=worksteal"] if fast else []
    if lab is None:
        return [*arguments, "tests"] if fast else []
    source = sources.find(lab)
    number = source.stem[:2]
    exercises = sorted((paths.ROOT / "tests" / "exercises").glob(f"test_lab{number}*.py"))
    arguments += [str(path.relative_to(paths.ROOT)) for path in exercises]
    arguments += ["tests/authoring", f"-klab{number} or {source.stem}"]
    return arguments if fast else [*arguments, f"solutions/{source.stem}.ipynb"]


def whole_suite() -> tuple[list[str], list[str]]:
    """Return the arguments of the two runs of the whole suite: side by side, then those that need the cores alone."""
    # Files are begun in their order: reordered, those of few and long tests would come last, one worker alone on each.
    return [f"-n{WORKERS}", "--dist=loadfile", "--no-loadscope-reorder", "-mnot alone"], ["-malone"]
