"""Logging in: a seat and its code."""

import asyncio
from typing import Any

from jupyterhub.auth import Authenticator
from tornado.web import HTTPError

from labkit_classroom.board.limits import Limit
from labkit_classroom.hub import codes, settings
from labkit_classroom.hub.cookies import SEAT

OPEN = "open"  # a file in the hub's folder: students may log in
DAYS = 14  # days that a login lasts, as the hub's own cookie
MAX_WRONG, WRONG_S = 10, 60.0  # wrong codes of a seat from an address, and seconds, before it is told to wait


class SeatAuthenticator(Authenticator):  # type: ignore[misc]  # JupyterHub has no types
    """Takes a seat's own code, once the room is open.

    The right code always lets in: whoever tries wrong ones, maybe from the same address or with a forged one, locks
    nobody out. Codes are looked at one at a time, a hundred a second at most: half of 31^8 take more than a century.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings.own()
        self._codes = codes.read(self._settings.folder)
        self._wrong, self._one_at_a_time = Limit(MAX_WRONG, WRONG_S), asyncio.Lock()

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        """Return the seat whose code was given; None for a wrong one."""
        if not (self._settings.folder / OPEN).exists():
            raise HTTPError(403, "The room is not open yet.")
        seat: str = self.normalize_username(data.get("username", "").strip())
        async with self._one_at_a_time:
            right = await asyncio.to_thread(codes.fits, self._codes, seat, data.get("password", ""))
        if right:
            secure = handler.request.protocol == "https"
            handler.set_cookie(SEAT, seat, path="/", httponly=True, samesite="Lax", secure=secure, expires_days=DAYS)
            return seat
        known = seat if seat in self._codes else ""  # what is made up takes no memory
        if not self._wrong.allows(f"{known} {handler.request.remote_ip}"):
            raise HTTPError(429, "That was wrong many times. Type the username and the password of your card.")
        return None
