"""The racks of nodes and the rates of transfers; these tests need no testbed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_error import error_of

from labkit.testbed.topology import MAX_NODES, Topology

GBIT = 1e9


@given(st.integers(2, MAX_NODES), st.data())
def test_each_node_is_in_one_rack_and_racks_are_even(nodes, data):
    racks = Topology.of(nodes, GBIT, data.draw(st.integers(2, nodes)), GBIT).racks
    assert [node for rack in racks for node in rack] == list(range(1, nodes + 1))
    sizes = [len(rack) for rack in racks]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_without_racks_all_are_at_the_core():
    topology = Topology.of(2, "1 Gbit/s")
    assert (topology.racks, topology.uplink, topology.switch(2)) == (((1, 2),), None, "switch")


def test_a_transfer_to_another_rack_has_the_uplinks_rate():
    topology = Topology.of(6, "1 Gbit/s", 2, "500 Mbit/s")
    assert [topology.to_next(node) for node in range(1, 7)] == [GBIT, GBIT, 5e8, GBIT, GBIT, 5e8]
    fast = Topology.of(4, "1 Gbit/s", 2, "10 Gbit/s")
    assert {fast.to_next(node) for node in range(1, 5)} == {GBIT}


def test_a_transfer_has_the_rate_of_the_slower_wire():
    topology = Topology.of(4, "1 Gbit/s", wires={2: "500 Mbit/s"})
    assert [topology.to_next(node) for node in range(1, 5)] == [5e8, 5e8, GBIT, GBIT]
    assert topology.slowest == 5e8


@pytest.mark.parametrize(
    ("racks", "text"),
    [
        ((), "4 nodes on wires of 1 Gbit/s"),
        ((2, 5e8), "4 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 500 Mbit/s"),
        (
            (1, None, {3: 5e7}, 20_000),
            "4 nodes on wires of 1 Gbit/s (node 3: 50 Mbit/s), with queues of 20,000 bytes",
        ),
    ],
)
def test_a_topology_is_described_in_words(racks, text):
    assert str(Topology.of(4, "1 Gbit/s", *racks)) == text


@pytest.mark.parametrize("value", [0, MAX_NODES + 1, 2.0, "2", None, True])
def test_numbers_of_nodes_and_racks(value):
    assert error_of(Topology.of, value, GBIT) == f"nodes must be an integer from 1 to {MAX_NODES}, not {value!r}."
    message = f"racks must be an integer from 1 to the number of nodes, 4, not {value!r}."
    assert error_of(Topology.of, 4, GBIT, value, GBIT) == message


def test_racks_and_an_uplink_come_together():
    assert "set the uplink's rate too" in error_of(Topology.of, 4, GBIT, 2)
    assert "set the number of racks too" in error_of(Topology.of, 4, GBIT, 1, GBIT)
    assert error_of(Topology.of, 4, GBIT, 2, "fast").startswith("a rate must be ")


def test_other_wires_and_queues():
    assert "the node of a wire must be an integer from 1 to " in error_of(Topology.of, 4, GBIT, wires={5: GBIT})
    assert error_of(Topology.of, 4, GBIT, wires={1: "fast"}).startswith("a rate must be ")
    for queue in (2_999, 10**9, "20 kB", 1e4 + 0.5):
        assert error_of(Topology.of, 4, GBIT, queue=queue).startswith("a queue must be an integer of bytes from 3,000 ")


def test_integers_of_numpy_count_too():
    assert Topology.of(np.int64(4), np.float32(1e9), np.int64(2), 5e8) == Topology.of(4, 1e9, 2, 5e8)
