"""The hub's way in: who is shown what, which cookies count, what is refused, and that nobody fills its memory."""

import asyncio
import contextlib
import getpass
import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
import requests
import tornado.httpclient
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket
from certificates import certificate

from labkit.system import processes
from labkit.system.addresses import free_ports
from labkit_classroom.hub import exchange, opening, proxy, settings, streams
from labkit_classroom.hub.cookies import HUB, HUB_LOGIN, SEAT, SESSION, XSRF, Seal

SECRET, TOKEN = b"s" * 32, "secret"
HERE = "127.0.0.1"
SEAL = Seal(SECRET)
MIB = 1 << 20
SERVER = "/user/seat-01"
ME = getpass.getuser()
ANOTHER = next(account for account in ("nobody", "root") if account != ME)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Unverified HTTPS")]


def cookie(name: str, value: str, scope: str = HUB, address: str = HERE) -> str:
    """Return a cookie as a browser got it."""
    return f"{name}={SEAL.close(name, value, scope, address)}"


def logged_in(seat: str = "seat-01", address: str = HERE) -> dict[str, str]:
    """Return the headers of a browser in which somebody has logged in."""
    return {"Cookie": cookie(SEAT, seat, address=address)}


class Echo(tornado.web.RequestHandler):
    """Says what came; answers in the ways that servers do."""

    def post(self) -> None:
        for one in self.get_query_arguments("set"):
            self.add_header("Set-Cookie", one)
        self.set_header("Service-Worker-Allowed", "/")
        heard = {name.lower(): value for name, value in self.request.headers.get_all()}
        self.finish({"size": len(self.request.body), "headers": heard})

    def get(self) -> None:
        self.set_header("Etag", '"own"')
        if self.request.headers.get("If-None-Match"):
            self.set_status(304)
        else:
            self.write(b"0" * 30_000_000)

    def head(self) -> None:
        self.set_header("Content-Length", "30000000")


class Events(tornado.web.RequestHandler):
    """A stream that lasts."""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        for number in range(600):
            self.write(f"data: {number}\n\n")
            await self.flush()
            await asyncio.sleep(0.1)


class Flood(tornado.web.RequestHandler):
    """More than fits anywhere; counts what it began to send."""

    sent = 0
    was_given_up = False

    async def get(self) -> None:
        Flood.was_given_up = False
        try:
            while Flood.sent < 1 << 30:
                Flood.sent += MIB
                self.write(bytes(MIB))
                await self.flush()
        except tornado.iostream.StreamClosedError:
            Flood.was_given_up = True


class Talk(tornado.websocket.WebSocketHandler):
    """Says what it hears; to "flood", more than fits anywhere."""

    def select_subprotocol(self, offered: list[str]) -> str | None:
        return offered[-1] if offered else None

    async def on_message(self, message: str | bytes) -> None:
        if message != "flood":
            await self.write_message(message, binary=isinstance(message, bytes))
            return
        with contextlib.suppress(tornado.websocket.WebSocketClosedError):
            while Flood.sent < 1 << 30:
                Flood.sent += MIB
                await self.write_message(bytes(MIB), binary=True)


class ErrorPage(tornado.web.RequestHandler):
    def get(self) -> None:
        self.finish("the hub's own page")


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, task: object) -> object:
        return asyncio.run_coroutine_threadsafe(task, self.loop).result(20)

    def stop(self) -> None:
        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)


@pytest.fixture
def hub(tmp_path: Path) -> settings.State:
    wanted = opening.settle(2, ["00"], HERE, 8000, students_files=tmp_path / "s", keep_apart=settings.NONE)
    hub = settings.State(wanted, folder=tmp_path, runtime=tmp_path)
    hub.save()
    (tmp_path / settings.SECRET).write_bytes(SECRET)
    return hub


