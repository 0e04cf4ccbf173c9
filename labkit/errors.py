"""What every floor raises when the person at the keyboard can mend it."""


class LabError(Exception):
    """One line: what is wrong and what to do. Commands print it and exit with 2; a notebook shows it alone."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this in place of a traceback, which would be all of the kit's own frames.
        return [f"{type(self).__name__}: {self}"]
