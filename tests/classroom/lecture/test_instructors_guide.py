"""The instructor's guide has what is in the labs' sources and tests, on one page that needs nothing else."""

import itertools
import re
from datetime import date, time

import pytest

from labkit.exercises import sources
from labkit_classroom.lecture import agenda, guide, routes

NUMBER = "06"


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    route = routes.of_labs([NUMBER], 3)
    days = agenda.schedule(route, time(9), date(2026, 12, 1), {})
    return guide.render(route, days, ["Advice."], tmp_path_factory.mktemp("no rehearsal"))


def test_it_needs_nothing_from_elsewhere(page):
    assert not re.search(r'(?:src|<link[^>]*href)="?(?:https?:)?//', page)
    assert "<script" not in page


def test_each_exercise_has_its_answer_hints_and_mistakes(page):
    lab = guide.lab(sources.find(NUMBER), sources.find(NUMBER).parent / "nowhere")
    found = {exercise.number: exercise for part in lab.parts for exercise in part.exercises}
    assert set(found) == set(sources.exercises(sources.read(sources.find(NUMBER))))
    for number, exercise in found.items():
        assert sources.BEGIN not in exercise.solution
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
    assert all(link.startswith(("https://", "#lab")) for link in links)


def test_headings_are_in_order(page):
    levels = [int(level) for level in re.findall(r"<h(\d)[ >]", page)]
    assert levels[0] == 1
    assert all(following <= level + 1 for level, following in itertools.pairwise(levels))
