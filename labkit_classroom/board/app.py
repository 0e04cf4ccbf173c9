"""The board's web server: it takes what seats send, trusts nobody, and shows pages that need nothing from elsewhere.

Whatever has an effect, or shows a seat, takes a token in a header, and never a cookie: cookies know no ports, so that
another server on this host would get them, and browsers send them with what pages from elsewhere ask for. Nor does it
matter which Host a request names: a page that was made to lead here (DNS rebinding) has no token, and would see the
wall, which everybody in the network may.
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
from collections.abc import Awaitable
from datetime import datetime
from pathlib import Path
from typing import Any

import tornado.httpserver
import tornado.httputil
import tornado.iostream
import tornado.netutil
import tornado.web

from labkit.system.errors import LabError
from labkit_classroom.board import posters, protocol, questions, timetable, views
from labkit_classroom.board.limits import Limit
from labkit_classroom.board.store import Full, Store

PAGES = Path(__file__).with_name("pages")
MAX_SEATS = 500
MAX_VIEWERS = 100  # streams of the wall; who comes later asks every few seconds, as the page does when streams fail
MAX_FIGURE_BYTES = 3_000_000  # of all closing figures: a wall with them stays well below protocol.MAX_ANSWER_BYTES
MAX_CONNECTIONS = 500  # connections without streams; most systems let a process have 1,024 files
MAX_BUFFER = 128 * 1024  # bytes that a client may send ahead; Tornado's own limit is 100 MB for each
BACKLOG = 1024  # connections not taken up yet: after an outage a whole room comes at once
SLOW_CLIENT_S = 10.0  # seconds for a message to come in, and for a page to read what it was sent
PUSH_INTERVAL_S = 0.25  # seconds between two looks at a page's content
MIN_COST = 2500  # bytes that take as much of the board's time as the smallest message

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


JOINING = views.Joining("", "./lab join")


class Room:
    """A room as the server shows it.

    Parameters
    ----------
    store : Store
        The room's memory.
    labs : tuple of views.Lab
        The labs.
    plan : timetable.Plan
        The timetable; empty when there is none.
    asked : tuple of questions.Question
        What students guess, in the order in which they come to it.
    joining : views.Joining
        How students join.

    Attributes
    ----------
    figures : views.Figures
        The closing figures.
    numbers : tuple of str
        The labs' numbers.
    streams : int
        How many pages have the wall open.
    joining : views.Joining
        How students join.
    """

    def __init__(
        self,
        store: Store,
        labs: tuple[views.Lab, ...],
        plan: timetable.Plan,
        asked: tuple[questions.Question, ...] = (),
        joining: views.Joining = JOINING,
    ) -> None:
        self.store = store
        self.streams = 0
        self.joining = joining
        self.numbers = tuple(lab.number for lab in labs)
        self.figures = views.Figures()
        self._labs, self._plan, self._tally = labs, plan, views.Tally(questions=asked)
        self._asked = {(question.lab, question.number): question for question in asked}
        self._are_all_in = False
        store.follow(self._tally.replace, self.figures.replace)

    def wall(self) -> dict[str, Any]:
        """Return the wall's content, but for the figures.

        How to join is large until everybody is in. The code is not in it, only how many the room has had: everybody in
        the network may see the wall.
        """
        awaited = int(self.store["people"])
        self._are_all_in = self._are_all_in or views.are_all_in(
            self._tally, awaited
        )  # who leaves later changes nothing
        joining = {"awaited": awaited, "are_all_in": self._are_all_in, "codes": self.store["codes"]}
        shown = views.wall(self._tally, self._labs, self._plan, datetime.now())
        return shown | {"joining": self.joining._asdict() | joining}

    def taken(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a seat's state with those guesses alone that are answers to the kit's questions."""
        return state | {"guesses": questions.fitting(state["guesses"], self._asked)}

    def instructor(self) -> dict[str, Any]:
        """Return the content of the instructor's page."""
        store, now = self.store, datetime.now()
        seats, code = store.seats.values(), store["code"]
        about = {"code": code, "wall_address": posters.address(self.joining.address, code)}
        return about | views.instructor(self._tally, seats, self._labs, self._plan, now, store.now())


