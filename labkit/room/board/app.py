"""The board's web server: it takes what seats send, trusts nobody, and shows pages that need nothing from elsewhere.

The Host that a request names is not looked at: a page from elsewhere that was made to lead here (DNS rebinding) has no
cookie of this board's, and would see the wall, which everybody in the network may.
"""

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import tornado.httpserver
import tornado.httputil
import tornado.iostream
import tornado.netutil
import tornado.web

from labkit.room import protocol
from labkit.room.board import views
from labkit.room.board.store import Full, Store
from labkit.system.errors import LabError

PAGES = Path(__file__).with_name("pages")
MAX_SEATS = 1000
MAX_VIEWERS = 100  # streams of the wall; who comes later asks every few seconds, as the page does when streams fail
MAX_FIGURES = 10_000
MAX_CONNECTIONS = 500  # but for streams; most systems let a process have 1,024 files
MAX_BUFFER = 128 * 1024  # bytes that a client may send ahead; Tornado's own limit is 100 MB for each
BACKLOG = 1024  # connections not taken up yet: after an outage a whole room comes at once
SLOW_CLIENT_S = 10.0  # for a message to come in, and for a page to read what it was sent
PUSH_INTERVAL_S = 0.25  # between two looks at what the pages show
CLOCK_S = 5  # a view in which only the clock has gone on is made again that often
MAX_KEYS = 10_000  # addresses, of which a limit keeps how often they came
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
    protocol.ANSWER_HEADER: "1",
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
        self._times: dict[str, deque[float]] = {}

    def allows(self, key: str) -> bool:
        """Whether it may happen once more, and count that."""
        now = time.monotonic()
        times = self._times.pop(key, deque())
        self._times[key] = times  # as the newest
        while times and now - times[0] > self.seconds:
            times.popleft()
        if len(times) >= self.most:
            return False
        times.append(now)
        if len(self._times) > MAX_KEYS:
            del self._times[next(iter(self._times))]
        return True


class View:
    """What a page shows, as JSON: made once for all who look, and again when it may be another.

    Parameters
    ----------
    store : Store
        What it is made from.
    make : callable
        Returns it.
    """

    def __init__(self, store: Store, make: Callable[[], dict[str, Any]]) -> None:
        self._store, self._make = store, make
        self._made_of: object = None
        self._text = b""

    def text(self) -> bytes:
        """Return it: the same object as before when nothing has changed."""
        current = (self._store.version, int(time.time() / CLOCK_S))
        if current != self._made_of:
            text = json.dumps(self._make()).encode()
            if text != self._text:
                self._text = text
            self._made_of = current
        return self._text


class Room:
    """What the server shows.

    Parameters
    ----------
    store : Store
        What was sent.
    labs : tuple of views.Lab
        The labs.
    plan : tuple of views.Planned
        The timetable; empty when there is none.

    Attributes
    ----------
    wall, instructor : View
        What the two pages show.
    streams : int
        How many pages have the wall open.
    """

    def __init__(self, store: Store, labs: tuple[views.Lab, ...], plan: tuple[views.Planned, ...]) -> None:
        self.store = store
        self.streams = 0
        self.wall = View(
            store,
            lambda: (
                views.wall(store.seats(), labs, plan, datetime.now()) | {"figures": views.room_figures(store.figures())}
            ),
        )
        self.instructor = View(store, lambda: views.instructor(store.seats(), labs, plan, datetime.now()))


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

    def limited(self, name: str, key: str = "") -> None:
        """Refuse what comes too often: from the client's address, where no other key is given."""
        if not self.limits[name].allows(key or _network(self.request.remote_ip or "")):
            self.refuse(429, "too often: try again in a moment")

    def message(self, kind: protocol.Message) -> Any:
        """Return the message of this request."""
        if self.request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            self.refuse(415, "send application/json")
        try:
            return protocol.read(self.request.body, kind)
        except protocol.Refused as error:
            self.refuse(400, _one_line(str(error)))
            raise  # refuse has

    def check_code(self, code: str) -> None:
        """Refuse another room's code."""
        if not self.room.store.is_code(code):
            self.limited("wrong code")
            self.refuse(403, "this is not the room's code")

    def seat(self) -> int:
        """Return the seat whose token came with this request."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        number = self.room.store.seat_of(token) if scheme == "Bearer" else None
        if number is None:
            self.limited("wrong token")
            self.refuse(403, "no such seat")
        assert number is not None
        self.limited("seat", str(number))
        return number

    def is_instructor(self) -> bool:
        """Whether the instructor's token is in the cookie."""
        return self.room.store.is_instructor(self.get_cookie(COOKIE) or "")

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
        self.limited("join")
        message = self.message(protocol.JOIN)
        self.check_code(message["code"])
        if self.room.store.count("seats") >= MAX_SEATS:
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
        self.limited("figures")
        message = self.message(protocol.FIGURES)
        self.check_code(message["code"])
        if self.room.store.count("figures") >= MAX_FIGURES:
            self.refuse(503, "there are too many figures")
        await self.kept(self.room.store.add_figures(message))
        self.set_status(204)


class Session(Handler):
    """The instructor's cookie, given for the token that stands after # in the address that was printed."""

    def post(self) -> None:
        """Set the cookie."""
        token = self.message(protocol.TOKEN)
        if not self.room.store.is_instructor(token):
            self.limited("wrong token")
            self.refuse(403, "this is not the instructor's address")
        secure = self.request.protocol == "https"
        self.set_cookie(COOKIE, token, httponly=True, samesite="Strict", secure=secure, path="/")
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