@pytest.fixture
def targets(hub: settings.State) -> Iterator[dict[str, str]]:
    """The hub and the server of seat-01, at Unix sockets."""
    loop, rules = Loop(), []
    for path in ("", SERVER):
        rules += [(f"{path}/echo", Echo), (f"{path}/events", Events), (f"{path}/flood", Flood), (f"{path}/talk", Talk)]
    rules.append((r"/hub/error/\d+", ErrorPage))
    hub.sockets("seat-01").mkdir()
    found = {"/": hub.hub_socket, SERVER: hub.server_socket("seat-01")}

    async def serve() -> None:
        server = tornado.httpserver.HTTPServer(tornado.web.Application(rules, websocket_max_message_size=1 << 28))
        for path in found.values():
            server.add_socket(tornado.netutil.bind_unix_socket(str(path)))

    loop.run(serve())
    yield {prefix: settings.unix_url(path) for prefix, path in found.items()}
    loop.stop()


class Way:
    """A proxy that runs, with its routes set as JupyterHub does."""

    def __init__(self, hub: settings.State, targets: dict[str, str], *tls: object) -> None:
        (port,) = free_ports(1)
        where = ["--ip", HERE, "--port", port, "--api-socket", hub.proxy_api]
        command = [
            sys.executable,
            "-m",
            "labkit_classroom.hub.proxy",
            *where,
            "--error-target",
            f"{targets['/']}/hub/error",
        ]
        env = os.environ | {"CONFIGPROXY_AUTH_TOKEN": TOKEN, settings.VARIABLE: str(hub.folder)}
        self.process = subprocess.Popen(list(map(str, [*command, *tls])), env=env)
        self.port, self.url, self._api = port, f"http{'s' if tls else ''}://{HERE}:{port}", str(hub.proxy_api)
        assert processes.wait_until(lambda: hub.proxy_api.is_socket() and self.tell("GET", "").is_success, 30)
        for prefix, target in targets.items():
            seat = {"user": prefix.rpartition("/")[2]} if prefix != "/" else {}
            assert self.tell("POST", prefix, json={"target": target, "jupyterhub": True, **seat}).status_code == 201

    def tell(self, method: str, path: str, token: str = TOKEN, **options: object) -> httpx.Response:
        """Ask for routes, or set one."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=self._api, retries=5)) as client:
            headers = {"Authorization": f"token {token}"}
            return client.request(method, f"http://proxy/api/routes{path}", headers=headers, **options)

    def ask(self, method: str, path: str, **options: object) -> requests.Response:
        options = {"timeout": 30, "verify": False, "allow_redirects": False} | options
        return requests.request(method, self.url + path, **options)

    def echo(self, path: str = SERVER, headers: dict[str, str] | None = None, **options: object) -> dict[str, str]:
        """Return the headers that a server gets."""
        return self.ask("POST", f"{path}/echo".replace("//", "/"), headers=headers, **options).json()["headers"]

    def connect(self, head: str = "", headers: dict[str, str] | None = None) -> socket.socket:
        """Return a connection on which this was sent."""
        connected = socket.create_connection((HERE, self.port), timeout=20)
        lines = [head, f"Host: {HERE}:{self.port}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        if head:
            connected.sendall("\r\n".join([*lines, "", ""]).encode())
        return connected

    def memory(self) -> int:
        return psutil.Process(self.process.pid).memory_info().rss


@pytest.fixture
def way(request: pytest.FixtureRequest, hub: settings.State, targets: dict[str, str]) -> Iterator[Way]:
    tls: list[object] = []
    if getattr(request, "param", "http") == "https":
        cert, key = certificate(hub.folder, "localhost")
        tls = ["--ssl-key", key, "--ssl-cert", cert]
    opened = Way(hub, targets, *tls)
    yield opened
    opened.process.kill()
    opened.process.wait()


both = pytest.mark.parametrize("way", ["http", "https"], indirect=True)


class TestPassesOn:
    @both
    def test_answers_stream_and_many_streams_stop_nobody(self, way):
        own = logged_in()
        streaming = [way.ask("GET", f"{SERVER}/events", stream=True, headers=own) for _ in range(15)]
        for stream in streaming:
            assert next(stream.iter_lines()) == b"data: 0"
        lies = {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "gopher", "X-Real-Ip": "1.2.3.4", "X-Scheme": "x"}
        reply = way.ask("POST", f"{SERVER}/echo", data=b"1" * 5_000_000, headers=own | lies)
        assert reply.json()["size"] == 5_000_000
        heard = reply.json()["headers"]
        assert {name: heard.get(name.lower()) for name in lies} == {
            "X-Forwarded-For": HERE,
            "X-Forwarded-Proto": way.url.partition(":")[0],
            "X-Real-Ip": None,
            "X-Scheme": None,
        }
        pieces = way.ask("POST", f"{SERVER}/echo", data=iter([b"1" * 1_000_000] * 3), headers=own)  # chunked
        assert pieces.json()["size"] == 3_000_000
        large = way.ask("GET", f"{SERVER}/echo", headers=own)
        assert (len(large.content), large.headers["Etag"]) == (30_000_000, '"own"')
        same = way.ask("GET", f"{SERVER}/echo", headers=own | {"If-None-Match": '"own"'})
        assert (same.status_code, same.content) == (304, b"")
        assert way.ask("HEAD", f"{SERVER}/echo", headers=own).headers["Content-Length"] == "30000000"
        for stream in streaming:
            stream.close()

    @both
    def test_websockets_keep_their_subprotocol_and_binary_messages(self, way):
        async def talk(**options: object) -> tuple[str | None, list[str | bytes]]:
            url = f"{way.url.replace('http', 'ws', 1)}{SERVER}/talk"
            request = tornado.httpclient.HTTPRequest(url, validate_cert=False, headers=logged_in())
            connection = await tornado.websocket.websocket_connect(request, **options)
            heard = []
            for message in ("text", b"\xff\x00binary", b"0" * 5_000_000):
                await connection.write_message(message, binary=isinstance(message, bytes))
                heard.append(await connection.read_message())
            chosen = connection.selected_subprotocol if options else None
            connection.close()
            return chosen, heard

        said = ["text", b"\xff\x00binary", b"0" * 5_000_000]
        assert asyncio.run(talk(subprotocols=["a", "b"])) == ("b", said)
        assert asyncio.run(talk()) == (None, said)

    def test_one_connection_has_many_requests_also_after_a_refusal(self, way):
        with requests.Session() as browser:
            for headers, status in ((logged_in(), 200), (logged_in("seat-02"), 403)) * 3:
                reply = browser.post(f"{way.url}{SERVER}/echo", headers=headers, timeout=20)
                assert reply.status_code == status
            for _ in range(3):
                reply = browser.get(f"{way.url}{SERVER}/echo", headers=logged_in("seat-02"), timeout=20)
                assert reply.status_code == 403
                assert "Connection" not in reply.headers  # it goes on

    def test_a_server_that_does_not_answer_gets_the_hubs_page(self, way, hub):
        hub.server_socket("seat-01").unlink()
        reply = way.ask("GET", f"{SERVER}/echo", headers=logged_in())
        assert (reply.status_code, reply.text) == (503, "the hub's own page")

    def test_routes_are_the_hubs_to_set(self, way, targets):
        assert way.tell("POST", "/x", token="wrong", json={"target": targets["/"]}).status_code == 403
        assert way.tell("DELETE", SERVER, token="x").status_code == 403
        routes = way.tell("GET", "").json()
        assert {path: route["target"] for path, route in routes.items()} == targets
        assert way.tell("DELETE", SERVER).status_code == 204
        assert way.tell("DELETE", SERVER).status_code == 404
        assert set(way.tell("GET", "").json()) == {"/"}


class TestWhoIsShownWhat:
    OTHERS = {
        "another's": logged_in("seat-02"),
        "from another address": logged_in(address="10.0.0.9"),
        "of a server's making": {"Cookie": cookie(SEAT, "seat-01", SERVER)},
        "of another name": {"Cookie": f"{SEAT}={SEAL.close('theme', 'seat-01', HUB, HERE)}"},
        "made up": {"Cookie": f"{SEAT}=seat-01"},
        "none": {},
    }

    @pytest.mark.parametrize("spelling", [SERVER, "/user/seat%2D01", "//user/seat-01", "/%75ser/seat-01"])
    def test_what_a_student_serves_reaches_no_other_browser(self, way, spelling):
        for name, headers in self.OTHERS.items():
            for method in ("GET", "POST", "OPTIONS"):
                with contextlib.closing(way.connect(f"{method} {spelling}/echo HTTP/1.0", headers)) as connected:
                    assert connected.recv(100).split()[1] == b"403", (name, method)
            upgrade = headers | {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
            assert way.ask("GET", f"{SERVER}/talk", headers=upgrade).status_code == 403, name

    def test_who_has_not_logged_in_is_sent_to_do_so(self, way):
        for headers in (self.OTHERS["none"], self.OTHERS["from another address"]):
            reply = way.ask("GET", f"{SERVER}/lab/tree/a?b=1&c", headers=headers | {"Accept": "text/html"})
            assert reply.status_code == 302
            assert reply.headers["Location"] == "/hub/login?next=%2Fuser%2Fseat-01%2Flab%2Ftree%2Fa%3Fb%3D1%26c"
        reply = way.ask("GET", f"{SERVER}/evil", headers=logged_in("seat-02") | {"Accept": "text/html"})
        assert reply.status_code == 403
        assert "seat-01" in reply.text
        assert "/hub/logout" in reply.text

    def test_who_shows_a_token_is_asked_nothing_but_has_no_cookies(self, way):
        token = {"Authorization": "token abc"}
        heard = way.echo(headers={"Cookie": f"{cookie(SEAT, 'seat-02')}; {cookie('a', 'b', SERVER)}"} | token)
        assert heard["authorization"] == "token abc"
        assert "cookie" not in heard
        basic = {"Authorization": "Basic YTpi"}  # which a link can have a browser send
        assert way.ask("POST", f"{SERVER}/echo", headers=basic).status_code == 403

    def test_pages_from_elsewhere_change_nothing(self, way):
        """Another port of this host is elsewhere: a browser sends it, and takes from it, the same cookies."""
        own = logged_in()
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        for origin in (f"http://{HERE}:1", "http://evil.example", "null", ""):
            assert way.ask("POST", f"{SERVER}/echo", headers=own | {"Origin": origin}).status_code == 403
            assert way.ask("POST", "/echo", headers={"Origin": origin}).status_code == 403
            assert way.ask("GET", f"{SERVER}/talk", headers=own | upgrade | {"Origin": origin}).status_code == 403
        assert way.ask("POST", f"{SERVER}/echo", headers=own | {"Origin": way.url}).status_code == 200


class TestCookies:
    def test_a_server_gets_its_own_cookies_alone(self, way):
        jar = [
            cookie(SEAT, "seat-01"),
            cookie(SESSION, "session"),
            cookie(HUB_LOGIN, "login"),
            cookie("jupyterhub-user-seat-01", '"2|1:0=="', SERVER),
            cookie("jupyterhub-user-seat-02", "x", "/user/seat-02"),
            cookie("stolen", "x", SERVER, "10.0.0.9"),
            f"{XSRF}=readable",
            "instructor=the board's",
            "a",
            "=",
            "b=%%%é",
        ]
        heard = way.echo(headers={"Cookie": "; ".join(jar).encode()})
        own = ['jupyterhub-user-seat-01="2|1:0=="', f"{SESSION}=session", f"{XSRF}=readable"]
        assert sorted(heard["cookie"].split("; ")) == sorted(own)
        heard = way.echo("/", headers={"Cookie": "; ".join(jar).encode()})
        assert sorted(heard["cookie"].split("; ")) == [f"{XSRF}=readable", f"{HUB_LOGIN}=login", f"{SESSION}=session"]

    def test_a_login_counts_as_long_as_its_seat_is_known(self, way):
        """Or a browser would be sent to and fro between the login and its server."""
        assert way.echo("/", headers={"Cookie": f"{cookie(HUB_LOGIN, 'x')}; {cookie(SESSION, 's')}"})["cookie"] == (
            f"{SESSION}=s"
        )

    def test_a_server_sets_cookies_for_itself_alone(self, way):
        said = [
            "a=1",
            "b=2; Path=/; Domain=example.org; HttpOnly",
            "c=3; path=/user/seat-01/deep",
            "d=4; PATH=/user/seat-010",
            "e=5; Path=/user/seat-01/; Path=/",
            f"{SEAT}=seat-02; Path=/",
            f"{XSRF}=token; Path=/user/seat-01/",
        ]
        reply = way.ask("POST", f"{SERVER}/echo", headers=logged_in(), params=[("set", one) for one in said])
        given = [one for name, one in reply.raw.headers.items() if name.lower() == "set-cookie"]
        paths = [dict(part.split("=") for part in one.split("; ") if "=" in part).get("Path") for one in given]
        assert paths == [f"{SERVER}/", f"{SERVER}/", None, f"{SERVER}/", f"{SERVER}/", f"{SERVER}/", f"{SERVER}/"]
        assert given[2].endswith("; path=/user/seat-01/deep")
        assert "example.org" not in str(given)
        assert "HttpOnly" in given[1]
        assert given[6].startswith(f"{XSRF}=token;")  # pages' scripts read it
        jar = "; ".join(one.partition(";")[0] for one in given)
        assert way.ask("POST", f"{SERVER}/echo", headers={"Cookie": jar}).status_code == 403  # its seat is no login
        heard = way.echo(headers={"Cookie": f"{jar}; {cookie(SEAT, 'seat-01')}"})["cookie"]
        assert {"a=1", "b=2", "c=3", "d=4", "e=5"} < set(heard.split("; "))
        assert "Service-Worker-Allowed" not in reply.headers

    def test_the_hub_sets_cookies_for_all(self, way):
        reply = way.ask("POST", "/echo", params={"set": f"{SEAT}=seat-01; Path=/; HttpOnly; SameSite=Lax"})
        given = reply.headers["Set-Cookie"]
        assert given.endswith("; Path=/; HttpOnly; SameSite=Lax")
        assert way.ask("POST", f"{SERVER}/echo", headers={"Cookie": given.partition(";")[0]}).ok
        assert "seat-01" not in given


class TestListeners:
    @pytest.mark.parametrize(("account", "is_let"), [(ME, True), (ANOTHER, False), ("no-such", False)])
    def test_a_server_is_asked_if_its_account_listens(self, tmp_path, account, is_let):
        """Also behind a link, by which a student could lead the proxy to a socket that is root's, or another's."""
        target = tmp_path / "server.sock"
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(target))
            listener.listen()
            link = tmp_path / "link.sock"
            link.symlink_to(target)
            hub = SimpleNamespace(request=SimpleNamespace(has_accounts=True), account=lambda seat: account)

            async def connect() -> bool:
                with contextlib.suppress(ConnectionRefusedError):
                    async with streams.to_server(settings.unix_url(link), hub, "seat-01"):
                        return True
                return False

            assert asyncio.run(connect()) is is_let


class TestLimits:
    def test_who_has_not_logged_in_sends_little(self, way):
        small, large = b"1" * MIB, b"1" * (MIB + 1)
        assert way.ask("POST", "/echo", data=small).json()["size"] == MIB
        for path, headers in (("/echo", {}), ("/echo", logged_in()), (f"{SERVER}/echo", {"Authorization": "token x"})):
            assert way.ask("POST", path, data=large, headers=headers).status_code == 413
            with contextlib.suppress(requests.ConnectionError):  # refused while it was sent
                assert way.ask("POST", path, data=iter([large]), headers=headers).status_code == 413
        assert way.ask("POST", f"{SERVER}/echo", data=large * 20, headers=logged_in()).ok
        with contextlib.closing(way.connect("POST /echo HTTP/1.1", {"Content-Length": str(MIB + 1)})) as promised:
            assert promised.recv(12) == b"HTTP/1.1 413"  # before any of it was sent

    def test_uploads_that_stall_take_no_memory(self, way, hub):
        """Neither from those who have not logged in, nor to a server that does not read."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as deaf, contextlib.ExitStack() as stack:
            hub.hub_socket.unlink()
            hub.server_socket("seat-01").unlink()
            deaf.bind(str(hub.hub_socket))
            deaf.listen(200)
            hub.server_socket("seat-01").hardlink_to(hub.hub_socket)
            assert way.ask("GET", "/x", headers=self._wrong).status_code == 403
            before = way.memory()
            for path, size, count, headers in (("/x", MIB, 100, {}), (f"{SERVER}/x", 64 * MIB, 10, logged_in())):
                for _ in range(count):
                    sent = way.connect(f"POST {path} HTTP/1.1", headers | {"Content-Length": str(size)})
                    stack.enter_context(contextlib.closing(sent)).settimeout(0.05)
                    with contextlib.suppress(TimeoutError):
                        sent.sendall(b"1" * (size - 1))
            assert way.memory() - before < 40 * MIB  # of 740

    _wrong = {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": "null"}

    def test_a_page_that_is_not_read_stops_its_server_and_nobody_else(self, way):
        flooding = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        socket_key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        assert way.echo(headers=logged_in())
        before = way.memory()
        for head in ("/flood", "/talk"):
            more = flooding | socket_key if head == "/talk" else {}
            Flood.sent = 0
            with contextlib.closing(way.connect(f"GET {SERVER}{head} HTTP/1.1", logged_in() | more)) as unread:
                assert unread.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 101")
                if head == "/talk":
                    unread.sendall(b"\x81\x85\0\0\0\0flood")

                def has_stopped() -> bool:
                    sent = Flood.sent
                    return sent > 0 and not processes.wait_until(lambda: Flood.sent > sent, 1)

                assert processes.wait_until(has_stopped, 30)
                assert Flood.sent < 64 * MIB  # what the kernel's buffers and one message take, of a GiB
                assert way.echo(headers=logged_in())
                assert way.memory() - before < 40 * MIB

    def test_what_is_no_request_is_told_so_and_what_is_none_yet_is_bounded(self, way):
        for sent in (
            b"\x16\x03\x01\0\0\0\0\r\n\r\n",
            b"GET /\0 HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nA: " + b"1" * MIB,
        ):
            with contextlib.closing(way.connect()) as connected, contextlib.suppress(ConnectionError):
                connected.sendall(sent)
                assert connected.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 431")
        for head in ("GET http://x/ HTTP/1.1", "CONNECT x:1 HTTP/1.1", "GET * HTTP/1.1"):
            with contextlib.closing(way.connect(head)) as connected:
                assert connected.recv(12) == b"HTTP/1.1 404"
        both_lengths = {"Content-Length": "3", "Transfer-Encoding": "chunked"}
        with contextlib.closing(way.connect("POST /echo HTTP/1.1", both_lengths)) as connected:
            with contextlib.suppress(ConnectionError):
                connected.sendall(b"0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n")
            answers = b""
            connected.settimeout(1)
            with contextlib.suppress(TimeoutError):
                while more := connected.recv(1 << 16):
                    answers += more
            assert b"400" in answers or b'"size": 0' in answers


class TestWaits:
    """In this process, so that its waits can be made short."""

    @pytest.fixture
    def port(self, hub, targets, monkeypatch):
        monkeypatch.setattr(proxy, "HEAD_S", 0.5)
        monkeypatch.setattr(proxy, "IDLE_S", 0.5)
        monkeypatch.setattr(exchange, "GUEST_BODY_S", 0.5)
        monkeypatch.setattr(exchange, "STALL_S", 0.5)
        monkeypatch.setattr(streams, "STALL_S", 0.5)
        monkeypatch.setattr(proxy, "MAX_OF_ADDRESS", 5)
        loop, opened = Loop(), proxy.Proxy(hub, SEAL, f"{targets['/']}/hub/error", "http")
        opened.routes.set("/", {"target": targets["/"]})
        opened.routes.set(SERVER, {"target": targets[SERVER], "user": "seat-01"})
        with contextlib.closing(socket.create_server((HERE, 0))) as listener:
            listener.setblocking(False)
            serving = asyncio.run_coroutine_threadsafe(opened.accept(listener, None), loop.loop)
            yield listener.getsockname()[1]
            serving.cancel()
        loop.stop()

    @staticmethod
    def _connect(port: int, sent: bytes = b"") -> socket.socket:
        connected = socket.create_connection((HERE, port), timeout=20)
        connected.sendall(sent)
        return connected

    @staticmethod
    def _is_closed(connected: socket.socket) -> bool:
        try:
            return connected.recv(1) == b""
        except ConnectionError:
            return True

    @pytest.mark.parametrize(
        "sent", [b"", b"GET / HTTP/1.1\r\nHost:", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"]
    )
    def test_who_does_not_finish_a_request_is_not_waited_for(self, port, sent):
        with contextlib.closing(self._connect(port, sent)) as connected:
            said = b""
            with contextlib.suppress(ConnectionError):
                while more := connected.recv(1000):
                    said += more
            assert b"408" in said if sent.startswith(b"POST") else not said

    def test_an_upload_in_drops_is_given_up_before_the_login(self, port, monkeypatch):
        monkeypatch.setattr(exchange, "STALL_S", 60)
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
        with contextlib.closing(self._connect(port, head)) as connected:
            connected.settimeout(0.1)
            for _ in range(200):
                connected.sendall(b"1")
                with contextlib.suppress(TimeoutError):
                    assert connected.recv(12) == b"HTTP/1.1 408"
                    break
            else:
                pytest.fail("it is waited for")

    def test_who_is_idle_after_an_answer_is_closed(self, port):
        connection = http.client.HTTPConnection(HERE, port, timeout=20)
        connection.request("HEAD", "/echo")
        assert connection.getresponse().status == 200
        assert self._is_closed(connection.sock)
        connection.close()

    def test_an_upload_that_stalls_is_given_up_also_for_a_student(self, port):
        head = (
            f"POST {SERVER}/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nCookie: {logged_in()['Cookie']}\r\n\r\n1"
        )
        with contextlib.closing(self._connect(port, head.encode())) as connected:
            assert connected.recv(12) == b"HTTP/1.1 408"

    def test_a_page_that_is_not_read_is_given_up(self, port):
        head = f"GET {SERVER}/flood HTTP/1.1\r\nHost: x\r\nCookie: {logged_in()['Cookie']}\r\n\r\n"
        with contextlib.closing(self._connect(port, head.encode())) as connected:
            assert connected.recv(1)
            assert processes.wait_until(lambda: Flood.was_given_up, 60)

    def test_of_too_many_connections_the_oldest_makes_room(self, port, monkeypatch):
        monkeypatch.setattr(proxy, "HEAD_S", 60)
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(contextlib.closing(self._connect(port, b"GET"))) for _ in range(7)]
            assert all(map(self._is_closed, held[:2]))
            answer = requests.post(f"http://{HERE}:{port}/echo", timeout=20)
            assert answer.ok
            assert self._is_closed(held[2])
            held[3].settimeout(0.2)
            with pytest.raises(TimeoutError):  # it is still open
                held[3].recv(1)
            own = [
                requests.post(f"http://{HERE}:{port}{SERVER}/echo", headers=logged_in(), timeout=20) for _ in range(9)
            ]
            assert all(one.ok for one in own)