class Handler(tornado.web.RequestHandler):
    """A request to the board: its answer's headers, errors of one line, limits."""

    room: Room
    limits: dict[str, Limit]

    def initialize(self, room: Room, limits: dict[str, Limit]) -> None:
        """Set the room and its limits, which all requests share."""
        self.room, self.limits = room, limits

    def set_default_headers(self) -> None:
        """Set the headers of each answer."""
        for name, value in HEADERS.items():
            self.set_header(name, value)
        if self.request.protocol == "https":  # of a page without, browsers ignore it, and say so
            self.set_header("Cross-Origin-Opener-Policy", "same-origin")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer by one line of JSON, with nothing of this program's inside."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        reason = error.reason if isinstance(error, tornado.web.HTTPError) and error.reason else self._reason
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"error": reason}))

    def refuse(self, status: int, reason: str) -> None:
        """Answer with an error, and end the request."""
        raise tornado.web.HTTPError(status, reason=reason)

    def limited(self, name: str, key: str = "", cost: float = 1) -> None:
        """Refuse a request beyond a limit: that of another key, or of the client's address."""
        if not self.limits[name].allows(key or _network(self.request.remote_ip or ""), cost):
            self.refuse(429, "too often: try again in a moment")

    def message(self, kind: protocol.Message) -> Any:
        """Return the message in the request's body."""
        if self.request.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            self.refuse(415, "send application/json")
        try:
            return protocol.read(self.request.body, kind)
        except protocol.Refused as error:
            self.refuse(400, _one_line(str(error)))
            raise  # refuse has

    def token(self) -> str:
        """Return the request's bearer token; empty without."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token if scheme == "Bearer" else ""

    def seat(self) -> int:
        """Return the number of the seat whose token the request has."""
        number = self.room.store.seat_of(self.token())
        if number is None:
            self.limited("wrong token")
            self.refuse(403, "no such seat")
        assert number is not None
        self.limited("seat", str(number), max(len(self.request.body), MIN_COST))
        return number

    def check_instructor(self) -> None:
        """Refuse a request without the instructor's token."""
        if not self.room.store.is_instructor(self.token()):
            self.refuse(403, "this is the instructor's page: open the address that ./lab room open printed")

    async def kept(self, writing: Awaitable[Any]) -> Any:
        """Return the result of a write; answer with an error when it is not kept."""
        try:
            return await writing
        except Full:
            self.refuse(507, "the board cannot write: its disk may be full")


class Seats(Handler):
    """The room's seats, of which each student who joins gets a new one."""

    async def post(self) -> None:
        """Add a seat to the room."""
        message = self.message(protocol.JOIN)
        if not self.room.store.is_code(message["code"]):
            self.limited("wrong code")
            self.refuse(403, "this is not the room's code")
        if len(self.room.store.seats) >= MAX_SEATS:
            self.refuse(503, "the room is full")
        self.limited("join")
        joining = self.room.store.join(protocol.seat_name(message["seat"]), self.room.numbers)
        name, token = await self.kept(joining)
        self.set_status(201)
        self.finish({"seat": name, "token": token})


class OwnSeat(Handler):
    """A student's own seat."""

    async def put(self) -> None:
        """Keep the seat's state; answer whether the instructor has helped with the hand that it has."""
        number = self.seat()
        if await self.kept(self.room.store.put(number, self.room.taken(self.message(protocol.STATE)))):
            self.finish({"helped": True})
        else:
            self.set_status(204)

    async def delete(self) -> None:
        """Delete all that is kept of the seat."""
        await self.kept(self.room.store.leave(self.seat(), self.token(), self.room.numbers))
        self.set_status(204)


class AnySeat(Handler):
    """Any seat, for the instructor."""

    async def delete(self, number: str) -> None:
        """Delete all that is kept of the seat, as if it had left."""
        self.check_instructor()
        await self.kept(self.room.store.leave(int(number)))
        self.set_status(204)


class Hand(Handler):
    """The hand of any seat, for the instructor."""

    async def delete(self, number: str) -> None:
        """Take down the hand, as somebody has helped; the seat hears of it with its next message."""
        self.check_instructor()
        await self.kept(self.room.store.help(int(number)))
        self.set_status(204)


class Figures(Handler):
    """Closing figures of a lab, without a seat: each seat has a ticket for those of each lab."""

    async def post(self) -> None:
        """Keep the figures of one machine."""
        message = self.message(protocol.FIGURES)
        if not self.room.store.has_ticket(message["ticket"], message["lab"]):
            self.limited("wrong token")
            self.refuse(403, "this ticket is of no seat, or used")
        cost = len(self.request.body)
        if self.room.figures.size + cost > MAX_FIGURE_BYTES:
            self.refuse(503, "there are too many figures")
        self.limited("figures", cost=cost)
        await self.kept(self.room.store.add_figures(message))
        self.set_status(204)

    async def delete(self) -> None:
        """Delete the figures of all labs, for the instructor."""
        self.check_instructor()
        await self.kept(self.room.store.delete_figures())
        self.limits["figures"].clear()
        self.set_status(204)


class Code(Handler):
    """The room's code."""

    async def post(self) -> None:
        """Change the code, for the instructor: nobody joins by the old one, and whoever is there stays."""
        self.check_instructor()
        await self.kept(self.room.store.change_code())
        self.limits["join"].clear()
        self.set_status(204)


class Poster(Handler):
    """The wall's address with the room's code, as a picture that a camera reads."""

    def get(self) -> None:
        """Send the code and the picture, to who has the code."""
        if not self.room.store.is_code(self.token()):
            self.limited("wrong code")
            self.refuse(
                403, "this is not the room's code: the instructor's page and ./lab room status have the wall's address"
            )
        code = self.room.store["code"]
        self.finish({"code": code, **posters.picture(posters.address(self.room.joining.address, code))})


class Page(Handler):
    """A page, its style sheet or its script."""

    def initialize(self, room: Room, limits: dict[str, Limit], file: str, kind: str) -> None:  # type: ignore[override]
        """Set the file that is sent, and its content type."""
        super().initialize(room, limits)
        self._file, self._kind = file, kind

    def get(self) -> None:
        """Send the file."""
        self.set_header("Content-Type", self._kind)
        self.finish((PAGES / self._file).read_bytes())


