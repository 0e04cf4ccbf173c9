"""Logging in: a seat and its code."""

import asyncio
from typing import Any

from jupyterhub.auth import Authenticator
from tornado.web import HTTPError

from labkit.hub import codes, settings
from labkit.room.board.app import Limit

OPEN = "open"  # a file in the hub's folder: students may log in
MAX_TRIES, TRIES_S = 10, 60.0  # to log in as a seat from an address
MAX_TRIES_ADDRESS = 600  # from an address: a whole room may come from one


class SeatAuthenticator(Authenticator):
    """Takes a seat's own code, once the room is open."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = settings.own()
        self._codes = codes.read(self._settings.folder)
        self._by_seat, self._by_address = Limit(MAX_TRIES, TRIES_S), Limit(MAX_TRIES_ADDRESS, TRIES_S)

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        """Return the seat whose code was given; None for a wrong one."""
        if not (self._settings.folder / OPEN).exists():
            raise HTTPError(403, "The room is not open yet.")
        seat, address = self.normalize_username(data.get("username", "").strip()), handler.request.remote_ip
        if not (self._by_seat.allows(f"{seat} {address}") and self._by_address.allows(address)):
            raise HTTPError(429, "Too many tries: wait a minute, then look at your card again.")
        right = await asyncio.to_thread(codes.fits, self._codes, seat, data.get("password", ""))
        return seat if right else None
