"""What labs say of their measurements, played invented results of each kind."""

import lab_cells
import pytest

from labkit.bench.configurations import Comparison


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ([20.0, 20.2, 19.9], "faster"),
        ([5.0, 5.1, 4.9], "slower"),
        ([10.0, 9.8, 10.3], "no difference beyond chance"),
        ([20.0], "one round only, so there is no interval"),
        (None, "not measured here"),
    ],
)
def test_lab_03_says_of_a_configuration_what_its_rounds_show(speeds, verdict, capsys):
    tell = lab_cells.functions("03", "tell")["tell"]
    results = {"eigen": [10.0, 10.1, 9.9][: len(speeds or [1])]} | ({"new": speeds} if speeds else {})
    rounds = {name: [{"images_per_second": speed} for speed in each] for name, each in results.items()}
    tell(Comparison(rounds, {}), "new", "eigen")
    assert capsys.readouterr().out.rstrip().endswith(f": {verdict}")
