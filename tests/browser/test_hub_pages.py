"""A hub in a student's browser: the login page, and JupyterLab with a kernel."""

import re
from collections.abc import Iterator

import pytest
from hub_student import code_on_card, request_for
from playwright.sync_api import expect

from labkit_classroom.hub.control import Hub

pytestmark = [pytest.mark.weekly, pytest.mark.timeout(420)]

LAB_MS = 120_000
KERNEL = """async () => {
  const xsrf = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/)[1];
  const reply = await fetch("/user/seat-01/api/kernels", {method: "POST", headers: {"X-XSRFToken": xsrf}, body: "{}"});
  const kernel = (await reply.json()).id;
  const address = location.origin.replace("http", "ws") + `/user/seat-01/api/kernels/${kernel}/channels`;
  const opened = await new Promise((done) => {
    const socket = new WebSocket(address);
    socket.onopen = () => { socket.close(); done(true); };
    socket.onerror = () => done(false);
  });
  await fetch(`/user/seat-01/api/kernels/${kernel}`, {method: "DELETE", headers: {"X-XSRFToken": xsrf}});
  return [reply.status, opened];
}"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    hub = Hub(folder / "hub")
    try:
        hub.start(request_for(folder / "students", 1))
        yield hub
    finally:
        hub.stop()


def test_a_student_logs_in_with_the_card_and_uses_jupyterlab(hub, visit):
    page = visit().page
    page.goto(hub.settings.url)
    expect(page.get_by_text("Your card has your username and password.")).to_be_visible()
    page.get_by_label("Username").fill("seat-01")
    page.get_by_label("Password").fill("WRONG")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Invalid username or password")).to_be_visible()
    page.get_by_label("Password").fill(code_on_card(hub.cards, "seat-01"))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile("/user/seat-01/lab/tree/00_welcome.ipynb"), timeout=LAB_MS)
    expect(page.locator("#jp-main-dock-panel")).to_be_visible(timeout=LAB_MS)
    assert page.evaluate(KERNEL) == [201, True]
