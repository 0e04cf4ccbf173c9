"""Cookies in the hub's way in: each counts only where it came from, and for the address that it was given to.

Cookies know no ports: a browser sends the hub's to whatever listens at another port of the same host, such as a
student's own program, and takes new ones from there. So the proxy gives them out encrypted, bound to the client's
address and to the part of the hub that has set them, and passes on those alone that it can open. What another has
caught or made up is none.
"""

import base64
import secrets
from collections.abc import Iterable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SEAT = "lab-seat"  # the cookie that tells the proxy whose browser it is: the hub sets it at login
HUB_LOGIN, SESSION = (
    "jupyterhub-hub-login",
    "jupyterhub-session-id",
)  # JupyterHub's cookies; servers ask the hub by the second
XSRF = "_xsrf"  # a cookie of the hub and of each server: pages' scripts read it, and alone it lets nobody in
HUB = "/"  # the scope of the hub's own cookies
NONCE_BYTES = 12


class Seal:
    """Closes and opens cookies.

    Parameters
    ----------
    secret : bytes
        The bytes from which the key is derived.
    """

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(HKDF(SHA256(), 32, salt=None, info=b"labkit_classroom.hub.cookies").derive(secret))

    def close(self, name: str, value: str, scope: str, address: str) -> str:
        """Return a cookie's value as a browser at this address gets it."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        closed = self._cipher.encrypt(nonce, value.encode("latin-1"), _bound_to(name, scope, address))
        return base64.urlsafe_b64encode(nonce + closed).decode().rstrip("=")

    def open(self, name: str, closed: str, scope: str, address: str) -> str | None:
        """Return a cookie's value; None for one that was not given by this scope, or not to this address."""
        try:
            raw = base64.urlsafe_b64decode(closed + "=" * (-len(closed) % 4))
            opened = self._cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], _bound_to(name, scope, address))
        except (ValueError, InvalidTag):
            return None
        return opened.decode("latin-1")

    def read(self, header: str, scope: str, address: str) -> list[tuple[str, str]]:
        """Return of a browser's cookies those that a scope has given to this address, and its `_xsrf`."""
        cookies = []
        for part in header.split(";"):
            name, _, value = (piece.strip() for piece in part.partition("="))
            plain = value if name == XSRF else self.open(name, value, scope, address)
            if plain is not None:
                cookies.append((name, plain))
        return cookies

    def give(self, set_cookie: str, scope: str, address: str) -> str:
        """Return a Set-Cookie header for this address; a scope below the hub's own sets cookies for itself alone."""
        pair, *attributes = (part.strip() for part in set_cookie.split(";"))
        name, _, value = (piece.strip() for piece in pair.partition("="))
        if value and name != XSRF:
            value = self.close(name, value, scope, address)
        if scope != HUB:
            attributes = [attribute for attribute in attributes if _key(attribute) != "domain"]
            paths = [attribute.partition("=")[2].strip() for attribute in attributes if _key(attribute) == "path"]
            if not paths or not all(path == scope or path.startswith(f"{scope}/") for path in paths):
                others = (attribute for attribute in attributes if _key(attribute) != "path")
                attributes = [*others, f"Path={scope}/"]
        return "; ".join([f"{name}={value}", *attributes])


def header_of(cookies: Iterable[tuple[str, str]]) -> str:
    """Return a Cookie header."""
    return "; ".join(f"{name}={value}" for name, value in cookies)


def _key(attribute: str) -> str:
    return attribute.partition("=")[0].strip().lower()


def _bound_to(name: str, scope: str, address: str) -> bytes:
    return "\n".join((name, scope, address)).encode("latin-1")  # none of them has a line's end
