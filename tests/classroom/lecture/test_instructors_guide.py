"""The instructor's guide has what is in the labs' sources and tests, on one page that needs nothing else."""

import itertools
import re
from datetime import date, time

import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit.exercises import catalogue
from labkit_classroom.lecture import agenda, guide, prose, routes

NUMBER = "06"


def rendered(folder, template: str) -> str:
    route = routes.of_labs([NUMBER], 3)
    days = agenda.schedule(route, time(9), date(2026, 12, 1), {})
    return guide.render(route, days, agenda.markdown(route, days, ["Advice."]), folder, template)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return rendered(tmp_path_factory.mktemp("no rehearsal"), "guide")


@pytest.fixture(scope="module")
def helpers(tmp_path_factory) -> str:
    return rendered(tmp_path_factory.mktemp("no rehearsal"), "helpers")


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> guide.Lab:
    return guide.lab(catalogue.find(NUMBER), tmp_path_factory.mktemp("no rehearsal"))


@pytest.mark.parametrize("name", ["page", "helpers"])
def test_it_needs_nothing_from_elsewhere(name, request):
    page = request.getfixturevalue(name)
    assert not re.search(r'(?:src|<link[^>]*href)="?(?:https?:)?//', page)
    assert "<script" not in page


def test_each_exercise_has_its_answer_hints_and_mistakes(page, lab):
    found = {exercise.info.number: exercise for part in lab.parts for exercise in part.exercises}
    assert set(found) == set(catalogue.find(NUMBER).exercises)
    for number, exercise in found.items():
        assert prose.code(exercise.info.solution) in page
        assert exercise.hints
        assert exercise.mistakes
        assert f"Exercise {number}: an answer" in page


def test_figures_of_another_machine_are_called_so(page):
    assert "on another machine: ./lab rehearse measures here" in page


def test_what_is_not_in_the_route_is_marked(page):
    assert "Not in this route." in page


def test_its_formulas_need_no_network(page):
    assert "$$" not in page
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in page


def test_links_lead_to_pages_and_not_to_the_kits_files(page):
    links = re.findall(r'<a [^>]*href="([^"]*)"', page)
    assert links
    assert all(link.startswith(("https://", "#lab", "#helpers")) for link in links)


@pytest.mark.parametrize("name", ["page", "helpers"])
def test_headings_are_in_order(name, request):
    levels = [int(level) for level in re.findall(r"<h(\d)[ >]", request.getfixturevalue(name))]
    assert levels[0] == 1
    assert all(following <= level + 1 for level, following in itertools.pairwise(levels))


def test_the_timetable_has_sections_by_name_and_the_reserve(page):
    assert "2 · A parameter server</td>" in page
    assert agenda.RESERVE in page


class TestHelpersPage:
    def test_the_guide_has_it_too(self, page, helpers):
        cards = re.findall(r'(?s)<div class="card">.*?</div>', helpers)
        chapter = page.partition('id="helpers"')[2]
        assert len(cards) == chapter.count('<div class="card">') > 0

    def test_it_has_the_exercises_that_are_done_each_with_two_mistakes(self, helpers, lab):
        done = [exercise for part in lab.parts if part.section.core for exercise in part.exercises]
        cards = re.findall(r'(?s)<div class="card">.*?</div>', helpers)
        assert len(cards) == len(done) < sum(len(part.exercises) for part in lab.parts)
        for card, exercise in zip(cards, done, strict=True):
            assert prose.inline(exercise.info.title) in card
            assert card.count("<li>") == min(2, len(exercise.mistakes))
            label = "Ask:" if "?" in exercise.hints[0] else "First hint:"
            assert f"<strong>{label}</strong> {prose.hint(exercise.hints[0])}" in card

    def test_the_solution_is_shown_after_twice_the_planned_minutes(self, helpers):
        (part,) = [one for one in catalogue.find(NUMBER).sections if one.name == "2"]
        assert f"or after {2 * part.do} minutes" in helpers


def test_the_command_writes_the_helpers_page_alone(tmp_path):
    out = tmp_path / "helpers.html"
    assert (
        CliRunner().invoke(cli.application(), ["guide", "--labs", "00", "--helpers", "--out", str(out)]).exit_code == 0
    )
    assert "<h1>For helpers</h1>" in out.read_text()


def test_a_hints_code_is_code_and_nothing_else_is_markup():
    assert prose.hint("Take `a < b`, then 2 * c * d.") == "Take <code>a &lt; b</code>, then 2 * c * d."
