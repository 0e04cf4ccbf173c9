"""Nodes have wires of the requested rate, are isolated, and end without a trace."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab_error import error_of

from labkit.system import processes
from labkit.system.processes import wait_until
from labkit.testbed import Testbed, namespaces, obstacle, rates, traffic, wiring
from labkit.testbed.topology import Topology

pytestmark = pytest.mark.slow  # each makes a testbed, in about half a second


@pytest.fixture(scope="module")
def pair(wires_can_be_made):
    """Yield a testbed of two nodes, which tests leave as it is."""
    with Testbed(2, "1 Gbit/s") as wires:
        yield wires


@pytest.fixture
def make(nothing_left):
    """Return a function that makes testbeds, which the test may close itself."""
    with contextlib.ExitStack() as stack:

        def make(*args, **options) -> Testbed:
            wires = stack.enter_context(Testbed(*args, **options))
            nothing_left(wires._shell.pid, *(node.pid for node in wires.nodes))
            return wires

        yield make


def on(wires: Testbed, node: int | None, *command: str, timeout: float = 20) -> subprocess.CompletedProcess:
    return subprocess.run([*wires.enter(node), *command], capture_output=True, text=True, timeout=timeout)


def python_on(wires: Testbed, node: int | None, text: str) -> str:
    done = on(wires, node, sys.executable, "-c", textwrap.dedent(text))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CONNECT = """
    import errno, socket
    for address, port in {addresses}:
        with socket.socket() as out:
            out.settimeout(3)
            print(errno.errorcode.get(out.connect_ex((address, port))))
"""
SEND = """
    import socket, sys
    with socket.create_connection(("{to}", {port}), 5) as connection:
        connection.sendall(bytes({size}))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
"""
RECEIVE = """
    import socket
    with socket.create_server(("{at}", {port})) as server:
        print("ready", flush=True)
        server.settimeout(10)
        connection, peer = server.accept()
        while connection.recv(1 << 16):
            pass
        print(peer[0])
