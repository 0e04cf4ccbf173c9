"""The board's pages in a real browser."""

import re
import time

import pytest
import room_board
from browsing import faults_of_layout
from playwright.sync_api import expect
from room_board import at, guessed
from rooms import fill

import labkit_classroom as student_side
from labkit.display import results
from labkit.exercises import catalogue
from labkit.exercises.engine.checker import checker
from labkit.exercises.engine.reference import solution_of
from labkit.system import processes
from labkit_classroom.board.protocol import FEW

pytestmark = pytest.mark.weekly

SOON_MS = 20_000  # for updates that take a second or two on an idle machine
HOSTILE = (
    "<img src=x onerror=a()>",
    "</script><script>a()",
    "\u202egnirts\u202c <b>bold",
    "😀" * 24,
    "W" * 24,
    "אבגד 12:34",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A student's folder, whose sender ends with the test."""
    folder = tmp_path / "my labs"
    monkeypatch.setattr(results, "WORK", folder / "work")
    yield folder
    processes.kill(processes.find(lambda process: str(folder.resolve()) in process.cmdline()))


class TestAStudentsDay:
    def test_a_students_actions_appear_on_both_pages(self, room, visit, folder, capsys):
        for number in range(FEW - 1):
            room.join(f"P{number}").put(exercises=[at(1)])
        wall, instructor = visit(), visit()
        wall.page.goto(room.url)
        instructor.page.goto(f"{room.url}/instructor#{room.instructor}")
        expect(wall.page.get_by_text("Counts appear once 5 people have joined")).to_be_visible()
        expect(wall.page.locator(".bar")).to_have_count(0)

        folder.mkdir()
        student_side.join(room.url, room.code, seat="B4", folder=folder)
        row = instructor.page.get_by_role("row").filter(has_text="B4")
        expect(row).to_be_visible(timeout=SOON_MS)
        expect(wall.page.get_by_role("progressbar", name="1 · Who trains on what?")).to_have_attribute("value", "4")

        checker("06", {})(3, solution_of(catalogue.find("06").exercises[3]))
        checked = time.monotonic()
        lab = wall.page.locator("section").filter(has=wall.page.get_by_role("heading", name=re.compile("^06")))
        expect(lab.locator(".bar").nth(2)).to_contain_text("1 of 5", timeout=SOON_MS)
        on_the_wall = time.monotonic() - checked
        expect(row).to_contain_text("06 · 3", timeout=SOON_MS)
        with capsys.disabled():
            print(f" on the wall after {on_the_wall:.1f} s, on both after {time.monotonic() - checked:.1f} s ", end="")
        assert "B4" not in wall.text()

        student_side.hand(folder=folder)
        expect(row.get_by_text("hand up 0 min", exact=True)).to_be_visible(
            timeout=SOON_MS
        )  # its place is in the next column
        expect(instructor.page.get_by_role("row").nth(1)).to_contain_text("B4")
        student_side.hand(folder=folder)
        expect(row).not_to_contain_text("hand up", timeout=SOON_MS)

        student_side.hand(folder=folder)
        row.get_by_role("button", name="helped").click(timeout=SOON_MS)
        expect(row).not_to_contain_text("hand up", timeout=SOON_MS)

        student_side.leave(folder)
        expect(row).to_have_count(0, timeout=SOON_MS)
        expect(wall.page.locator(".bar")).to_have_count(0, timeout=SOON_MS)
        assert wall.problems == instructor.problems == []
        assert wall.hosts() | instructor.hosts() == {f"127.0.0.1:{room.port}"}


class TestConnection:
    def test_the_page_shows_when_it_is_not_live_and_recovers(self, board, visit):
        visitor = visit()
        down = True
        visitor.page.route("**/view/*", lambda route: route.abort() if down else route.continue_())
        visitor.page.goto(f"{board.url}/instructor#{board.instructor}")
        heard = visitor.page.locator("#heard")
        expect(heard).to_contain_text("Not live: the board does not answer")
        expect(visitor.page.locator("#room")).to_be_hidden()
        down = False
        expect(heard).to_have_text("Live", timeout=SOON_MS)
        fill(board, 1)
        expect(visitor.page.locator("#seats tr")).to_have_count(1, timeout=SOON_MS)
        visitor.context.set_offline(True)
        expect(heard).to_contain_text("Not live", timeout=SOON_MS)
        expect(visitor.page.locator("#age")).to_have_text(re.compile(r"Last update \d+ s ago\."), timeout=SOON_MS)
        expect(visitor.page.locator("#seats tr")).to_have_count(1)  # the last state stays visible
        visitor.context.set_offline(False)
        expect(heard).to_have_text("Live", timeout=SOON_MS)


class TestTrust:
    @pytest.mark.parametrize("width", [375, 1280])
    def test_hostile_names_are_shown_as_text(self, board, visit, width):
        for number, name in enumerate(HOSTILE):
            doctor = [{"lab": f"07 {name}"[:60], "status": "fail", "because": [*HOSTILE]}]
            seat = board.join(name[:24])
            assert seat.put(exercises=[at(1)], doctor=doctor, guesses=[guessed(name[:40], 2)]).status_code == 204
            if number % 2:
                seat.hand()
        visitor = visit(viewport={"width": width, "height": 800})
        for address, shown in (
            (board.url, "#labs section"),
            (f"{board.url}/instructor#{board.instructor}", "#seats tr"),
        ):
            visitor.page.goto(address)
            expect(visitor.page.locator(shown).first).to_be_visible()
            assert visitor.page.locator("img, iframe, body script, b b, object").count() == 0
            assert faults_of_layout(visitor.page) == []
        assert "<img src=x onerror=a()>" in visitor.text()
        assert visitor.problems == []

    @pytest.mark.parametrize("token", ["", "#another-token", "#" + "x" * 200, "#%00"])
    def test_without_the_token_the_instructors_page_shows_one_sentence(self, board, visit, token):
        fill(board, FEW)
        visitor = visit()
        visitor.page.goto(f"{board.url}/instructor{token}")
        message = "this is the instructor's page: open the address that ./lab room open printed"
        expect(visitor.page.locator("#heard")).to_have_text(message)
        assert visitor.text() == f"Instructor {message}"
        assert "A1" not in visitor.page.content()

    def test_the_token_is_not_in_addresses_cookies_or_page(self, board, visit):
        visitor = visit()
        visitor.page.goto(f"{board.url}/instructor#{board.instructor}")
        expect(visitor.page.locator("#room")).to_be_visible()
        assert visitor.page.url == f"{board.url}/instructor"
        assert board.instructor not in visitor.page.content()
        for request in visitor.requests:
            assert board.instructor not in request.url
            assert "referer" not in request.all_headers()
        assert visitor.context.cookies() == []
        visitor.page.goto(f"{board.url}/instructor")  # from the tab's storage
        expect(visitor.page.locator("#room")).to_be_visible()

    def test_the_instructor_removes_a_seat_and_changes_the_code(self, board, visit):
        fill(board, FEW)
        joker = board.join("Joker")
        instructor, wall = visit(), visit()
        wall.page.goto(f"{board.url}/#{board.code}")
        expect(wall.page.locator("#code")).to_have_text(board.code)
        instructor.page.goto(f"{board.url}/instructor#{board.instructor}")
        remove = instructor.page.get_by_role("button", name="Remove selected seats")
        expect(remove).to_be_disabled()
        box = instructor.page.get_by_label("select seat 6")
        box.check()
        board.join("Another")
        expect(instructor.page.locator("#seats tr")).to_have_count(FEW + 2, timeout=SOON_MS)
        expect(box).to_be_checked()  # even while the page changes
        expect(box).to_be_focused()
        remove.click()
        expect(instructor.page.locator("#seats tr")).to_have_count(FEW + 1, timeout=SOON_MS)
        assert "Joker" not in instructor.text()
        assert joker.put().status_code == 403

        instructor.page.get_by_role("button", name="New code").click()
        expect(wall.page.locator("#told")).to_contain_text("./lab room status", timeout=SOON_MS)
        expect(wall.page.locator("#code")).to_have_text("CODE")
        address = instructor.page.locator("#wall")
        expect(address).to_have_text(f"{board.url}/#{board.store.room['code']}", timeout=SOON_MS)
        wall.page.goto(address.text_content())  # the same page, with a new code after #
        expect(wall.page.locator("#code")).to_have_text(board.store.room["code"], timeout=SOON_MS)
        assert instructor.problems == []


class TestTheInstructor:
    def test_clicking_a_stuck_exercise_shows_the_seats_that_have_not_passed_it(self, board, visit):
        board.join("Ada").put(exercises=[at(1), at(2)])
        board.join("Bob").put(exercises=[at(1), at(2, "not yet")])
        eve = board.join("Eve")
        page = visit().page
        page.goto(f"{board.url}/instructor#{board.instructor}")
        seats = page.locator("#seats tr:visible th")
        expect(seats).to_have_count(3)
        page.get_by_role("button", name="07 · 2 A rate").click()
        expect(page.get_by_label("Show")).to_have_value("07 · 2 A rate")
        expect(page.get_by_text("2 of 3 have not passed it.")).to_be_visible()
        assert set(seats.all_inner_texts()) == {"Bob", "Eve"}
        eve.put(exercises=[at(2)])
        expect(seats).to_have_text(["Bob"], timeout=SOON_MS)
        page.get_by_label("Show").select_option("07 · 3 The script")
        expect(seats).to_have_count(3)
        page.get_by_label("Show").select_option("all seats")
        expect(page.locator("#missing")).to_have_text("")

    def test_a_question_is_pinned_on_the_wall_and_released(self, board, visit):
        for _ in range(FEW):
            board.join().put(guesses=[guessed(2, 2.5), guessed("memory", lab="07")])
        instructor, wall = visit(), visit()
        wall.page.goto(f"{board.url}/#{board.code}")
        question = wall.page.locator("#question")
        expect(question).to_have_text("Lab 07, your guess: what limits it")
        instructor.page.goto(f"{board.url}/instructor#{board.instructor}")
        hold = instructor.page.get_by_label("Guesses and results for")
        hold.select_option("03 · oneDNN against Eigen")
        expect(question).to_have_text("Lab 03, your guess: oneDNN against Eigen", timeout=SOON_MS)
        instructor.page.reload()
        expect(hold).to_have_value(re.compile('"03"'), timeout=SOON_MS)
        hold.select_option("latest with five guesses")
        expect(question).to_have_text("Lab 07, your guess: what limits it", timeout=SOON_MS)
        assert wall.problems == instructor.problems == []


class TestTheWall:
    def test_joining_instructions_shrink_once_all_have_joined(self, board, visit):
        visitor = visit(viewport={"width": 1280, "height": 800})
        visitor.page.goto(f"{board.url}/#{board.code}")
        poster, code = visitor.page.locator("#poster"), visitor.page.locator("#code")
        expect(code).to_have_text(board.code)
        expect(visitor.page.locator("#poster code")).to_have_text(f"./lab join {board.url} {board.code}")
        expect(poster.get_by_text(board.code)).to_have_count(1)
        expect(visitor.page.get_by_role("img", name="QR code")).to_be_visible()
        large = poster.bounding_box()
        assert code.bounding_box()["height"] > 3 * visitor.page.locator("#command").bounding_box()["height"]
        for number in range(FEW):
            board.join(f"P{number}").put(exercises=[at(1)])
        expect(poster).to_have_class("small", timeout=SOON_MS)
        small = poster.bounding_box()
        assert small["width"] * small["height"] < large["width"] * large["height"] / 3
        assert visitor.problems == []
        assert not any(board.code in request.url.partition("#")[0] for request in visitor.requests)

    @pytest.mark.parametrize("end", ["", "#", "#<img src=x onerror=a()>", "#%00"])
    def test_without_the_code_it_shows_only_the_address(self, board, visit, end):
        visitor = visit()
        visitor.page.goto(f"{board.url}/{end}")
        expect(visitor.page.locator("#poster code")).to_have_text(f"./lab join {board.url} CODE")
        expect(visitor.page.locator("#told")).to_contain_text("code")
        assert board.code not in visitor.page.content()
        assert not [problem for problem in visitor.problems if "403" not in problem]

    def test_guesses_precede_results_and_the_bar_with_the_median_is_marked(self, board, visit):
        people = [board.join(f"P{number}") for number in range(8)]
        for place, seat in enumerate(people):
            seat.put(guesses=[guessed((1, 2, 2, 2.5, 3, 3, 4, 1e12)[place])])
        visitor = visit()
        visitor.page.goto(board.url)
        expect(visitor.page.locator("#question")).to_have_text("Lab 03, your guess: oneDNN against Eigen")
        expect(visitor.page.locator("#measured")).to_have_text("8 guesses. Not measured yet.")
        expect(visitor.page.get_by_role("progressbar", name="2 to < 2.5×")).to_have_attribute("value", "2")
        expect(visitor.page.locator("#guess .measured, #picture .point")).to_have_count(0)
        for place, seat in enumerate(people[:5]):
            seat.put(guesses=[guessed((1, 2, 2, 2.5, 3)[place], 2.1 + place / 10)])
        summary = "Measured: median 2.3× (2.1 to 2.5), 5 machines."
        expect(visitor.page.locator("#measured")).to_have_text(summary, timeout=SOON_MS)
        expect(visitor.page.locator("#guess .measured")).to_have_text("2 to < 2.5×2 ◀ measured")
        expect(visitor.page.locator("#picture .point")).to_have_count(5)
        assert visitor.problems == []

    def test_every_machine_is_a_mark(self, board, visit):
        fill(board, 40)
        visitor = visit()
        visitor.page.goto(board.url)
        (result,) = board.wall()["results"]
        expect(visitor.page.locator("#picture .point")).to_have_count(len(result["values"]))
        for axis in ("machines, by their result", "times (×)"):
            expect(visitor.page.get_by_text(axis)).to_be_visible()
        visitor.page.get_by_text("Show as a list").click()
        assert visitor.page.locator("#values").inner_text().count(",") == len(result["values"]) - 1
        assert visitor.problems == []

    def test_each_promise_is_drawn_with_what_was_kept(self, tmp_path, visit, monkeypatch):
        question = catalogue.Question("05", 1, "promised and kept", "images/s", pairs=True)
        labs = (room_board.lab("05_tuning", "05 · Tuning", question=question),)
        monkeypatch.setattr(room_board, "LABS", labs)
        board = room_board.Board(tmp_path / "pairs.sqlite")
        for number in range(6):
            board.join().put(guesses=[guessed(9000 + 100 * number, 8500 - 50 * number, "05")])
        visitor = visit()
        visitor.page.goto(board.url)
        expect(visitor.page.locator("#picture .point")).to_have_count(6)
        for axis in ("guessed or promised, images/s", "measured, images/s"):
            expect(visitor.page.get_by_text(axis)).to_be_visible()
        expect(visitor.page.locator("#caption")).to_contain_text("Each mark is a person. On the dashed line")
        assert visitor.problems == []
        board.stop()

    @pytest.mark.parametrize("values", [(0, 0, 0, 0, 0), (0, -5, 1e-9, 3, 9e14), (1e-300, 2e-300, 0, 0, 0)])
    def test_extreme_values_are_drawn(self, board, visit, values):
        for value in values:
            board.join().put(guesses=[guessed(None, value)])
        visitor = visit()
        visitor.page.goto(board.url)
        expect(visitor.page.locator("#picture svg")).to_have_attribute("aria-label", re.compile("lab 03: median"))
        assert "NaN" not in visitor.page.locator("#picture").inner_html()
        assert visitor.problems == []
