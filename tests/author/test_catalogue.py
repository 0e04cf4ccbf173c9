"""`solutions/labs.json` is up to date, and has everything that students, guide and board need."""

import nbformat
import pytest

from labkit.exercises import catalogue as labs
from labkit.system import paths
from labkit_author import catalogue, questions, sources


def test_the_file_matches_the_sources():
    assert (paths.SOLUTIONS / labs.FILE).read_text() == catalogue.text(), "run ./lab build"


def test_a_lab_is_complete():
    lab = labs.find("07")
    assert (lab.number, lab.title.partition(" · ")[0], lab.sections[-1].name) == ("07", "07", "questions")
    cells = {cell.id: cell.source for cell in nbformat.read(lab.notebook, as_version=4).cells}
    for exercise in lab.exercises.values():
        assert exercise.stub == cells[exercise.cell]
        assert "raise NotImplementedError()" not in exercise.solution
        assert exercise.title
        assert exercise.section in {section.name for section in lab.sections if section.do}


def test_every_question_has_a_unit_or_choices():
    known_questions = [question for lab in labs.labs() for question in lab.questions]
    assert len(known_questions) == sum(source.read_text().count("results.guess(") for source in sources.labs()) > 50
    assert all(bool(question.unit) != bool(question.choices) for question in known_questions)
    texts = {(question.lab, question.number): question.text for question in known_questions}
    assert texts["07", 2] == "images per second, … ranks vs one"


@pytest.mark.parametrize(
    "cells",
    [
        ('results.guess(1, "q", ..., choices=("a", "b"))',),
        ('K = {"a": 1, "b": 2}\nresults.guess(1, "q", ..., choices=tuple(K))',),
        ('K = ("a", "b")', 'results.guess(1, "q", ..., choices=K)'),
    ],
)
def test_choices_are_read_in_any_form(write_source, cells):
    (question,) = questions.read(sources.read(write_source(*cells)))
    assert question["choices"] == ["a", "b"]


def test_an_unknown_lab_is_an_error_that_lists_all_labs():
    with pytest.raises(labs.LabError, match=r"no lab '77'.*07_horovod_mnist"):
        labs.find("77")
