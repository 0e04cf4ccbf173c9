"""Who is in which rack, which rate each cable has, and what transfers may get; nothing of it needs a testbed."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.system.errors import LabError
from labkit.testbed.topology import MAX_NODES, Cable, Topology, parse_slow

GBIT, MBIT = 1e9, 1e6


def error_of(call, *args, **options) -> str:
    with pytest.raises(LabError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def ring(nodes: int) -> list[tuple[int, int]]:
    return [(node, node % nodes + 1) for node in range(1, nodes + 1)]


class TestRacks:
    @pytest.mark.parametrize(
        ("nodes", "racks", "members"),
        [
            (4, 2, ((1, 2), (3, 4))),
            (5, 2, ((1, 2, 3), (4, 5))),
            (8, 3, ((1, 2, 3), (4, 5, 6), (7, 8))),
            (3, 3, ((1,), (2,), (3,))),
        ],
    )
    def test_nodes_are_spread_in_order(self, nodes, racks, members):
        made = Topology.of(nodes, "1 Gbit/s", racks, "500 Mbit/s")
        assert made.racks == members
        assert [made.rack(node) for node in range(1, nodes + 1)] == [
            number for number, rack in enumerate(members, start=1) for _ in rack
        ]

    @given(st.integers(2, MAX_NODES), st.data())
    def test_each_node_is_in_one_rack_and_racks_are_even(self, nodes, data):
        racks = Topology.of(nodes, GBIT, data.draw(st.integers(2, nodes)), GBIT).racks
        assert [node for rack in racks for node in rack] == list(range(1, nodes + 1))
        sizes = [len(rack) for rack in racks]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1

    def test_cables(self):
        made = Topology.of(3, "1 Gbit/s", 2, "500 Mbit/s", {3: "100 Mbit/s"})
        assert made.uplinks == (Cable("switch", "down1", 500 * MBIT), Cable("switch", "down2", 500 * MBIT))
        assert made.wire(2) == Cable("rack1", "port2", GBIT)
        assert made.wire(3) == Cable("rack2", "port3", 100 * MBIT)

    def test_without_racks_all_are_at_the_core(self):
        made = Topology.of(2, "1 Gbit/s")
        assert (made.racks, made.uplink, made.uplinks, made.slow) == (((1, 2),), None, (), {})
        assert made.wire(2) == Cable("switch", "port2", GBIT)

    def test_it_cannot_be_changed_and_has_a_hash(self):
        made = Topology.of(2, GBIT, slow={2: MBIT})
        assert len({made, Topology.of(2, "1 Gbit/s", slow={2: "1 Mbit/s"})}) == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.rate = 1.0


class TestShares:
    def test_each_gets_the_least_on_its_way(self):
        made = Topology.of(6, "1 Gbit/s", 2, "500 Mbit/s", {2: "100 Mbit/s"})
        shares = made.shares(ring(6))
        assert shares == (100 * MBIT, 100 * MBIT, 500 * MBIT, GBIT, GBIT, 500 * MBIT)

    def test_those_who_cross_an_uplink_in_one_direction_share_it(self):
        made = Topology.of(6, "1 Gbit/s", 2, "900 Mbit/s")
        assert made.shares([(1, 4), (2, 5), (3, 6)]) == (300 * MBIT,) * 3
        assert made.shares([(1, 4), (5, 2), (6, 3)]) == (900 * MBIT, 450 * MBIT, 450 * MBIT)
        assert made.shares([(1, 2), (3, 4)]) == (GBIT, 900 * MBIT)

    def test_those_who_send_to_one_node_share_its_wire(self):
        made = Topology.of(4, "1 Gbit/s")
        assert made.shares([(1, 4), (2, 4)]) == (GBIT / 2, GBIT / 2)
        assert made.shares([(1, 2), (2, 1)]) == (GBIT, GBIT)

    def test_a_fast_uplink_slows_nobody(self):
        assert set(Topology.of(4, "1 Gbit/s", 2, "10 Gbit/s").shares(ring(4))) == {GBIT}

    @given(st.integers(2, 12), st.data())
    def test_no_end_has_to_send_more_than_its_rate(self, nodes, data):
        racks = data.draw(st.integers(1, nodes))
        made = Topology.of(nodes, GBIT, racks, 300 * MBIT if racks > 1 else None, {1: 50 * MBIT})
        node = st.integers(1, nodes)
        pairs = data.draw(st.lists(st.tuples(node, node).filter(lambda pair: pair[0] != pair[1]), min_size=1))
        shares, sent, rates = made.shares(pairs), {}, {}
        for pair, share in zip(pairs, shares, strict=True):
            for end, rate in made.way(*pair).items():
                sent[end], rates[end] = sent.get(end, 0) + share, rate
        assert all(sent[end] <= 1.000001 * rates[end] for end in sent)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "4 nodes on wires of 1 Gbit/s"),
        ({"racks": 2, "uplink": 5e8}, "4 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 500 Mbit/s"),
        ({"slow": {3: "100 Mbit/s"}}, "4 nodes on wires of 1 Gbit/s, node 3 on 100 Mbit/s"),
        ({"slow": {4: 1e8, 2: 1e7, 1: 1e9}}, "4 nodes on wires of 1 Gbit/s, node 2 on 10 Mbit/s, node 4 on 100 Mbit/s"),
    ],
)
def test_how_it_is_shown(options, shown):
    assert str(Topology.of(4, "1 Gbit/s", **options)) == shown


class TestInput:
    @pytest.mark.parametrize("odd", [0, -1, MAX_NODES + 1, 1.5, "2", None, True, [2], np.ones(2)])
    def test_nodes(self, odd):
        assert error_of(Topology.of, odd, GBIT) == f"nodes is a whole number from 1 to {MAX_NODES}, not {odd!r}."

    @pytest.mark.parametrize("odd", [0, -1, 5, 2.0, "2", None, True])
    def test_racks(self, odd):
        told = error_of(Topology.of, 4, GBIT, odd, GBIT)
        assert told == f"racks is a whole number from 1 to the number of nodes, 4, not {odd!r}."

    def test_racks_and_an_uplink_come_together(self):
        assert "give the uplink's rate too" in error_of(Topology.of, 4, GBIT, 2)
        assert "give the number of racks too" in error_of(Topology.of, 4, GBIT, 1, GBIT)

    @pytest.mark.parametrize("odd", ["fast", 1e3, True])
    def test_uplink(self, odd):
        assert error_of(Topology.of, 4, GBIT, 2, odd).startswith("a rate is ")

    @pytest.mark.parametrize("odd", [0, 5, -1, "3", 3.0, True, None])
    def test_there_is_no_such_node_to_be_slow(self, odd):
        assert error_of(Topology.of, 4, GBIT, slow={odd: MBIT}) == (
            f"the nodes are 1 to 4: there is no node {odd!r} to be slow."
        )

    def test_slow_rates(self):
        assert "a rate is written like" in error_of(Topology.of, 4, GBIT, slow={3: "slow"})
        told = error_of(Topology.of, 4, GBIT, slow={3: "2 Gbit/s"})
        assert told == "node 3 can't be slow by '2 Gbit/s': the other wires have 1 Gbit/s."
        for odd in ("3=100 Mbit/s", [3], 3):
            assert error_of(Topology.of, 4, GBIT, slow=odd).startswith("slow has nodes and their rates, such as {3: ")

    def test_integers_of_numpy_count_too(self):
        made = Topology.of(np.int64(4), np.float32(1e9), np.int64(2), 5e8, {np.int64(3): 1e8})
        assert made == Topology.of(4, 1e9, 2, 5e8, {3: 1e8})
        assert type(made.racks[0][0]) is int


class TestWritten:
    def test_slow_nodes(self):
        assert parse_slow([]) == {}
        assert parse_slow(["3=100 Mbit/s", " 4 = 1gbit "]) == {3: "100 Mbit/s", 4: " 1gbit "}

    @pytest.mark.parametrize(
        "odd", ["", "3", "3=", "=100 Mbit/s", "100 Mbit/s", "-3=1 Gbit/s", "3:1 Gbit/s", "a=1 Gbit/s"]
    )
    def test_what_is_none(self, odd):
        assert error_of(parse_slow, [odd]) == f"a slow node and its rate are written like '3=100 Mbit/s', not {odd!r}."

    def test_a_node_has_one_rate(self):
        assert error_of(parse_slow, ["3=1 Gbit/s", "3=2 Gbit/s"]) == "node 3 is slow in two ways: give it one rate."
