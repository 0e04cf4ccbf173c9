"""JupyterHub login with a seat and its code."""

import hmac
from pathlib import Path
from typing import Any

from jupyterhub.auth import Authenticator
from tornado.web import HTTPError
from traitlets import Unicode

from labkit_classroom.board import protocol
from labkit_classroom.hub import codes


class SeatAuthenticator(Authenticator):  # type: ignore[misc]  # JupyterHub has no types
    """Accepts seats with their codes while the hub is open."""

    codes_file = Unicode(config=True, help="the file with the codes")
    open_file = Unicode(config=True, help="the hub is open while this file exists")

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        """Return the seat if the code is right, else None."""
        if not Path(self.open_file).exists():
            raise HTTPError(403, "The room is not open yet.")
        seat: str = self.normalize_username(data["username"].strip())
        expected = codes.read(Path(self.codes_file)).get(seat, "")
        typed = protocol.plain_code(data["password"])
        is_right = hmac.compare_digest(typed.encode(errors="replace"), expected.encode())
        return seat if expected and is_right else None
