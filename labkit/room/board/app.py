"""The board's web server: it takes what seats send, trusts nobody, and shows pages that need nothing from elsewhere."""

import asyncio
import contextlib
import hmac
import json
import secrets
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import tornado.httpserver
import tornado.iostream
import tornado.netutil
import tornado.web

from labkit.room import protocol
from labkit.room.board import views
from labkit.room.board.store import Full, Store
from labkit.system.errors import LabError

PAGES = Path(__file__).with_name("pages")
MAX_SEATS = 1000
MAX_VIEWERS = 100  # streams of the wall and of the instructor's page
MAX_FIGURES = 10_000
SLOW_CLIENT_S = 10.0  # for a message to come in
PUSH_INTERVAL_S = 0.5  # between two looks at what the pages show
COOKIE = "instructor"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "board",
}


class Limit:
    """How often something may happen: so many times in so many seconds, for each key.

    Parameters
    ----------
    most : int
        How many times.
    seconds : float
        In how long.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    def allows(self, key: str) -> bool:
        """Whether it may happen once more, and count that."""
        now, times = time.monotonic(), self._times[key]
        while times and now - times[0] > self.seconds:
            times.popleft()
        if len(times) >= self.most:
            return False
        times.append(now)
        if len(self._times) > 10_000:  # of addresses that come once
            self._times.clear()
        return True


class Room(NamedTuple):
    """What the server shows beside what the store keeps.

    Attributes
    ----------
    store : Store
        What was sent.
    labs : tuple of views.Lab
        The labs.
    plan : tuple of views.Planned
        The timetable; empty when there is none.
    """

    store: Store
    labs: tuple[views.Lab, ...]
    plan: tuple[views.Planned, ...]

    def wall(self) -> dict[str, Any]:
        """Return what the wall shows."""
        shown = views.wall(self.store.seats(), self.labs, self.plan, datetime.now())
        return shown | {"figures": views.room_figures(self.store.figures())}

    def instructor(self) -> dict[str, Any]:
        """Return what the instructor's page shows."""
        return views.instructor(self.store.seats(), self.labs, self.plan, datetime.now())


class Handler(tornado.web.RequestHandler):
    """What all answers have in common: headers, errors of one line, limits."""

    room: Room
    limits: dict[str, Limit]

    def initialize(self, room: Room, limits: dict[str, Limit]) -> None:
        """Take what the application has."""
        self.room, self.limits = room, limits

    def set_default_headers(self) -> None:
        """Set what each answer has."""
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer by one line of JSON, with nothing of this program's inside."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        reason = error.reason if isinstance(error, tornado.web.HTTPError) and error.reason else self._reason
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"error": reason}))

    def refuse(self, status: int, reason: str) -> None:
        """End this request."""
        raise tornado.web.HTTPError(status, reason=reason)

    def limited(self, name: str, key: str) -> None:
        """Refuse what comes too often."""
        if not self.limits[name].allows(key):
            self.refuse(429, "too often: try again in a moment")

    def message(self, schema: dict) -> dict[str, Any]:
        """Return the message of this request."""
        if self.request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            self.refuse(415, "send application/json")
        try:
            return protocol.read(self.request.body, schema)
        except protocol.Refused as error:
            self.refuse(400, _one_line(str(error)))
            raise  # refuse has

    def check_code(self, code: str) -> None:
        """Refuse another room's code."""
        known = self.room.store["code"]
        given = code.upper().replace("-", "").replace(" ", "")
        if not hmac.compare_digest(given.encode(errors="replace"), known.encode()):
            self.limited("wrong code", self.request.remote_ip or "")
            self.refuse(403, "this is not the room's code")

    def seat(self) -> int:
        """Return the seat whose token came with this request."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        number = self.room.store.seat_of(token) if scheme == "Bearer" else None
        if number is None:
            self.limited("wrong token", self.request.remote_ip or "")
            self.refuse(403, "no such seat")
        assert number is not None
        self.limited("seat", str(number))
        return number

    def is_instructor(self) -> bool:
        """Whether the instructor's token is in the cookie."""
        given = self.get_cookie(COOKIE) or ""
        return hmac.compare_digest(given.encode(errors="replace"), self.room.store["instructor"].encode())

    async def kept(self, writing: Awaitable[Any]) -> Any:
        """Return what a write returns; say when it is not kept."""
        try:
            return await writing
        except Full:
            self.refuse(507, "the board cannot write: its disk may be full")


class Seats(Handler):
    """Joining."""

    async def post(self) -> None:
        """Add a seat to the room."""
        self.limited("join", self.request.remote_ip or "")
        message = self.message(protocol.JOIN)
        self.check_code(message["code"])
        if len(self.room.store.seats()) >= MAX_SEATS:
            self.refuse(503, "the room is full")
        name, token = await self.kept(self.room.store.join(protocol.seat_name(message["seat"])))
        self.set_status(201)
        self.finish({"seat": name, "token": token})


class OwnSeat(Handler):
    """What a seat sends of itself."""

    async def put(self) -> None:
        """Keep the seat's state."""
        number = self.seat()
        await self.kept(self.room.store.put(number, self.message(protocol.STATE)))
        self.set_status(204)

    async def delete(self) -> None:
        """Delete all that is kept of the seat."""
        await self.kept(self.room.store.leave(self.seat()))
        self.set_status(204)


class Figures(Handler):
    """A lab's closing figures, without a seat."""

    async def post(self) -> None:
        """Keep them."""
        self.limited("figures", self.request.remote_ip or "")
        message = self.message(protocol.FIGURES)
        self.check_code(message["code"])
        if len(self.room.store.figures()) >= MAX_FIGURES:
            self.refuse(503, "there are too many figures")
        await self.kept(self.room.store.add_figures(message))
        self.set_status(204)


