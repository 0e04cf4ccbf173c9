"""Counts in words."""


def plural(count: int, thing: str) -> str:
    """Return a count of things in words, such as "1 core" and "1,024 ranks"."""
    return f"{count:,} {thing}{'s' * (count != 1)}"
