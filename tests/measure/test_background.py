import threading

import pytest

from labkit.measure import Background, alternate
from labkit.system.errors import LabError


def test_the_notebook_continues_and_gets_the_figures_later(capsys):
    go_on = threading.Event()
    running = Background({"a": lambda: 2.0 * go_on.wait(60), "b": lambda: 1.0}, 3, "images/s", "section 1")
    go_on.set()
    figures = running.figures()
    assert figures["a"].rounds == (2, 2, 2)
    assert figures["a"].source == figures["b"].source
    assert capsys.readouterr() == ("", "")


def test_another_alternation_waits():
    order, started, go_on = [], threading.Event(), threading.Event()

    def first():
        started.set()
        go_on.wait(60)
        order.append("first")
        return 1.0

    running = Background({"first": first}, 1)
    started.wait(60)
    threading.Timer(0.2, go_on.set).start()
    alternate({"second": lambda: order.append("second") or 2.0}, 1)
    assert order == ["first", "second"]
    assert running.figures()["first"].value == 1


def test_a_failure_is_raised_where_the_figures_are_used():
    def fail():
        raise LabError("no such script")

    running = Background({"a": fail}, 1)
    with pytest.raises(LabError, match="no such script"):
        running.figures()
