"""What students' browsers see of a hub, and what a page that another student serves can do in them."""

import contextlib
import http.server
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hub_student import code_on_card
from playwright.sync_api import Page, expect

from labkit.system import processes
from labkit.system.addresses import free_ports
from labkit_classroom.hub import configuration, opening, settings
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.control import Hub
from labkit_classroom.hub.cookies import SEAT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
LAB_MS = 120_000
EVIL = b"""<!DOCTYPE html><title>evil</title><script>
const lab = window.open("/user/seat-02/lab");
const cookies = document.cookie;
</script><p>what seat-01 wrote</p>"""
KERNEL = """async () => {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)[1];
  const reply = await fetch("/user/seat-02/api/kernels", {method: "POST", headers: {"X-XSRFToken": xsrf}, body: "{}"});
  const kernel = (await reply.json()).id;
  const address = location.origin.replace("http", "ws") + `/user/seat-02/api/kernels/${kernel}/channels`;
  const opened = await new Promise((done) => {
    const socket = new WebSocket(address);
    socket.onopen = () => { socket.close(); done(true); };
    socket.onerror = () => done(false);
  });
  await fetch(`/user/seat-02/api/kernels/${kernel}`, {method: "DELETE", headers: {"X-XSRFToken": xsrf}});
  return [reply.status, opened];
}"""
# What a page at another port of the host tries on the owner's server: it has the cookies, and reads `_xsrf`.
REACH = """async (hub) => {
  const xsrf = (document.cookie.match(/(?:^|; )_xsrf=([^;]*)/) || [])[1];
  await fetch(`${hub}/user/seat-02/api/kernels?_xsrf=${xsrf}`,
    {method: "POST", mode: "no-cors", credentials: "include", body: "{}"});
  const read = await fetch(`${hub}/user/seat-02/api/contents`, {credentials: "include"}).then(() => "read", () => "");
  const opened = await new Promise((done) => {
    const socket = new WebSocket(hub.replace("http", "ws") + "/user/seat-02/api/events/subscribe");
    socket.onopen = () => done("opened");
    socket.onerror = () => done("");
  });
  return [Boolean(xsrf), read, opened];
}"""


