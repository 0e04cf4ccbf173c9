"""The hub's interface, for the kit's own commands: start and stop servers, run a cell in one."""

import asyncio
import json
import time
import uuid
import warnings
from collections.abc import Mapping
from typing import Any

import httpx
import requests
import urllib3
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from labkit.system.errors import LabError
from labkit_classroom.hub import hub_log
from labkit_classroom.hub.settings import State

ANSWER_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.5
PAGE = 100  # users that one answer lists


class Client:
    """Asks a hub, with the token that is in its folder."""

    def __init__(self, hub: State) -> None:
        self.hub = hub
        token = (hub.folder / "api-token").read_text()
        self.headers = {"Authorization": f"token {token}"}

    def answers(self) -> bool:
        """Whether the hub is up, and its proxy leads to it."""
        try:
            self._ask("GET", "users?limit=1")
            reply = _ask_own("GET", f"{self.hub.request.url}/hub/health", timeout=5)
        except (requests.RequestException, LabError):
            return False
        return reply.ok

    def servers(self) -> dict[str, str]:
        """Return the servers that there are, by seat: "ready" or, for example, "spawn" while one starts."""
        servers: dict[str, str] = {}
        for offset in range(0, self.hub.request.students + 1, PAGE):
            for user in self._ask("GET", f"users?limit={PAGE}&offset={offset}").json():
                server = user["servers"].get("")
                if server:
                    servers[user["name"]] = "ready" if server["ready"] else server["pending"] or ""
        return servers

    def start(self, seat: str) -> None:
        """Have a seat's server start, if it has none; `wait` says when it is up."""
        if self._ask("POST", f"users/{seat}/server", allowed=(400, 500)).status_code == 500:  # 400: it runs already
            raise self._not_started(seat)

    def wait(self, seat: str, timeout: float) -> None:
        """Wait until a seat's server is up.

        Raises
        ------
        LabError
            When it isn't, in this time.
        """
        deadline = time.monotonic() + timeout
        while (state := self.servers().get(seat, "")) != "ready":
            if not state or time.monotonic() > deadline:
                raise self._not_started(seat)
            time.sleep(POLL_INTERVAL_S)

    def _not_started(self, seat: str) -> LabError:
        last_words = hub_log.last_words(self.hub.folder, seat)
        return LabError("\n  ".join([f"the server of {seat} did not start. The log's last lines:", *last_words]))

    def stop(self, seat: str) -> None:
        """End a seat's server, and wait for that."""
        self._ask("DELETE", f"users/{seat}/server", allowed=(404, 400))
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while seat in self.servers() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)

    def run(self, seat: str, code: str, timeout: float = 120.0) -> str:
        """Run a cell in a new kernel of a seat's server; return what it printed."""
        return run_cell(f"{self.hub.request.url}/user/{seat}", self.headers, code, timeout)

    def _ask(self, method: str, what: str, allowed: tuple[int, ...] = ()) -> httpx.Response:
        """Ask the hub itself: where it is not up, nobody else can listen in its place."""
        base = self.hub.hub_url if self.hub.hub_port else "http://hub"
        transport = httpx.HTTPTransport(uds=None if self.hub.hub_port else str(self.hub.hub_socket))
        try:
            with httpx.Client(transport=transport, headers=self.headers, timeout=ANSWER_TIMEOUT_S) as client:
                reply = client.request(method, f"{base}/hub/api/{what}")
        except httpx.HTTPError as error:
            raise LabError("the hub does not answer: ./lab hub up starts it again.") from error
        if not reply.is_success and reply.status_code not in allowed:
            raise LabError(f"the hub refused {method} {what}: {reply.status_code} {reply.text[:200]}")
        return reply


def run_cell(server: str, headers: Mapping[str, str], code: str, timeout: float = 120.0) -> str:
    """Run a cell in a new kernel of a server; return what it printed and displayed, and of an error its name and value.

    Parameters
    ----------
    server : str
        The server's address, such as http://192.168.1.5:8000/user/seat-01.
    headers : mapping
        The headers that let one in: a token, or a browser's cookies.
    code : str
        The cell.
    timeout : float
        Seconds after which the cell is given up.

    Raises
    ------
    LabError
        When the cell takes longer, or its kernel dies.
    """
    reply = _ask_own("POST", f"{server}/api/kernels", json={"name": "python3"}, headers=headers, timeout=60)
    reply.raise_for_status()
    kernel = f"{server}/api/kernels/{reply.json()['id']}"
    try:
        return asyncio.run(asyncio.wait_for(_execute(f"{kernel}/channels", headers, code), timeout))
    except TimeoutError as error:
        raise LabError(f"a cell at {server} was not over after {timeout:.0f} s.") from error
    finally:
        _ask_own("DELETE", kernel, headers=headers, timeout=60)


def _ask_own(method: str, url: str, **options: Any) -> requests.Response:
    """Ask at this machine's own address, whatever name its certificate is for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
        return requests.request(method, url, verify=False, **options)


async def _execute(channels: str, headers: Mapping[str, str], code: str) -> str:
    """Send an execute_request, and hear the kernel until it is idle (Jupyter's messaging protocol)."""
    request = HTTPRequest(channels.replace("http", "ws", 1), headers=dict(headers), validate_cert=False)
    connection = await websocket_connect(request)
    ident, printed = uuid.uuid4().hex, []
    header = {"msg_id": ident, "msg_type": "execute_request", "session": ident, "username": "", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False, "stop_on_error": True}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    await connection.write_message(json.dumps(message))
    try:
        while (text := await connection.read_message()) is not None:
            reply = json.loads(text)
            content, kind = reply["content"], reply["msg_type"]
            if kind == "status" and content["execution_state"] in ("restarting", "dead"):  # by the server, of its own
                raise LabError("the kernel died while it ran a cell.")
            if reply["parent_header"].get("msg_id") != ident:
                continue
            if kind == "stream":
                printed.append(content["text"])
            elif kind in ("display_data", "execute_result"):
                printed.append(content["data"].get("text/plain", ""))
            elif kind == "error":
                printed.append(f"{content['ename']}: {content['evalue']}")
            elif kind == "status" and content["execution_state"] == "idle":
                break
    finally:
        connection.close()
    return "".join(printed)
