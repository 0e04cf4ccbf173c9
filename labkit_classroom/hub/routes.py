"""Which part of the hub's addresses leads where, and the interface by which JupyterHub tells its proxy."""

import hmac
import json
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

import tornado.web


class Route(NamedTuple):
    """A part of the hub's addresses, and the server that it leads to."""

    prefix: str
    target: str
    seat: str  # the seat whose server it is; empty for the hub


class Routes:
    """The parts of the hub's addresses, as JupyterHub sets them by `/api/routes`."""

    def __init__(self) -> None:
        self.all: dict[str, dict[str, Any]] = {}

    def set(self, path: str, data: dict[str, Any]) -> None:
        """Set a route."""
        self.all[self.plain(path)] = data | {"last_activity": _now()}

    def find(self, path: str) -> Route | None:
        """Return the route of an address: that of the most of its folders."""
        prefix = self.plain(path)
        while prefix not in self.all:
            if prefix == "/":
                return None
            prefix = prefix.rpartition("/")[0] or "/"
        data = self.all[prefix]
        return Route(prefix, data["target"], data.get("user", ""))

    def is_used(self, prefix: str) -> None:
        """Note that somebody uses a route."""
        if prefix in self.all:
            self.all[prefix]["last_activity"] = _now()

    @staticmethod
    def plain(path: str) -> str:
        """Return an address's path without escapes and without a slash at its end."""
        return "/" + unquote(path).strip("/")


class RoutesHandler(tornado.web.RequestHandler):
    """The interface by which JupyterHub sets routes."""

    def initialize(self, routes: Routes, token: str) -> None:
        """Set the routes and the hub's token, which all requests share."""
        self.routes, self.token = routes, token

    def prepare(self) -> None:
        """Refuse a request without the hub's token."""
        authorization = self.request.headers.get("Authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"token {self.token}".encode()):
            raise tornado.web.HTTPError(403)

    def get(self, path: str | None) -> None:
        """List all routes."""
        self.finish(self.routes.all)

    def post(self, path: str | None) -> None:
        """Set a route."""
        self.routes.set(path or "/", json.loads(self.request.body))
        self.set_status(201)

    def delete(self, path: str | None) -> None:
        """Remove a route."""
        if not self.routes.all.pop(Routes.plain(path or "/"), None):
            raise tornado.web.HTTPError(404)
        self.set_status(204)


def _now() -> str:
    return datetime.now(UTC).isoformat()