"""


def send(wires: Testbed, sender: int, receiver: int, size: int, port: int = 7078) -> None:
    """Send `size` bytes from one node to another."""
    at = wires.nodes[receiver - 1].address
    text = textwrap.dedent(RECEIVE.format(at=at, port=port))
    with subprocess.Popen(
        [*wires.enter(receiver), sys.executable, "-c", text], stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout.readline() == "ready\n"
        python_on(wires, sender, SEND.format(to=at, port=port, size=size))
        assert listener.stdout.read() == f"{wires.nodes[sender - 1].address}\n"


def sent_by(wires: Testbed) -> list[int]:
    return [traffic(node.pid, wires.interface).sent for node in wires.nodes]


class TestWires:
    def test_the_rate_is_measured_and_no_transfer_is_faster(self, make):
        """A slow wire passes a burst after a pause; a much larger transfer takes its time."""
        wires, size = make(2, "20 Mbit/s"), 500_000
        measured, expected = wires.check
        assert (wires.topology.rate, expected) == (20e6, 20e6)
        assert measured < 1.1 * expected
        began = time.monotonic()
        send(wires, 1, 2, size)
        assert time.monotonic() - began > (size - wiring.SLOW_BURST_BYTES) * 8 / expected

    def test_a_rate_that_the_machine_cannot_carry_is_reported(self, make):
        assert str(make(2, "100 Gbit/s")).endswith("%. ⚠ This machine is slower than these wires")

    def test_traffic_counts_the_bytes_on_the_wires(self, pair):
        before, size = [traffic(node.pid, pair.interface) for node in pair.nodes], 1_000_000
        send(pair, 1, 2, size)
        first, second = (traffic(node.pid, pair.interface) for node in pair.nodes)
        assert size < first.sent - before[0].sent < 1.1 * size
        assert size < second.received - before[1].received < 1.1 * size
        assert max(first.received - before[0].received, second.sent - before[1].sent) < 0.1 * size

    def test_one_wire_has_another_rate_and_queues_are_short(self, make):
        wires = make(2, "1 Gbit/s", wires={2: "20 Mbit/s"}, queue=20_000)
        ends = [on(wires, node, "tc", "qdisc").stdout for node in (None, 1, 2)]
        assert "dev port1 root refcnt" in ends[0]
        assert [re.findall(r"rate (\S+)", end) for end in ends] == [["1Gbit", "20Mbit"], ["1Gbit"], ["20Mbit"]]
        assert [end.count("lat 100ms") for end in ends] == [0, 1, 1]

    def test_one_node_has_no_wires_to_measure(self, make):
        wires = make(1, "1 Gbit/s")
        assert str(wires) == "1 node, no wires (1 Gbit/s)"


class TestRacks:
    def test_traffic_between_racks_uses_the_uplinks_at_their_rate(self, make):
        wires, size = make(4, "1 Gbit/s", racks=2, uplink="20 Mbit/s"), 500_000
        assert (wires.topology.racks, wires.topology.uplink) == (((1, 2), (3, 4)), 20e6)
        at_switch = CONNECT.format(addresses=[(node.address, 9) for node in wires.nodes])
        assert python_on(wires, None, at_switch).split() == ["ECONNREFUSED"] * 4

        def sent() -> dict[str, int]:
            return {name: traffic(wires._shell.pid, name).sent for name in ("up1", "down1", "up2", "down2")}

        before = sent()
        send(wires, 1, 2, size)
        assert all(count - before[name] < 0.1 * size for name, count in sent().items())
        before, began = sent(), time.monotonic()
        send(wires, 1, 3, size)
        assert time.monotonic() - began > (size - wiring.SLOW_BURST_BYTES) * 8 / wires.topology.uplink
        since = {name: count - before[name] for name, count in sent().items()}
        assert size < since["up1"] < 1.1 * size
        assert size < since["down2"] < 1.1 * size
        assert max(since["up2"], since["down1"]) < 0.1 * size

    @pytest.mark.parametrize(
        ("shares", "measured", "expected"),
        [((0.94, 0.93, 0.94, 0.94), 465e6, 500e6), ((0.94, 0.94, 0.7, 0.9), 700e6, 1e9)],
    )
    def test_the_check_is_the_transfer_furthest_from_the_rate_on_its_path(
        self, monkeypatch, shares, measured, expected
    ):
        """From node 1 to 2 over wires, from 2 to 3 over uplinks, from 3 to 4 over wires, and back over uplinks."""

        def transfer(shell, nodes, expected):
            assert [*expected.values()] == [1e9, 500e6, 1e9, 500e6]
            return {address: share * rate for (address, rate), share in zip(expected.items(), shares, strict=True)}

        monkeypatch.setattr(rates, "transfer_to_next", transfer)
        nodes = [SimpleNamespace(number=number, address=f"10.77.0.{number}") for number in (1, 2, 3, 4)]
        assert rates.measure(None, Topology.of(4, "1 Gbit/s", 2, "500 Mbit/s"), nodes) == (measured, expected)

    @pytest.mark.parametrize(
        ("measured", "expected", "text"),
        [
            (465e6, 500e6, "465 Mbit/s of 500 Mbit/s, 93%"),
            (700e6, 1e9, "700 Mbit/s, 70%. ⚠ This machine is slower than these wires"),
            (1.9e6, 1e9, "1.9 Mbit/s, less than 1%. ⚠ This machine is slower than these wires"),
        ],
    )
    def test_a_low_rate_is_reported(self, pair, monkeypatch, measured, expected, text):
        monkeypatch.setitem(vars(pair), "check", (measured, expected))
        assert str(pair) == f"2 nodes on wires of 1 Gbit/s: a transfer reached {text}"


class TestIsolation:
    def test_a_node_sees_its_interface_and_no_other(self, pair):
        lines = on(pair, 1, processes.which("ip"), "-br", "addr").stdout.splitlines()
        assert sorted(line.partition(" ")[0].partition("@")[0] for line in lines) == sorted(["lo", pair.interface])
        assert on(pair, 1, "hostname").stdout == "node1\n"
        assert subprocess.run(["hostname"], capture_output=True, text=True).stdout != "node1\n"

    def test_no_route_leads_out_and_no_server_of_this_machine_can_be_reached(self, pair):
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            for node in (None, 1):
                routes = python_on(pair, node, "print(open('/proc/net/route').read())").splitlines()[1:]
                assert [line.split()[1:3] for line in routes] == [["00004D0A", "00000000"]]  # 10.77.0.0, no gateway
                addresses = [("192.0.2.1", 80), ("127.0.0.1", port), ("10.77.0.254", port)]
                answers = python_on(pair, node, CONNECT.format(addresses=addresses)).split()
                assert answers == ["ENETUNREACH", "ECONNREFUSED", "ECONNREFUSED"]

    def test_two_testbeds_with_the_same_addresses_are_isolated(self, pair, make):
        second = make(2, "100 Mbit/s")
        assert [node.address for node in pair.nodes] == [node.address for node in second.nodes]
        before = sent_by(pair)
        send(second, 1, 2, 200_000)
        assert all(after - earlier < 20_000 for after, earlier in zip(sent_by(pair), before, strict=True))
        second.close()
        send(pair, 1, 2, 1000)


class TestEnd:
    def test_closing_ends_the_nodes_processes_and_it_may_be_closed_twice(self, make):
        wires = make(2)
        with subprocess.Popen([*wires.enter(2), "sh", "-c", "trap '' TERM HUP INT; sleep 60 & wait"]) as process:
            wires.close()
            assert process.wait(40) == -signal.SIGKILL  # not after the 60 s
        wires.close()
        for use in (wires.enter, lambda: wires.enter(1), lambda: str(wires)):
            assert namespaces.ENDED in error_of(use)

    def test_a_testbed_made_in_a_thread_outlives_the_thread(self, make):
        testbeds = []
        thread = threading.Thread(target=lambda: testbeds.append(make(2)))
        thread.start()
        thread.join()
        send(testbeds[0], 1, 2, 1000)

    def test_it_ends_when_its_process_is_killed(self, nothing_left):
        text = """
            import time
            from labkit.testbed import Testbed
            wires = Testbed(2)
            print(wires._shell.pid, *(node.pid for node in wires.nodes), flush=True)
            time.sleep(60)
        """
        command = [sys.executable, "-c", textwrap.dedent(text)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            pids = list(map(int, process.stdout.readline().split()))
            nothing_left(*pids)
            process.kill()
        assert wait_until(lambda: not any(Path(f"/proc/{pid}/ns/net").exists() for pid in pids), 40)


class TestInterface:
    """The nodes' interface has the name of one of this machine's interfaces."""

    @pytest.fixture
    def machine_with(self, tmp_path, monkeypatch):
        def put(*names: str) -> None:
            for name in names:
                kind, _, name = name.rpartition(":")
                (tmp_path / name / kind).mkdir(parents=True)
            (tmp_path / "bonding_masters").touch()  # a file, if the module is loaded
            monkeypatch.setattr(wiring, "INTERFACES", tmp_path)

        return put

    @pytest.mark.parametrize(
        ("names", "chosen"),
        [
            (("lo", "enp3s0", "wlp2s0", "eth0"), "eth0"),
            (("bridge:docker0", "lo", "wlp2s0"), "wlp2s0"),
            (("bonding:bond0", "enp4s0", "bridge:br0", "lo", "veth12ab"), "enp4s0"),
        ],
    )
    def test_names(self, machine_with, names, chosen):
        machine_with(*names)
        assert wiring.interface() == chosen

    @pytest.mark.parametrize("names", [("lo", "bridge:docker0"), ()])
    def test_none_that_mpi_would_find(self, machine_with, names):
        machine_with(*names)
        assert "no network interface but lo" in error_of(wiring.interface)
        assert "no network interface but lo" in obstacle()

    def test_no_sys_at_all(self, monkeypatch, tmp_path):
        monkeypatch.setattr(wiring, "INTERFACES", tmp_path / "gone")
        assert "no network interface but lo" in obstacle()
