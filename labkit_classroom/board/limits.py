"""How often, and how much, somebody may: of wrong codes, of bytes."""

import time

MAX_KEYS = 10_000  # addresses, of which a limit keeps how often they came


class Limit:
    """How much of something there may be: so much at once, and as much again in so many seconds, for each key.

    Parameters
    ----------
    most : float
        How many times, or how many bytes.
    seconds : float
        The seconds for so many.
    """

    def __init__(self, most: float, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._used: dict[str, tuple[float, float]] = {}  # amount and time of the last use, by key

    def allows(self, key: str, cost: float = 1) -> bool:
        """Whether a key may use so much more; count it if so."""
        now = time.monotonic()
        used, before = self._used.pop(key, (0.0, now))
        used = max(0.0, used - (now - before) * self.most / self.seconds)
        is_allowed = used + cost <= self.most
        self._used[key] = (used + cost * is_allowed, now)  # as the newest
        if len(self._used) > MAX_KEYS:
            del self._used[next(iter(self._used))]
        return is_allowed

    def clear(self) -> None:
        """Forget all that was used."""
        self._used.clear()