class Views(Handler):
    """What a page shows, as JSON or, when asked for, as a stream of it."""

    def initialize(self, room: Room, limits: dict[str, Limit], for_instructor: bool) -> None:  # type: ignore[override]
        """Take for whom."""
        super().initialize(room, limits)
        self._for_instructor = for_instructor

    async def get(self) -> None:
        """Return it once, or each time it changes."""
        if self._for_instructor and not self.is_instructor():
            self.refuse(403, "this is the instructor's page: open the address that ./lab room open printed")
        view = self.room.instructor if self._for_instructor else self.room.wall
        if "text/event-stream" not in self.request.headers.get("Accept", ""):
            self.set_header("Content-Type", "application/json")
            self.finish(view.text())
            return
        if self._for_instructor:
            await self._stream(view)
            return
        if self.room.streams >= MAX_VIEWERS:
            self.refuse(503, "too many pages are open")
        self.room.streams += 1
        try:
            await self._stream(view)
        finally:
            self.room.streams -= 1

    async def _stream(self, view: View) -> None:
        """Send server-sent events; a page that reads slowly gets the newest state when it has read the last one."""
        self.set_header("Content-Type", "text/event-stream")
        connection: Any = self.request.server_connection
        self.settings["server"].hold(connection)
        sent, quiet_since = b"", time.monotonic()
        with contextlib.suppress(tornado.iostream.StreamClosedError):
            while True:
                text = view.text()
                if text is not sent:
                    self.write(b"data: " + text + b"\n\n")
                elif time.monotonic() - quiet_since > 15:
                    self.write(": still here\n\n")  # so that what lies between does not close it
                else:
                    await asyncio.sleep(PUSH_INTERVAL_S)
                    continue
                sent, quiet_since = text, time.monotonic()
                try:
                    await asyncio.wait_for(self.flush(), SLOW_CLIENT_S)
                except TimeoutError:  # it has gone, or does not read
                    connection.stream.close()
                    return
                await asyncio.sleep(PUSH_INTERVAL_S)


class Missing(Handler):
    """Everything else."""

    def prepare(self) -> None:
        """Say that there is nothing."""
        self.refuse(404, "there is nothing here")


def application(room: Room) -> tornado.web.Application:
    """Return the application of a room."""
    limits = {
        # A whole room may come from one address. This is also how fast codes can be tried, of which there are 9e8.
        "join": Limit(600, 60),
        "wrong code": Limit(30, 60),
        "wrong token": Limit(60, 60),
        "seat": Limit(40, 10),
        "figures": Limit(600, 60),
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
            ("/view/wall", Views, shared | {"for_instructor": False}),
            ("/view/instructor", Views, shared | {"for_instructor": True}),
        ],
        default_handler_class=Missing,
        default_handler_args=shared,
        log_function=lambda handler: None,  # what comes in is nobody's business
    )


class Server(tornado.httpserver.HTTPServer):
    """A server with room for so many connections, one request each: for one more, the oldest is closed.

    What a seat sends takes milliseconds. Who opens connections and sends nothing, sends slowly, or does not read the
    answer loses those, and locks nobody out.
    """

    def initialize(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Make it with no connection."""
        super().initialize(*args, **kwargs)
        self._busy: dict[Any, None] = {}  # connections, the oldest first

    def start_request(self, server_conn: Any, request_conn: Any) -> tornado.httputil.HTTPMessageDelegate:
        """Make room for a new connection."""
        if server_conn not in self._busy and not server_conn.stream.closed():  # Tornado asks again after the answer
            if len(self._busy) >= MAX_CONNECTIONS:
                oldest = next(iter(self._busy))
                del self._busy[oldest]
                oldest.stream.close()
            self._busy[server_conn] = None
        return super().start_request(server_conn, request_conn)

    def hold(self, server_conn: Any) -> None:
        """Keep a connection open, for a page's stream."""
        self._busy.pop(server_conn, None)

    def on_close(self, server_conn: Any) -> None:
        """Forget the connection."""
        self._busy.pop(server_conn, None)
        super().on_close(server_conn)


def serve(room: Room, address: str, port: int, tls: tuple[Path, Path] | None = None) -> Server:
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
    logging.getLogger("tornado.general").setLevel(logging.ERROR)  # each odd message would be a line of the terminal
    board = application(room)
    server = Server(
        board,
        ssl_options=context,
        max_body_size=protocol.MAX_BYTES,
        max_header_size=16_384,
        max_buffer_size=MAX_BUFFER,
        body_timeout=SLOW_CLIENT_S,
        idle_connection_timeout=SLOW_CLIENT_S,
        decompress_request=False,
        no_keep_alive=True,
    )
    board.settings["server"] = server
    try:
        server.add_sockets(tornado.netutil.bind_sockets(port, address, backlog=BACKLOG))
    except OSError as error:
        raise LabError(f"cannot listen on {address}, port {port}: {_what_to_do(error)}") from error
    return server


def _what_to_do(error: OSError) -> str:
    """Return why there can be no listening, and what to do."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address. See `ip address`; without --address its own is taken."
    if error.errno == errno.EACCES:
        return f"{error.strerror}. Try a --port from 1024 on."
    return f"{error.strerror}. Try another --port."


def _network(address: str) -> str:
    """Return what stands for a client in limits: of IPv6, where each has as many addresses as it likes, the network."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((known, 64), strict=False)) if known.version == 6 else address


def _one_line(text: str) -> str:
    """Return a text that can stand in the status line of an answer."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)[:200]
