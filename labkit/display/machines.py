"""The note that lab 11 shows in place of PyTorch's results."""


def table(lab: str, about: str) -> str:
    """Return the note: the kit has no results of lab `lab` `about` a subject to show."""
    return f"Without {about}, this section of lab {lab} has no results."
