"""Accessibility of all pages: screen readers, phones, projectors, offline."""

import json
from collections.abc import Callable
from datetime import date, time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browsing import Visitor, faults_of_layout
from playwright.sync_api import expect
from room_board import Board
from rooms import fill

from labkit.display.results import NOT_YET, PASSED, row
from labkit.exercises import catalogue
from labkit.measure.figures import Measured
from labkit.report.page import render
from labkit.system.load import Contention
from labkit_classroom.lecture import agenda, guide, routes, slides

pytestmark = pytest.mark.weekly

SIZES = [(375, 812), (1280, 720), (1920, 1080)]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def wall(visitor: Visitor, board: Board) -> None:
    visitor.page.goto(f"{board.url}/#{board.code}")
    expect(visitor.page.locator("#heard")).to_have_text("Live")
    expect(visitor.page.locator("#qr img")).to_be_visible()


def wall_of(people: int, results: bool = False) -> Callable[[Visitor, Board], None]:
    def come(visitor: Visitor, board: Board) -> None:
        fill(board, people, results)
        wall(visitor, board)
        expect(visitor.page.locator("#picture svg")).to_have_count(int(results))

    return come


def instructor(visitor: Visitor, board: Board) -> None:
    fill(board, 40)
    visitor.page.goto(f"{board.url}/instructor#{board.instructor}")
    expect(visitor.page.locator("#seats tr")).to_have_count(40)


def refused(visitor: Visitor, board: Board) -> None:
    visitor.page.goto(f"{board.url}/instructor")
    expect(visitor.page.locator("#heard")).to_contain_text("this is the instructor's page")
    visitor.problems.clear()  # the browser's message about the 403


BOARD_PAGES = {
    "wall, empty": wall,
    "wall, 3 people": wall_of(3),
    "wall, 40 people": wall_of(40),
    "wall, 40 machines": wall_of(40, results=True),
    "instructor, 40 people": instructor,
    "instructor, refused": refused,
}


def guide_page(folder: Path) -> Path:
    route = routes.of_labs(["06"], 3)
    days = agenda.schedule(route, time(9), date(2026, 12, 1), {})
    path = folder / "guide.html"
    path.write_text(
        guide.render(route, days, agenda.markdown(route, days, []), folder / "no rehearsal"), encoding="utf-8"
    )
    return path


def report_page(folder: Path) -> Path:
    measured = Measured(1.12, unit="s", contention=(Contention(share=0.9, busy=True),))
    table = {"what": "K-Means", "rows": [row("fit, 2 ranks", "1.72 s", measured, "1.06 s")], "notes": ["A note."]}
    results = {
        "lab": "09",
        "quick": True,
        "when": "2026-12-01 12:00",
        "on": {"cpu": "A CPU with 2 cores", "cores": 2},
        "table": table,
        "pictures": {"Speed": {"png": PIXEL, "alt": "bars"}},
        "exercises": {"1": PASSED, "2": NOT_YET},
    }
    (folder / "results-09.json").write_text(json.dumps(results))
    path = folder / "report.html"
    path.write_text(render(folder), encoding="utf-8")
    return path


def slides_page(folder: Path) -> Path:
    path = folder / "slides.html"
    lab = catalogue.find("06")
    path.write_text(slides.render(lab.title, slides.of_lab(lab, folder / "no rehearsal")), encoding="utf-8")
    return path


# Standalone pages and their generators. Slides scale as a whole, so they are not tested at several sizes.
FILES = {"the guide": guide_page, "the report": report_page, "the slides": slides_page}


def serious(visitor: Visitor) -> list[str]:
    """Return a page's serious accessibility faults."""
    violations = Axe().run(visitor.page).response["violations"]
    return [
        f"{fault['id']}: {fault['help']}; {[node['html'][:120] for node in fault['nodes']][:3]}"
        for fault in violations
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("come", BOARD_PAGES.values(), ids=BOARD_PAGES.keys())
def test_board_pages_are_accessible_on_every_screen(board, visit, come):
    visitor = visit()
    come(visitor, board)
    for (width, height), scheme in zip(SIZES, ("light", "dark", "light"), strict=True):
        visitor.page.set_viewport_size({"width": width, "height": height})
        visitor.page.emulate_media(color_scheme=scheme)
        assert faults_of_layout(visitor.page) == [], f"{width} pixels wide"
        if width < SIZES[-1][0]:
            assert serious(visitor) == [], f"{width} pixels wide, {scheme}"
    assert visitor.problems == []
    assert visitor.hosts() == {f"127.0.0.1:{board.port}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp("page")) for name, make in FILES.items()}


# The front page, the lab that axe checks fastest (labs with more code take 15 s), and documents.
SITE_PAGES = ("index.html", "notebooks/00_welcome.html", "docs/learn/glossary.html", "docs/deploy/server.html")


@pytest.mark.parametrize("name", SITE_PAGES)
def test_site_pages_are_accessible_on_every_screen_and_offline(built_site, visit, name):
    visitor = visit(offline=True)
    visitor.page.goto((built_site / name).as_uri())
    for (width, height), scheme in zip(SIZES, ("light", "dark", "light"), strict=True):
        visitor.page.set_viewport_size({"width": width, "height": height})
        visitor.page.emulate_media(color_scheme=scheme)
        expect(visitor.page.locator("html")).to_have_attribute("data-theme", scheme)
        assert faults_of_layout(visitor.page) == [], f"{width} pixels wide"
    assert visitor.problems == []
    for (width, height), scheme in zip(SIZES[:-1], ("light", "dark"), strict=True):
        visitor.page.set_viewport_size({"width": width, "height": height})
        visitor.page.emulate_media(color_scheme=scheme)
        visitor.page.reload()  # which makes boxes that scroll at this width reachable by keyboard
        assert serious(visitor) == [], f"{width} pixels wide, {scheme}"
    assert visitor.hosts() == set()


@pytest.mark.parametrize("name", FILES)
def test_standalone_pages_are_accessible_on_every_screen_and_offline(files, visit, name):
    visitor = visit(offline=True)
    failed = []
    visitor.page.on("requestfailed", lambda request: failed.append(request.url))
    visitor.page.goto(files[name].as_uri())
    visitor.page.evaluate("document.querySelectorAll('details').forEach((box) => { box.open = true; })")
    for width, height in SIZES if name != "the slides" else ():
        visitor.page.set_viewport_size({"width": width, "height": height})
        assert faults_of_layout(visitor.page) == [], f"{width} pixels wide"
    assert serious(visitor) == []
    assert failed == visitor.problems == []
    assert visitor.hosts() == set()
