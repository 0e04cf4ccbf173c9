"""The hub's way in: what comes from browsers goes to the hub, and to the one server that is the browser's own.

It is the kit's own, on h11, as no other keeps students apart. JupyterHub's proxy, configurable-http-proxy for Node,
passes on well: streams, websockets with their subprotocols and binary messages, TLS; a page that is not read stops its
server. But its 5.3.0, held to this module's tests, shows what one student serves to another's browser, all of them from
one origin; sends every server the cookies of the others and of the hub, and takes from it cookies for all of them;
believes what a browser says of its own address; takes bodies of any size from whoever has not logged in. JupyterHub's
own answer, a domain for each user, takes a DNS that a classroom's server has not. Debian 12's 4.5.3 knows no Unix
sockets: it takes the address of one for port 80 of this machine. The proxy in Python (configurable-http-proxy 0.4.0)
keeps bodies and messages whole in memory (docs/upstream.md). Here

- a browser reaches the server of the seat that has logged in with it, and no other's; its cookies are those of
  `cookies`;
- a server listens at a Unix socket, and is asked if whoever listens there has the seat's account (`streams`);
- nothing is kept: of a body or a websocket more is read when what was read has gone, in both directions (`exchange`);
- each wait for a request ends, and whoever has too many connections loses the oldest.

`python -m labkit_classroom.hub.proxy` takes the options that JupyterHub gives its proxy.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
from dataclasses import dataclass, field
from html import escape
from urllib.parse import quote, urlsplit

import h11
import tornado.httpserver
import tornado.netutil
import tornado.web

from labkit_classroom.hub import settings
from labkit_classroom.hub.cookies import HUB, HUB_LOGIN, SEAT, SESSION, Seal, header_of
from labkit_classroom.hub.exchange import WEBSOCKET, Exchange, Headers, Left, Refusal, Side, end_to_end, refuse_larger
from labkit_classroom.hub.routes import Route, Routes, RoutesHandler
from labkit_classroom.hub.streams import Crowd, Stream, accepted, to_server

MAX_GUEST_BODY = 1 << 20  # bytes of a guest's body, and of each to the hub itself, which keeps it in memory
MAX_ERROR_PAGE = 1 << 18  # bytes
HEAD_S, IDLE_S, ERROR_PAGE_S = 20.0, 75.0, 10.0
LINGER_S = 2.0  # seconds for a body that was refused: otherwise the browser would not read why
MAX_OF_ADDRESS, MAX_OF_GUESTS, MAX_OF_SEAT = 256, 1024, 256  # connections; a class may share an address
BACKLOG = 1024
FORWARDED = (b"x-forwarded-", b"x-real-ip", b"x-scheme", b"forwarded", b"expect")  # headers that are the proxy's to set
TOKENS = (b"token ", b"bearer ")
log = logging.getLogger("proxy")


@dataclass
class Proxy:
    """The hub's way in: what all its connections share.

    Attributes
    ----------
    hub : State
        The hub whose way in this is.
    seal : Seal
        The seal of its cookies.
    error_target : str
        The address of the hub's pages for errors.
    protocol : str
        "https" or "http".
    """

    hub: settings.State
    seal: Seal
    error_target: str
    protocol: str
    routes: Routes = field(default_factory=Routes)
    crowd: Crowd = field(default_factory=Crowd)

    async def accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        """Serve all who connect."""
        tasks = set()
        while True:
            try:
                connected, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:  # such as too many open files
                log.warning("cannot take a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._serve(connected, address[0], context))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _serve(self, connected: socket.socket, address: str, context: ssl.SSLContext | None) -> None:
        """Serve a connection until it ends, whatever a browser sends."""
        try:
            self.crowd.enter("guests", MAX_OF_GUESTS)
            self.crowd.enter(f"address {address}", MAX_OF_ADDRESS)
            async with accepted(connected, context) as stream:
                await Browser(self, stream, address).serve()
        except (OSError, EOFError, h11.ProtocolError):  # whatever a browser does; time-outs and TLS are OSErrors
            pass
        except Exception:  # a fault of the proxy's: this connection ends, and the log has it
            log.exception("a request failed")
        finally:
            self.crowd.leave()


class Browser:
    """One connection of a browser's, with its requests one after another."""

    def __init__(self, proxy: Proxy, stream: Stream, address: str) -> None:
        self._proxy, self._side, self._address = proxy, Side(stream, h11.SERVER), address
        self._seat = ""  # that has logged in

    async def serve(self) -> None:
        """Answer all requests."""
        patience, http = HEAD_S, self._side.http
        while True:
            try:
                async with asyncio.timeout(patience):
                    request = await self._side.next()
            except h11.RemoteProtocolError as error:
                await self._say(Refusal(error.error_status_hint, "This is no request."))
                return
            if not isinstance(request, h11.Request):
                return
            try:
                await self._answer(request)
            except Refusal as refusal:
                await self._say(refusal, request.method == b"HEAD")
            if http.their_state is h11.SEND_BODY:
                await self._linger()
            if http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                return
            http.start_next_cycle()
            patience = IDLE_S

    async def _linger(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while await self._side.stream.read():
                    pass

    async def _say(self, refusal: Refusal, head: bool = False) -> None:
        """Answer with a refusal, without asking the hub or a server."""
        if self._side.has_answered:
            raise EOFError  # in the middle of another answer: so that the browser knows that this is not all
        http = self._side.http
        if http.their_state is h11.SEND_BODY:
            http.next_event()  # the end, of a request without a body
        page = f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{refusal.status}</title><p>{refusal.text}</p>"
        headers = [(b"location", refusal.location.encode())] if refusal.location else []
        if http.their_state is h11.SEND_BODY:
            headers.append((b"connection", b"close"))
        await self._show(refusal.status, page.encode(), head, headers)

    async def _show(self, status: int, page: bytes, head: bool, headers: Headers) -> None:
        length = (b"content-length", str(len(page)).encode())
        headers = [(b"content-type", b"text/html"), length, (b"cache-control", b"no-store"), *headers]
        await self._side.send(h11.Response(status_code=status, headers=headers))
        if not head:
            await self._side.send(h11.Data(data=page))
        await self._side.send(h11.EndOfMessage())

    async def _answer(self, request: h11.Request) -> None:
        """Pass a request on to the hub or a server, and the answer back."""
        path = request.target.decode("latin-1")
        route = self._proxy.routes.find(path.partition("?")[0]) if path.startswith("/") else None
        if not route:
            raise Refusal(404, "There is no such page.")
        headers = dict(request.headers)
        upgrade = headers.get(b"upgrade", b"").lower() == b"websocket"
        if upgrade or request.method not in (b"GET", b"HEAD", b"OPTIONS"):
            _refuse_others_pages(headers)
        cookies = self._cookies(request, route)
        limit = None if route.seat and self._seat == route.seat else MAX_GUEST_BODY
        if limit:
            refuse_larger(int(headers.get(b"content-length", 0)), limit)
        try:
            async with to_server(route.target, self._proxy.hub, route.seat) as stream:
                self._proxy.routes.is_used(route.prefix)
                exchange = Exchange(
                    self._side, Side(stream, h11.CLIENT), lambda come: self._translate(come, route), limit
                )
                await exchange.run(self._head(request, cookies, upgrade), upgrade)
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            if self._side.has_answered or isinstance(error, Left):
                raise
            log.warning("%s does not answer: %s", route.prefix, error or type(error).__name__)
            await self._show_error(503, path, request.method == b"HEAD")

    def _cookies(self, request: h11.Request, route: Route) -> list[tuple[str, str]]:
        """Return the cookies that go with a request; refuse what is not for this browser."""
        jar = "; ".join(value.decode("latin-1") for name, value in request.headers if name == b"cookie")
        own = self._proxy.seal.read(jar, HUB, self._address)
        self._note_seat(dict(own).get(SEAT, ""))
        if not route.seat:  # a login counts as long as its seat is known
            return [(name, value) for name, value in own if name != SEAT and (self._seat or name != HUB_LOGIN)]
        if self._seat != route.seat:
            self._refuse_server(request, route.seat)
            return []
        sessions = [cookie for cookie in own if cookie[0] == SESSION]
        return [*self._proxy.seal.read(jar, route.prefix, self._address), *sessions]

    def _note_seat(self, seat: str) -> None:
        if seat and seat != self._seat:
            self._proxy.crowd.leave()
            self._proxy.crowd.enter(f"seat {seat}", MAX_OF_SEAT)
        self._seat = seat

    def _refuse_server(self, request: h11.Request, owner: str) -> None:
        """Refuse a browser in which nobody has logged in as this server's owner.

        Whoever shows a token may ask, without cookies: no link and no page has a browser do that.
        """
        headers = dict(request.headers)
        if headers.get(b"authorization", b"").lower().startswith(TOKENS):
            return
        if self._seat:
            raise Refusal(
                403,
                f"This page is {escape(owner)}'s, and this browser has logged in as {escape(self._seat)}. What a "
                "student's server has is shown to nobody else. <a href=/hub/home>Go to your own</a>, or "
                "<a href=/hub/logout>log out</a>.",
            )
        if request.method == b"GET" and b"text/html" in headers.get(b"accept", b""):
            raise Refusal(302, "Log in first.", f"/hub/login?next={quote(request.target, safe='')}")
        raise Refusal(403, "Log in first.")

    def _head(self, request: h11.Request, cookies: list[tuple[str, str]], upgrade: bool) -> h11.Request:
        """Return a request as a server gets it: who asks, and by what protocol, is the proxy's to say."""
        headers = [
            (name, value)
            for name, value in end_to_end(request.headers)
            if name != b"cookie" and not name.startswith(FORWARDED)
        ]
        headers.append((b"x-forwarded-for", self._address.encode()))
        headers.append((b"x-forwarded-proto", self._proxy.protocol.encode()))
        headers += WEBSOCKET if upgrade else [(b"connection", b"close")]
        if cookies:
            headers.append((b"cookie", header_of(cookies).encode("latin-1")))
        return h11.Request(method=request.method, target=request.target, headers=headers)

    def _translate(self, come: Headers, route: Route) -> Headers:
        """Return an answer's headers as the browser gets them."""
        headers = []
        for name, value in come:
            if name == b"set-cookie":
                scope = route.prefix if route.seat else HUB
                value = self._proxy.seal.give(value.decode("latin-1"), scope, self._address).encode("latin-1")
            if name != b"service-worker-allowed" or not route.seat:  # it would stay for whoever logs in next
                headers.append((name, value))
        return headers

    async def _show_error(self, status: int, path: str, head: bool) -> None:
        """Show the hub's own page for an error."""
        target, page = urlsplit(self._proxy.error_target), b""
        where = f"{target.path.rstrip('/')}/{status}?url={quote(path, safe='')}"
        request = h11.Request(method="GET", target=where, headers=[("Host", "hub"), ("Connection", "close")])
        with contextlib.suppress(OSError, EOFError, h11.ProtocolError):
            async with (
                asyncio.timeout(ERROR_PAGE_S),
                to_server(self._proxy.error_target, self._proxy.hub) as stream,
            ):
                hub = Side(stream, h11.CLIENT)
                await hub.send(request)
                await hub.send(h11.EndOfMessage())
                while not isinstance(event := await hub.next(), h11.EndOfMessage | h11.ConnectionClosed):
                    page += bytes(event.data)[: MAX_ERROR_PAGE - len(page)] if isinstance(event, h11.Data) else b""
        if not page:
            raise Refusal(status, "The server does not answer.")
        await self._show(status, page, head, [])


def _refuse_others_pages(headers: dict[bytes, bytes]) -> None:
    """Refuse a request that another site's page makes; another port of this host, which gets its cookies, is one."""
    origin = headers.get(b"origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get(b"host", b"").lower():
        raise Refusal(403, "This comes from a page that is not the hub's.")


async def main() -> None:
    """Serve until a signal ends this process."""
    parser = argparse.ArgumentParser()
    for name in ("ip", "api-socket", "error-target", "log-level", "ssl-key", "ssl-cert"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="proxy: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it has a traceback for each that breaks off
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    context = None
    if args.ssl_cert:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(args.ssl_cert, args.ssl_key)
    hub = settings.own()
    seal = Seal((hub.folder / settings.SECRET).read_bytes())
    proxy = Proxy(hub, seal, args.error_target, "https" if context else "http")
    shared = {"routes": proxy.routes, "token": os.environ["CONFIGPROXY_AUTH_TOKEN"]}
    interface = tornado.web.Application([(r"/api/routes(/.*)?", RoutesHandler, shared)], log_function=lambda _: None)
    tornado.httpserver.HTTPServer(interface).add_socket(tornado.netutil.bind_unix_socket(args.api_socket))
    listeners = tornado.netutil.bind_sockets(args.port, args.ip, backlog=BACKLOG)
    await asyncio.gather(*(proxy.accept(listener, context) for listener in listeners))


if __name__ == "__main__":
    asyncio.run(main())
