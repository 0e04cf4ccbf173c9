"""The board's web server.

Requests that change something or show a seat need a token in a header. Cookies are not used: browsers would send them
to other ports of this host, and with cross-site requests.
"""

import logging
import sqlite3
import ssl
from pathlib import Path
from typing import Any

import segno
import tornado.httpserver
import tornado.netutil
import tornado.web

from labkit.system.errors import LabError
from labkit_classroom.board import protocol
from labkit_classroom.board.room import Room
from labkit_classroom.board.store import Seat

PAGES = Path(__file__).with_name("pages")
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
MAX_SEATS = 500
BACKLOG = 1024  # pending connections: after an outage, the whole room reconnects at once
SLOW_CLIENT_S = 10.0  # until a request must have arrived
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "board",
    protocol.ANSWER_HEADER: "1",
}


class Handler(tornado.web.RequestHandler):
    """Base of the handlers: headers, one-line errors, authorisation."""

    room: Room

    def initialize(self, room: Room) -> None:
        """Set the room."""
        self.room = room

    def set_default_headers(self) -> None:
        """Set the headers of every response."""
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send the error as one line of JSON."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        reason = error.reason if isinstance(error, tornado.web.HTTPError) and error.reason else self._reason
        if isinstance(error, sqlite3.Error):
            self.set_status(507)
            reason = "the board cannot write to disk: it may be full"
        self.finish({"error": reason})

    def access_error(self, reason: str) -> tornado.web.HTTPError:
        """Return the error for a wrong code or token."""
        self.check_rate("wrong")
        return tornado.web.HTTPError(403, reason=reason)

    def check_rate(self, kind: str) -> None:
        """Refuse a request if this address has made too many of its kind."""
        if not self.room.allows_another(kind, self.request.remote_ip or ""):
            raise tornado.web.HTTPError(429, reason="too many attempts: try again in a minute")

    def message(self, schema: protocol.Validator) -> Any:
        """Return the message in the request's body."""
        if self.request.headers.get("Content-Type") != "application/json":  # which forms on other sites cannot send
            raise tornado.web.HTTPError(415, reason="send application/json")
        try:
            return protocol.read(self.request.body, schema)
        except protocol.Refused as error:
            raise tornado.web.HTTPError(400, reason=str(error).encode("ascii", "replace").decode()) from error

    def token(self) -> str:
        """Return the request's bearer token; empty if it has none."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else ""

    def seat(self) -> Seat:
        """Return the seat that the request's token belongs to."""
        seat = self.room.store.seat_of(self.token())
        if seat is None:
            raise self.access_error("no such seat")
        return seat

    def check_instructor(self) -> None:
        """Refuse a request without the instructor's token."""
        if not self.room.store.is_instructor(self.token()):
            raise self.access_error("this is the instructor's page: open the address that ./lab room open printed")


class Seats(Handler):
    """The room's seats."""

    def post(self) -> None:
        """Add a seat for a student who has the code."""
        message = self.message(protocol.JOIN)
        if not self.room.store.is_code(message["code"]):
            raise self.access_error("this is not the room's code")
        self.check_rate("join")
        if len(self.room.store.seats) >= MAX_SEATS:
            raise tornado.web.HTTPError(503, reason="the room is full")
        name, token = self.room.store.join(protocol.visible(message["seat"], protocol.SEAT_LETTERS))
        self.set_status(201)
        self.finish({"seat": name, "token": token})


class OwnSeat(Handler):
    """A student's own seat."""

    def put(self) -> None:
        """Store the seat's state."""
        self.room.store.put(self.seat(), self.message(protocol.STATE))
        self.set_status(204)

    def delete(self) -> None:
        """Delete everything stored about the seat."""
        self.room.store.leave(self.seat().id)
        self.set_status(204)


class OwnHand(Handler):
    """A student's own hand."""

    def put(self) -> None:
        """Raise it, or lower it if it is up."""
        is_up = self.room.store.move_hand(self.seat().id, self.message(protocol.HAND))
        self.finish(protocol.HAND_UP if is_up else protocol.HAND_DOWN)