class Session(Handler):
    """The instructor's cookie, given for the token that stands after # in the address that was printed."""

    def post(self) -> None:
        """Set the cookie."""
        token = self.message({"type": "string", "maxLength": 100})
        if not hmac.compare_digest(str(token).encode(errors="replace"), self.room.store["instructor"].encode()):
            self.limited("wrong token", self.request.remote_ip or "")
            self.refuse(403, "this is not the instructor's address")
        secure = self.request.protocol == "https"
        self.set_cookie(COOKIE, str(token), httponly=True, samesite="Strict", secure=secure, path="/")
        self.set_status(204)


class Page(Handler):
    """A page, or what belongs to one."""

    def initialize(self, room: Room, limits: dict[str, Limit], file: str, kind: str) -> None:  # type: ignore[override]
        """Take which."""
        super().initialize(room, limits)
        self._file, self._kind = file, kind

    def get(self) -> None:
        """Return it."""
        self.set_header("Content-Type", self._kind)
        self.finish((PAGES / self._file).read_bytes())


class View(Handler):
    """What a page shows, as JSON or, when asked for, as a stream of it."""

    viewers = 0

    def initialize(self, room: Room, limits: dict[str, Limit], for_instructor: bool) -> None:  # type: ignore[override]
        """Take for whom."""
        super().initialize(room, limits)
        self._for_instructor = for_instructor

    async def get(self) -> None:
        """Return it once, or each time it changes."""
        if self._for_instructor and not self.is_instructor():
            self.refuse(403, "this is the instructor's page: open the address that ./lab room open printed")
        show = self.room.instructor if self._for_instructor else self.room.wall
        if "text/event-stream" not in self.request.headers.get("Accept", ""):
            self.finish(show())
            return
        if View.viewers >= MAX_VIEWERS:
            self.refuse(503, "too many pages are open")
        View.viewers += 1
        try:
            await self._stream(show)
        finally:
            View.viewers -= 1

    async def _stream(self, show: Callable[[], dict[str, Any]]) -> None:
        """Send server-sent events; a page that reads slowly gets the newest state when it has read the last one."""
        self.set_header("Content-Type", "text/event-stream")
        sent, quiet_since = "", time.monotonic()
        with contextlib.suppress(tornado.iostream.StreamClosedError):
            while True:
                text = json.dumps(show())
                if text != sent:
                    self.write(f"data: {text}\n\n")
                elif time.monotonic() - quiet_since > 15:
                    self.write(": still here\n\n")  # so that what lies between does not close it
                else:
                    await asyncio.sleep(PUSH_INTERVAL_S)
                    continue
                sent, quiet_since = text, time.monotonic()
                await self.flush()
                await asyncio.sleep(PUSH_INTERVAL_S)


class Missing(Handler):
    """Everything else."""

    def prepare(self) -> None:
        """Say that there is nothing."""
        self.refuse(404, "there is nothing here")


def application(room: Room) -> tornado.web.Application:
    """Return the application of a room."""
    limits = {
        "join": Limit(200, 60),  # a whole room may come from one address
        "wrong code": Limit(30, 60),
        "wrong token": Limit(60, 60),
        "seat": Limit(40, 10),
        "figures": Limit(400, 60),
    }
    shared = {"room": room, "limits": limits}
    html, css, javascript = ("text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8")
    return tornado.web.Application(
        [
            ("/", Page, shared | {"file": "wall.html", "kind": html}),
            ("/instructor", Page, shared | {"file": "instructor.html", "kind": html}),
            ("/board.css", Page, shared | {"file": "board.css", "kind": css}),
            ("/board.js", Page, shared | {"file": "board.js", "kind": javascript}),
            ("/figures.js", Page, shared | {"file": "figures.js", "kind": javascript}),
            ("/wall.js", Page, shared | {"file": "wall.js", "kind": javascript}),
            ("/instructor.js", Page, shared | {"file": "instructor.js", "kind": javascript}),
            ("/api/seats", Seats, shared),
            ("/api/seat", OwnSeat, shared),
            ("/api/figures", Figures, shared),
            ("/api/session", Session, shared),
            ("/view/wall", View, shared | {"for_instructor": False}),
            ("/view/instructor", View, shared | {"for_instructor": True}),
        ],
        default_handler_class=Missing,
        default_handler_args=shared,
        log_function=lambda handler: None,  # what comes in is nobody's business
        cookie_secret=secrets.token_urlsafe(32),
    )


def serve(room: Room, address: str, port: int, tls: tuple[Path, Path] | None = None) -> tornado.httpserver.HTTPServer:
    """Listen on one address; return the server.

    Raises
    ------
    LabError
        When that is not possible.
    """
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(*tls)
        except (OSError, ssl.SSLError) as error:
            raise LabError(f"cannot use {tls[0]} and {tls[1]} for TLS: {error}.") from error
    server = tornado.httpserver.HTTPServer(
        application(room),
        ssl_options=context,
        max_body_size=protocol.MAX_BYTES,
        max_header_size=16_384,
        body_timeout=SLOW_CLIENT_S,
        idle_connection_timeout=SLOW_CLIENT_S,
        decompress_request=False,
    )
    try:
        server.add_sockets(tornado.netutil.bind_sockets(port, address))
    except OSError as error:
        raise LabError(f"cannot listen on {address}, port {port}: {error.strerror}. Try another --port.") from error
    return server


def _one_line(text: str) -> str:
    """Return a text that can stand in the status line of an answer."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)[:200]
