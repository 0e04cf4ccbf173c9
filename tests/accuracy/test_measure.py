import io
import json

import pytest
from rich.console import Console

from labkit.accuracy import measure, on_ranks, theory
from labkit.system import load
from labkit.testbed import fidelity


def row(nodes, seconds_of=lambda way, nodes: theory.seconds(way, nodes, 4_000_000, 1e9), **others):
    seconds = {way: [1.02 * seconds_of(way, nodes), 1.04 * seconds_of(way, nodes)] for way in measure.WAYS}
    found = load.Others(share=0.0, **others)
    return measure.Row(nodes, 1e9, 4_000_000, seconds | {"pings": [50 * 3e-5] * 2}, fidelity.Fidelity(0.02, 0.1), found)


def rendered(rows) -> str:
    out = io.StringIO()
    measure.render(rows, Console(file=out, width=400))
    return out.getvalue()


class TestRows:
    def test_what_takes_longer_than_theory_is_a_share_with_its_interval(self):
        value, low, high = row(4).off("ring")
        assert value == pytest.approx(0.03, abs=1e-3)
        assert low < value < high

    def test_a_round_trip_is_that_of_a_message(self):
        assert row(2).round_trip == pytest.approx(3e-5)

    def test_the_limit_is_told(self):
        assert "⚠" not in rendered([row(2)])
        assert "⚠ busy" in rendered([row(2, busy=True)])
        assert "⚠ cores" in rendered([row(2, busy=True, doubt="nodes waited 50% of the time for a core")])

    def test_more_nodes_are_predicted_from_the_first_two(self):
        found = measure.predictions([row(2), row(4), row(8)])
        assert [(each.nodes, way) for each, way, _ in found] == [(8, "ring"), (8, "all_reduce")]
        for each, way, seconds in found:
            assert seconds == pytest.approx(1.03 * theory.seconds(way, 8, each.n_bytes, each.rate), rel=1e-3)
        assert "on 8 nodes: predicted from fewer nodes" in rendered([row(2), row(4), row(8)])

    def test_it_is_json_too(self):
        assert json.loads(json.dumps(row(2).as_dict()))["nodes"] == 2


@pytest.mark.usefixtures("wires_can_be_made")
@pytest.mark.slow
def test_each_operation_is_measured(monkeypatch):
    """On any machine, busy or not, nothing is faster than its wire: but for the burst after a pause."""
    monkeypatch.setattr(measure, "ROW_S", 0.1)
    found = measure.measure_row(3, 100e6)
    assert set(found.seconds) == {way.__name__ for way in on_ranks.WAYS}
    assert all(len(times) >= on_ranks.ROUNDS[0] for times in found.seconds.values())
    assert all(found.off(way)[0] > -0.1 for way in measure.WAYS)
    assert found.round_trip > 0
