import pytest

from labkit.accuracy import theory


def test_headers_count():
    """1,448 bytes of payload take the time of 1,514."""
    assert theory.seconds("one_flow", 2, 1448, 1514 * 8) == pytest.approx(1)
    assert theory.seconds("all_flows", 8, 1448, 1514 * 8) == pytest.approx(1)


@pytest.mark.parametrize(("nodes", "passes"), [(2, 1), (4, 1.5), (8, 1.75)])
def test_a_ring_and_an_all_reduce_send_as_many_bytes(nodes, passes):
    assert theory.passes("ring", nodes) == theory.passes("all_reduce", nodes) == passes


def test_a_server_receives_from_all_and_sends_to_all():
    assert theory.passes("one_server", 4) == 6


@pytest.mark.parametrize("way", theory.COLLECTIVES)
def test_what_follows_the_model_is_predicted(way):
    def seconds(nodes):
        return theory.messages(way, nodes) * 2e-3 + theory.passes(way, nodes) * 4e6 * 9e-9

    known = {nodes: seconds(nodes) for nodes in (2, 4)}
    for nodes in (4, 8, 16):
        assert theory.predict(way, 4_000_000, known, nodes) == pytest.approx(seconds(nodes))
