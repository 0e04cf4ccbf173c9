"""A hub's student: a minimal browser for logging in and JupyterLab's requests."""

import asyncio
import json
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from labkit.system.addresses import LOOPBACK, free_ports
from labkit.system.errors import LabError
from labkit_classroom.hub.settings import TRIAL, Settings


def request_for(files: Path, students: int = 4, **options: object) -> Settings:
    """Return a request for a hub on loopback; by default, a trial."""
    defaults = {"labs": ("00",), "mode": TRIAL, "memory": 0, "address": LOOPBACK}
    return Settings(files, students, **(defaults | {"port": free_ports(1)[0]} | options))


def code_on_card(cards: Path, seat: str) -> str:
    """Read a seat's code from the page of cards."""
    return cards.read_text().partition(f"<code>{seat}</code>")[2].partition("<code>")[2].partition("</code>")[0]


class Student:
    """A minimal browser, as far as logging in and JupyterLab's requests go."""

    def __init__(self, url: str, seat: str) -> None:
        self.url, self.seat, self.browser = url, seat, requests.Session()
        self.browser.verify = self.browser.trust_env = False
        self.server = f"{url}/user/{seat}"

    def log_in(self, code: str) -> requests.Response:
        form = self.browser.get(f"{self.url}/hub/login", timeout=60).text
        xsrf = re.search(r'name="_xsrf" value="([^"]+)"', form)[1]
        fields = {"username": self.seat, "password": code, "_xsrf": xsrf}
        return self.browser.post(f"{self.url}/hub/login", data=fields, timeout=120)

    def open_lab(self, seat: str | None = None) -> requests.Response:
        """Open JupyterLab's page, waiting while the server starts, as a browser does."""
        deadline = time.monotonic() + 240
        while True:
            page = self.browser.get(f"{self.url}/user/{seat or self.seat}/lab", timeout=120)
            if "/hub/spawn" not in page.url or time.monotonic() > deadline:
                return page
            time.sleep(0.5)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that JupyterLab sends in this browser."""
        path = f"/user/{self.seat}/"
        cookies = {cookie.name: cookie.value for cookie in self.browser.cookies if path.startswith(cookie.path)}
        cookies |= {cookie.name: cookie.value for cookie in self.browser.cookies if cookie.path == path}
        return {
            "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()),
            "X-XSRFToken": cookies["_xsrf"],
        }

    def run(self, code: str) -> str:
        return run_cell(self.server, self.headers, code)


def run_cell(server: str, headers: Mapping[str, str], code: str, timeout: float = 120.0) -> str:
    """Run a cell in a new kernel; return its output, including the name and value of an error."""
    reply = requests.request(
        "POST", f"{server}/api/kernels", json={"name": "python3"}, headers=headers, timeout=60, verify=False
    )
    reply.raise_for_status()
    kernel = f"{server}/api/kernels/{reply.json()['id']}"
    try:
        return asyncio.run(asyncio.wait_for(_execute(f"{kernel}/channels", headers, code), timeout))
    except TimeoutError as error:
        raise LabError(f"a cell at {server} took longer than {timeout:.0f} s.") from error
    finally:
        requests.delete(kernel, headers=headers, timeout=60, verify=False)


async def _execute(channels: str, headers: Mapping[str, str], code: str) -> str:
    """Send an execute_request and read the kernel's messages until it is idle (Jupyter's messaging protocol)."""
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
            if kind == "status" and content["execution_state"] in ("restarting", "dead"):  # sent by the server
                raise LabError("the kernel died")
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