class Views(Handler):
    """The content of a page, as JSON or, when asked for, as a stream of server-sent events."""

    def initialize(self, room: Room, limits: dict[str, Limit], for_instructor: bool) -> None:  # type: ignore[override]
        """Set whose page it is: the instructor's, or the wall."""
        super().initialize(room, limits)
        self._for_instructor = for_instructor

    async def get(self) -> None:
        """Send the content once, or as a stream each time it changes."""
        if self._for_instructor:
            self.check_instructor()
        if "text/event-stream" not in self.request.headers.get("Accept", ""):
            self.set_header("Content-Type", "application/json")
            text = self._text(True)
            if not self._for_instructor:
                self.limited("views", cost=len(text))
            self.finish(text)
            return
        if self._for_instructor:
            await self._stream()
            return
        if self.room.streams >= MAX_VIEWERS:
            self.refuse(503, "too many pages are open")
        self.room.streams += 1
        try:
            await self._stream()
        finally:
            self.room.streams -= 1

    def _text(self, with_figures: bool) -> bytes:
        """Return the page's content as JSON, the wall's with its figures or without."""
        text = json.dumps(self.room.instructor() if self._for_instructor else self.room.wall()).encode()
        if self._for_instructor or not with_figures:
            return text
        return text[:-1] + b', "figures": ' + self.room.figures.text() + b"}"

    async def _stream(self) -> None:
        """Send server-sent events; a page that reads slowly gets the newest state when it has read the last one.

        Figures are sent when they have changed.
        """
        self.set_header("Content-Type", "text/event-stream")
        connection: Any = self.request.server_connection
        self.settings["server"].hold(connection)
        sent, figures, quiet_since = b"", b"", time.monotonic()
        with contextlib.suppress(tornado.iostream.StreamClosedError):
            while True:
                text, now = self._text(False), self.room.figures.text()
                if text != sent or now is not figures:
                    self.write(b"data: " + self._text(now is not figures) + b"\n\n")
                elif time.monotonic() - quiet_since > 15:
                    self.write(": still here\n\n")  # so that what lies between does not close it
                else:
                    await asyncio.sleep(PUSH_INTERVAL_S)
                    continue
                sent, figures, quiet_since = text, now, time.monotonic()
                try:
                    await asyncio.wait_for(self.flush(), SLOW_CLIENT_S)
                except TimeoutError:  # it has gone, or does not read
                    connection.stream.close()
                    return
                await asyncio.sleep(PUSH_INTERVAL_S)


class Missing(Handler):
    """An address at which there is nothing."""

    def prepare(self) -> None:
        """Answer that there is nothing."""
        self.refuse(404, "there is nothing here")


def application(room: Room) -> tornado.web.Application:
    """Return the application of a room."""
    # A whole room may come from one address, and go on from there after an outage: a hub's, or a router's.
    limits = {
        "wrong code": Limit(30, 60),  # this is also how fast codes can be tried, of which there are 9e8
        "wrong token": Limit(60, 60),
        "join": Limit(200, 3600),  # a new code sets it back
        "seat": Limit(2e5, 40),  # bytes of a seat: no more than its share, however many others one address has
        "figures": Limit(1.5e6, 24 * 3600),  # bytes: those of forty people in all labs are some 0.4 MB
        "views": Limit(1e8, 10),  # bytes
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
            ("/poster.js", Page, shared | {"file": "poster.js", "kind": javascript}),
            ("/wall.js", Page, shared | {"file": "wall.js", "kind": javascript}),
            ("/instructor.js", Page, shared | {"file": "instructor.js", "kind": javascript}),
            ("/api/seats", Seats, shared),
            ("/api/seats/([0-9]{1,9})", AnySeat, shared),
            ("/api/seats/([0-9]{1,9})/hand", Hand, shared),
            ("/api/seat", OwnSeat, shared),
            ("/api/figures", Figures, shared),
            ("/api/code", Code, shared),
            ("/api/poster", Poster, shared),
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

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Set up a server without connections."""
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
    logging.getLogger("tornado.general").setLevel(logging.CRITICAL)  # each odd message would be a line of the terminal
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
    except (OSError, UnicodeError) as error:  # the second: no name of a host can be so
        raise LabError(f"cannot listen on {address[:60]!r}, port {port}: {_what_to_do(error)}") from error
    return server


def _what_to_do(error: OSError | UnicodeError) -> str:
    """Return the reason why the server cannot listen, and the remedy."""
    if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address. See `ip address`; without --address its own is taken."
    if error.errno == errno.EACCES:
        return f"{error.strerror}. Try a --port from 1024 on."
    return f"{error.strerror}. Try another --port."


def _network(address: str) -> str:
    """Return a client's key in limits: the address; of IPv6, where each has as many as they like, the network."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((known, 64), strict=False)) if known.version == 6 else address


def _one_line(text: str) -> str:
    """Return a text as the status line of an answer can have it."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text)[:200]
