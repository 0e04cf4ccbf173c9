"""`Measured`, at the place from which the labs of the first edition import it."""

from labkit.measure.figures import Measured

__all__ = ["Measured"]
