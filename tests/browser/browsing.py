"""Browser helpers for page tests: visitors, recorded problems, layout faults."""

import os
import shutil
from urllib.parse import urlsplit

import playwright.sync_api as playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "none found; set CHROMIUM=, install Debian's `chromium`, or run .venv/bin/playwright install --with-deps chromium"


def program(bundled: str) -> str | None:
    """Return the browser to start: from `CHROMIUM`, the system or Playwright; None if there is none."""
    name = os.environ.get("CHROMIUM")
    paths = (shutil.which(program) for program in ([name] if name else [*PROGRAMS, bundled]))
    return next(filter(None, paths), None)


class Visitor:
    """A person with a separate browser context and its options, such as `viewport`; records requests and problems."""

    def __init__(self, browser: playwright.Browser, **options: object) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.problems: list[str] = []  # dialogs, exceptions, console errors and warnings (also of policy violations)
        self.requests: list[playwright.Request] = []
        self.page.on("dialog", self._dialog)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("console", self._console)
        self.page.on("request", lambda request: self.requests.append(request))

    def _dialog(self, dialog: playwright.Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _console(self, message: playwright.ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def hosts(self) -> set[str]:
        """Return the hosts and ports of all requests."""
        return {urlsplit(request.url).netloc for request in self.requests} - {""}

    def text(self, selector: str = "main") -> str:
        """Return the visible text in one line."""
        return " ".join(self.page.locator(selector).inner_text().split())


# Text that overlaps other text or the page's edge. Text scrolled out of sight within a box, such as the end of a long
# line of code, does not count.
FAULTS_OF_LAYOUT = """() => {
  const found = [];
  const root = document.documentElement;
  const edge = root.clientWidth;
  if (root.scrollWidth > edge) found.push(`the page is ${root.scrollWidth} pixels wide`);

  const seen = (one) => {  // wide formulas scroll
    for (let at = one; at; at = at.parentElement) if (getComputedStyle(at).clipPath !== "none") return false;
    return one.checkVisibility({ visibilityProperty: true }) && !one.closest("option, script, style, math");
  };
  const told = (node) => node.textContent.trim().slice(0, 40);
  const scrolls = (one) => {  // scrolling ancestors
    const around = [];
    for (let at = one; at && at !== document.body; at = at.parentElement)
      if (/auto|scroll/.test(getComputedStyle(at).overflowX)) around.push(at.getBoundingClientRect());
    return around;
  };
  const within = (box, boxes) => {
    const [left, right] = [Math.max(box.left, ...boxes.map((one) => one.left)),
      Math.min(box.right, ...boxes.map((one) => one.right))];
    return new DOMRect(left, box.top, Math.max(right - left, 0), box.height);
  };
  const lines = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!told(node) || !seen(node.parentElement)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = scrolls(node.parentElement);
    for (const whole of range.getClientRects()) {
      const box = within(whole, boxes);
      if (box.width > 1 && box.height > 1) lines.push({ box, node });
    }
  }

  for (const { box, node } of lines)
    if (box.left < -1 || box.right > edge + 1) found.push(`beyond the edge: ${told(node)}`);
  lines.sort((a, b) => a.box.top - b.box.top);
  lines.forEach((one, index) => {
    for (const other of lines.slice(index + 1)) {
      const [a, b] = [one.box, other.box];
      if (b.top >= a.bottom) break;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (one.node !== other.node && wide > 2 && high > 0.35 * Math.min(a.height, b.height))
        found.push(`${told(one.node)} over ${told(other.node)}`);
    }
  });
  return [...new Set(found)].slice(0, 10);
}"""


def faults_of_layout(page: playwright.Page) -> list[str]:
    """Return text that overlaps other text or the page's edge."""
    return page.evaluate(FAULTS_OF_LAYOUT)
