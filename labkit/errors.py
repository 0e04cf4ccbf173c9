"""What every floor raises when the person at the keyboard can mend it."""


class LabError(Exception):
    """One line: what is wrong and what to do. Commands print it and exit with 2."""