class AnySeat(Handler):
    """Any seat and its hand, for the instructor."""

    def delete(self, number: str, hand: str) -> None:
        """Delete everything stored about the seat, or lower its hand after helping."""
        self.check_instructor()
        if hand and int(number) in self.room.store.seats:
            self.room.store.move_hand(int(number), None)
        elif not hand:
            self.room.store.leave(int(number))
        self.set_status(204)


class Code(Handler):
    """The room's code."""

    def get(self) -> None:
        """Send the code, and the wall's address as a QR code, to pages that have the code."""
        if not self.room.store.is_code(self.token()):
            raise self.access_error(
                "this is not the room's code: get the wall's address from the instructor's page or ./lab room status"
            )
        picture = segno.make(self.room.wall_address(), micro=False).svg_data_uri(light="#fff")
        self.finish({"code": self.room.store.room["code"], "picture": picture})

    def post(self) -> None:
        """Change the code, for the instructor; seats stay."""
        self.check_instructor()
        self.room.store.change_code()
        self.set_status(204)


class PinnedQuestion(Handler):
    """The question pinned on the wall, for the instructor."""

    def put(self) -> None:
        """Pin a question on the wall, or let the wall follow the room again."""
        self.check_instructor()
        self.room.store.change(held=self.message(protocol.HELD))
        self.set_status(204)


class View(Handler):
    """The content of a page, which polls it every two seconds."""

    def get(self, page: str) -> None:
        """Send it; only the instructor sees seats."""
        if page == "wall":
            self.finish(self.room.wall())
            return
        self.check_instructor()
        self.finish(self.room.instructor())


class Page(Handler):
    """The pages, their style sheet and scripts; anything else is not found."""

    def get(self, name: str = "unknown") -> None:
        """Send a file."""
        file = PAGES / (name if "." in name else f"{name or 'wall'}.html")
        if not file.is_file():
            raise tornado.web.HTTPError(404, reason="page not found")
        self.set_header("Content-Type", f"{CONTENT_TYPES[file.suffix]}; charset=utf-8")
        self.finish(file.read_bytes())


def application(room: Room) -> tornado.web.Application:
    """Return a room's web application."""
    shared = {"room": room}
    return tornado.web.Application(
        [
            ("/api/seats", Seats, shared),
            ("/api/seats/([0-9]{1,9})(/hand)?", AnySeat, shared),
            ("/api/seat", OwnSeat, shared),
            ("/api/seat/hand", OwnHand, shared),
            ("/api/code", Code, shared),
            ("/api/held", PinnedQuestion, shared),
            ("/view/(wall|instructor)", View, shared),
            (r"/([a-z.]*)", Page, shared),
        ],
        default_handler_class=Page,
        default_handler_args=shared,
        log_function=lambda handler: None,  # no access log, for privacy
    )


def serve(room: Room, address: str, port: int, tls: tuple[Path, Path] | None = None) -> tornado.httpserver.HTTPServer:
    """Listen on one address; return the server.

    Raises
    ------
    LabError
        If it cannot listen.
    """
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(*tls)
        except (OSError, ssl.SSLError) as error:
            raise LabError(f"cannot use {tls[0]} and {tls[1]} for TLS: {error}.") from error
    logging.getLogger("tornado.general").setLevel(logging.CRITICAL)  # otherwise, every malformed request prints a line
    server = tornado.httpserver.HTTPServer(
        application(room),
        ssl_options=context,
        max_body_size=protocol.MAX_BYTES,
        max_header_size=16_384,
        max_buffer_size=4 * protocol.MAX_BYTES,  # per connection; Tornado's default is 100 MB
        body_timeout=SLOW_CLIENT_S,
        idle_connection_timeout=SLOW_CLIENT_S,
        decompress_request=False,
        no_keep_alive=True,
    )
    try:
        server.add_sockets(tornado.netutil.bind_sockets(port, address, backlog=BACKLOG))
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        reason = getattr(error, "strerror", None) or "not a valid address"
        raise LabError(
            f"cannot listen on {address[:60]!r}, port {port}: {reason}. "
            "Choose an --address of this machine (`ip address`) or another --port."
        ) from error
    return server
