"""The instructor's guide contains the labs' text, solutions, hints and mistakes, on one self-contained page."""

import itertools
import re
from datetime import date, time

import pytest
from lab_command import run_lab

from labkit.exercises import catalogue
from labkit_classroom.lecture import agenda, guide, prose, routes

NUMBER = "06"


def rendered(folder, template: str, number: str = NUMBER) -> str:
    route = routes.of_labs([number], 3)
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
def test_pages_are_self_contained(name, request):
    page = request.getfixturevalue(name)
    assert not re.search(r'(?:src|<link[^>]*href)="?(?:https?:)?//', page)
    assert "<script" not in page


def test_every_exercise_has_solution_hints_and_mistakes(page, lab):
    exercises = {exercise.info.number: exercise for part in lab.parts for exercise in part.exercises}
    assert set(exercises) == set(catalogue.find(NUMBER).exercises)
    for number, exercise in exercises.items():
        assert prose.code(exercise.info.solution) in page
        assert exercise.hints
        assert exercise.named or exercise.planted
        assert f"Exercise {number}: solution" in page


@pytest.mark.parametrize("template", ["guide", "helpers"])
def test_mistakes_that_a_check_names_are_shown(tmp_path, template):
    assert "It is as if query i were token i, not token m - n + i." in rendered(tmp_path, template, "10")


def test_figures_from_another_machine_are_labelled(page):
    assert "on another machine: ./lab rehearse measures here" in page


def test_sections_outside_the_route_are_marked(page):
    assert "Not in this route." in page


def test_formulas_are_mathml(page):
    assert "$$" not in page
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block" tabindex="0">' in page


def test_links_do_not_lead_to_the_kits_files(page):
    links = re.findall(r'<a [^>]*href="([^"]*)"', page)
    assert links
    assert all(link.startswith(("https://", "#lab", "#helpers")) for link in links)


@pytest.mark.parametrize("name", ["page", "helpers"])
def test_headings_are_in_order(name, request):
    levels = [int(level) for level in re.findall(r"<h(\d)[ >]", request.getfixturevalue(name))]
    assert levels[0] == 1
    assert all(following <= level + 1 for level, following in itertools.pairwise(levels))


def test_the_timetable_contains_section_names_and_the_reserve(page):
    assert "2 · A parameter server</td>" in page
    assert agenda.RESERVE in page


class TestHelpersPage:
    def test_the_guide_contains_it(self, page, helpers):
        cards = re.findall(r'(?s)<div class="card">.*?</div>', helpers)
        chapter = page.partition('id="helpers"')[2]
        assert len(cards) == chapter.count('<div class="card">') > 0

    def test_it_contains_taught_exercises_with_two_mistakes_each(self, helpers, lab):
        taught = [exercise for part in lab.parts if part.section.core for exercise in part.exercises]
        cards = re.findall(r'(?s)<div class="card">.*?</div>', helpers)
        assert len(cards) == len(taught) < sum(len(part.exercises) for part in lab.parts)
        for card, exercise in zip(cards, taught, strict=True):
            assert prose.inline(exercise.info.title) in card
            assert card.count("<li>") == min(2, len(exercise.named) + len(exercise.planted))
            label = "Ask:" if "?" in exercise.hints[0] else "First hint:"
            assert f"<strong>{label}</strong> {prose.hint(exercise.hints[0])}" in card

    def test_the_solution_is_due_after_twice_the_planned_minutes(self, helpers):
        (part,) = [section for section in catalogue.find(NUMBER).sections if section.name == "2"]
        assert f"or after {2 * part.do:g} minutes" in helpers


def test_the_command_writes_only_the_helpers_page(tmp_path):
    out = tmp_path / "helpers.html"
    assert run_lab("guide", "--labs", "00", "--helpers", "--out", out) == 0
    assert "<h1>For helpers</h1>" in out.read_text()


def test_code_is_the_only_markup_in_hints():
    assert prose.hint("Take `a < b`, then 2 * c * d.") == "Take <code>a &lt; b</code>, then 2 * c * d."
