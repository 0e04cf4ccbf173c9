"""A student of a hub: a browser, as far as logging in and JupyterLab's requests go."""

import re
import time
from pathlib import Path

import requests

from labkit_classroom.hub.client import run_cell


def code_on_card(cards: Path, seat: str) -> str:
    """Read a seat's code off the page to cut up."""
    return cards.read_text().partition(f"<code>{seat}</code>")[2].partition("<code>")[2].partition("</code>")[0]


class Student:
    """A browser, as far as logging in and JupyterLab's requests go."""

    def __init__(self, url: str, seat: str) -> None:
        self.url, self.seat, self.browser = url, seat, requests.Session()
        self.server = f"{url}/user/{seat}"

    def log_in(self, code: str) -> requests.Response:
        form = self.browser.get(f"{self.url}/hub/login", timeout=60).text
        xsrf = re.search(r'name="_xsrf" value="([^"]+)"', form)[1]
        answers = {"username": self.seat, "password": code, "_xsrf": xsrf}
        return self.browser.post(f"{self.url}/hub/login", data=answers, timeout=120)

    def open_lab(self, seat: str | None = None) -> requests.Response:
        """Open JupyterLab's page, and wait through the page of a starting server, as a browser does."""
        deadline = time.monotonic() + 240
        while True:
            page = self.browser.get(f"{self.url}/user/{seat or self.seat}/lab", timeout=120)
            if "/hub/spawn" not in page.url or time.monotonic() > deadline:
                return page
            time.sleep(0.5)

    @property
    def headers(self) -> dict[str, str]:
        """What this browser's JupyterLab sends."""
        path = f"/user/{self.seat}/"
        cookies = {one.name: one.value for one in self.browser.cookies if path.startswith(one.path)}
        cookies |= {one.name: one.value for one in self.browser.cookies if one.path == path}
        return {
            "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()),
            "X-XSRFToken": cookies["_xsrf"],
        }

    def run(self, code: str) -> str:
        return run_cell(self.server, self.headers, code)