class Opened:
    """A hub with two seats, whose servers are up."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        files = folder / "students"
        wanted = opening.settle(2, ["00"], HERE, port, students_files=files, keep_apart=settings.NONE)
        self.hub = Hub(folder / "hub")
        opening.open_checked(self.hub, wanted)
        self.state, self.client = self.hub.state, Client(self.hub.state)
        for seat in self.state.request.seats:
            self.client.start(seat)
            self.client.wait(seat, configuration.HTTP_TIMEOUT_S)

    def log_in(self, page: Page, seat: str) -> None:
        page.goto(f"{self.state.request.url}/hub/login")
        page.fill("[name=username]", seat)
        page.fill("[name=password]", code_on_card(self.hub.cards, seat))
        page.click("[type=submit]")
        page.wait_for_url(re.compile(f"/user/{seat}/lab"), timeout=LAB_MS)


class Evil:
    """A program of a student's that serves a page at all addresses, and keeps what browsers send it."""

    def __init__(self, place: str | tuple[str, int]) -> None:
        family = socketserver.ThreadingUnixStreamServer if isinstance(place, str) else http.server.ThreadingHTTPServer
        heard = self.heard = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append((self.path, self.headers.get("Cookie", "")))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(EVIL)))
                if self.path == "/toss":
                    self.send_header("Set-Cookie", f"{SEAT}=seat-01; Path=/")
                self.end_headers()
                self.wfile.write(EVIL)

            def address_string(self) -> str:
                return ""

            def log_message(self, *_: object) -> None:
                pass

        self.server = family(place, Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("hub")
    try:
        yield Opened(folder)
    finally:
        Hub(folder / "hub").stop()


@pytest.fixture
def evil(opened: Opened) -> Iterator[Evil]:
    """The server of seat-01, which is no JupyterLab any more: it is that student's to choose."""
    own = opened.state.server_socket("seat-01")
    kept = own.rename(own.with_name("kept"))
    evil = Evil(str(own))
    yield evil
    evil.server.shutdown()
    evil.server.server_close()
    kept.rename(own)


def test_a_student_works_in_jupyterlab(opened, visit):
    student = visit()
    opened.log_in(student.page, "seat-02")
    expect(student.page.locator("#jp-main-dock-panel")).to_be_visible(timeout=LAB_MS)
    assert student.page.evaluate(KERNEL) == [201, True]


def test_what_a_student_serves_is_shown_in_their_own_browser_alone(opened, evil, visit):
    other, own, stranger = visit(), visit(), visit()
    opened.log_in(other.page, "seat-02")
    for address in ("/user/seat-01/evil", "/user/seat%2D01/evil", "/hub/login?next=/user/seat-01/evil"):
        other.page.goto(opened.state.request.url + address)
        assert "what seat-01 wrote" not in other.page.content()
    other.page.goto(f"{opened.state.request.url}/user/seat-01/evil")
    assert "seat-02" in other.text("body")
    assert len(other.context.pages) == 1  # no window was opened
    stranger.page.goto(f"{opened.state.request.url}/user/seat-01/evil")
    expect(stranger.page.locator("[name=password]")).to_be_visible()
    assert evil.heard == []
    with contextlib.suppress(AssertionError):  # the page after the login is not JupyterLab's
        own.page.goto(f"{opened.state.request.url}/hub/login?next=/user/seat-01/evil")
        own.page.fill("[name=username]", "seat-01")
        own.page.fill("[name=password]", code_on_card(opened.hub.cards, "seat-01"))
        own.page.click("[type=submit]")
    expect(own.page.get_by_text("what seat-01 wrote")).to_be_visible()  # so the page is one
    assert evil.heard


def test_a_page_at_another_port_of_the_host_gets_nothing_of_use(opened, visit):
    """Cookies know no ports: whoever serves there gets all that the browser has."""
    student = visit()
    opened.log_in(student.page, "seat-02")
    evil = Evil((HERE, 0))
    port = evil.server.server_address[1]
    caught: dict[str, str] = {}
    for path in ("/user/seat-02/x", "/hub/x"):
        student.page.goto(f"http://{HERE}:{port}{path}")
        caught[path] = next(cookie for heard, cookie in evil.heard if heard == path)
    assert "jupyterhub-user-seat-02" in caught["/user/seat-02/x"]
    assert "jupyterhub-hub-login" in caught["/hub/x"]
    # sent from the browser's own address they open all: they are the real ones
    for address, statuses in ((HERE, {200}), (ELSEWHERE, {302, 403})):
        with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as thief:
            for path, place in (("/user/seat-02/x", "/user/seat-02/api/status"), ("/hub/x", "/hub/home")):
                reply = thief.get(opened.state.request.url + place, headers={"Cookie": caught[path]})
                assert reply.status_code in statuses, (address, path)
    # nor do they to whoever asks the hub without its proxy, as students' servers do
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(opened.state.hub_socket))) as thief:
        reply = thief.get("http://hub/hub/home", headers={"Cookie": caught["/hub/x"]})
        assert reply.status_code == 302
    kernels = httpx.HTTPTransport(uds=str(opened.state.server_socket("seat-02")))
    with httpx.Client(transport=kernels, headers=opened.client.headers) as owner:
        before = owner.get("http://x/user/seat-02/api/kernels").json()
        student.page.goto(f"http://{HERE}:{port}/user/seat-02/x")
        assert student.page.evaluate(REACH, opened.state.request.url) == [True, "", ""]
        assert owner.get("http://x/user/seat-02/api/kernels").json() == before
    # a cookie that it sets is none: whoever was there logs in again
    student.page.goto(f"http://{HERE}:{port}/toss")
    for seat in opened.state.request.seats:
        student.page.goto(f"{opened.state.request.url}/user/{seat}/lab")
        expect(student.page.locator("[name=password]")).to_be_visible()
    evil.server.shutdown()


def test_no_students_server_listens_at_a_port(opened):
    for seat in opened.state.request.seats:
        home = str(opened.state.request.home(seat))
        own = processes.find(lambda one, home=home: processes.environ_of(one).get("LAB_FOLDER") == home)
        assert own
        listening = [found for one in own for found in one.net_connections("inet") if found.status == "LISTEN"]
        assert listening == []
    with socket.socket(socket.AF_UNIX) as hub:
        hub.connect(str(opened.state.hub_socket))
