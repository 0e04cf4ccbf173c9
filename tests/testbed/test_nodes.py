"""Nodes have wires of the rate that was asked for, are on their own, and end without a trace."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import labkit.testbed
from labkit.system import programs
from labkit.system.errors import LabError
from labkit.system.machine import node_cpus, this_machine
from labkit.system.processes import wait_until
from labkit.testbed import NoTestbed, Testbed, Traffic, namespaces, obstacle, testbed, topology, traffic

pytestmark = pytest.mark.slow  # each makes a testbed, in about half a second


def error_of(call, *args, **options) -> str:
    with pytest.raises(LabError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def make(nothing_left):
    """Make testbeds, which the test may close itself."""
    with contextlib.ExitStack() as stack:

        def make(*args, **options) -> Testbed:
            made = stack.enter_context(Testbed(*args, **options))
            nothing_left(made._shell.pid, *(node.pid for node in made.nodes))
            return made

        yield make


def on(wires: Testbed, node: int | None, *command: str, timeout: float = 20) -> subprocess.CompletedProcess:
    return subprocess.run([*wires.enter(node), *command], capture_output=True, text=True, timeout=timeout)


def python_on(wires: Testbed, node: int | None, text: str) -> str:
    done = on(wires, node, sys.executable, "-c", textwrap.dedent(text))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
    """Send so many bytes from one node to another."""
    at = wires.nodes[receiver - 1].address
    text = textwrap.dedent(RECEIVE.format(at=at, port=port))
    with subprocess.Popen(
        [*wires.enter(receiver), sys.executable, "-c", text], stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout.readline() == "ready\n"
        python_on(wires, sender, SEND.format(to=at, port=port, size=size))
        assert listener.stdout.read() == f"{wires.nodes[sender - 1].address}\n"


class TestWires:
    def test_the_rate_is_measured_and_told(self, make):
        wires = make(2, "50 Mbit/s")
        assert (wires.rate, wires.delay) == (50e6, 0)
        assert wires.measured < 1.1 * wires.rate
        assert str(wires) == f"2 nodes on wires of 50 Mbit/s: a transfer got {wires.measured / 1e6:.3g} Mbit/s, " + (
            f"{wires.measured / wires.rate:.0%}"
        )
        slow = wires.measured < testbed.SHARE_WARNING * wires.rate
        assert wires.warning.startswith("Warning: wires of 50 Mbit/s carry ") == slow

    def test_a_rate_that_the_machine_cannot_carry_is_told(self, make):
        wires = make(2, "100 Gbit/s")
        assert wires.warning.startswith("Warning: wires of 100 Gbit/s carry ")

    def test_no_transfer_is_faster_than_the_rate(self, make):
        """A slow wire lets a burst pass after a pause; what is much larger takes its time."""
        wires, size = make(2, "20 Mbit/s"), 500_000
        began = time.monotonic()
        send(wires, 1, 2, size)
        assert time.monotonic() - began > (size - testbed.SLOW_BURST_BYTES) * 8 / wires.rate

    def test_traffic_is_what_went_over_the_wires(self, make):
        wires = make(3, "1 Gbit/s")
        before, size = wires.traffic(), 1_000_000
        send(wires, 1, 3, size)
        one, two, three = (after - earlier for after, earlier in zip(wires.traffic(), before, strict=True))
        assert size < one.sent < 1.1 * size
        assert size < three.received < 1.1 * size
        assert max(one.received, three.sent, *two) < 0.1 * size

    def test_a_node_reads_its_own_traffic(self, make):
        wires = make(2)
        sent, received = python_on(
            wires, 2, "from labkit.testbed import traffic; now = traffic(); print(now.sent, now.received)"
        ).split()
        seen = wires.traffic()[1]
        assert (abs(int(sent) - seen.sent), abs(int(received) - seen.received)) < (1000, 1000)

    def test_what_came_since(self):
        assert Traffic(5, 7) - Traffic(2, 3) == Traffic(3, 4)
        with pytest.raises(TypeError):
            Traffic(5, 7) - 3

    def test_one_node_has_no_wire_to_measure(self, make):
        wires = make(1, "1 Gbit/s")
        assert (str(wires), wires.warning) == ("1 node, and no wire (1 Gbit/s)", "")

    def test_nodes_share_the_cores(self, make):
        wires = make(2)
        assert [node.cpus for node in wires.nodes] == node_cpus(this_machine(), 2)
        assert [node.number for node in wires.nodes] == [1, 2]

    def test_integers_of_numpy_count_too(self, make):
        import numpy

        assert len(make(numpy.int64(1)).nodes) == 1


class TestRacks:
    def test_what_leaves_a_rack_goes_over_the_uplinks_at_their_rate(self, make):
        wires, size = make(4, "1 Gbit/s", racks=2, uplink="20 Mbit/s"), 500_000
        assert (wires.racks, wires.uplink) == (((1, 2), (3, 4)), 20e6)

        def sent() -> dict[str, int]:
            return {name: traffic(wires._shell.pid, name).sent for name in ("up1", "down1", "up2", "down2")}

        before = sent()
        send(wires, 1, 2, size)
        assert all(count - before[name] < 0.1 * size for name, count in sent().items())
        before, began = sent(), time.monotonic()
        send(wires, 1, 3, size)
        assert time.monotonic() - began > (size - testbed.SLOW_BURST_BYTES) * 8 / wires.uplink
        since = {name: count - before[name] for name, count in sent().items()}
        assert size < since["up1"] < 1.1 * size
        assert size < since["down2"] < 1.1 * size
        assert max(since["up2"], since["down1"]) < 0.1 * size

    def test_within_a_rack_no_transfer_is_faster_than_the_wires(self, make):
        wires, size = make(3, "20 Mbit/s", racks=2, uplink="1 Gbit/s"), 500_000
        assert wires.racks == ((1, 2), (3,))
        for sender, receiver in ((1, 2), (2, 3)):
            began = time.monotonic()
            send(wires, sender, receiver, size)
            assert time.monotonic() - began > (size - testbed.SLOW_BURST_BYTES) * 8 / wires.rate

    def test_a_slow_node_is_slow_in_both_directions(self, make):
        wires, size = make(2, "1 Gbit/s", slow={2: "20 Mbit/s"}), 500_000
        assert (wires.slow, wires.expected) == ({2: 20e6}, 20e6)
        assert wires.measured < 1.1 * 20e6
        for sender, receiver in ((1, 2), (2, 1)):
            began = time.monotonic()
            send(wires, sender, receiver, size)
            assert time.monotonic() - began > (size - testbed.SLOW_BURST_BYTES) * 8 / 20e6

    def test_one_at_the_switch_reaches_all_racks(self, make):
        wires = make(3, "1 Gbit/s", racks=3, uplink="1 Gbit/s")
        for node in wires.nodes:
            text = f"""
                import errno, socket
                with socket.socket() as out:
                    out.settimeout(5)
                    print(errno.errorcode[out.connect_ex(("{node.address}", 9))])
            """
            assert python_on(wires, None, text) == "ECONNREFUSED"

    def test_packets_wait_as_long_as_the_queue_says(self, make):
        wires = make(2, "100 Mbit/s", racks=2, uplink="10 Mbit/s", queue="20 ms")
        lines = on(wires, None, programs.which("tc"), "qdisc").stdout.splitlines()
        assert len([line for line in lines if "rate 100Mbit burst 16000b lat 20ms" in line]) == 2
        assert len([line for line in lines if "rate 10Mbit burst 16000b lat 20ms" in line]) == 4
        assert "uplinks of 10 Mbit/s, queues of 20 ms: a transfer got " in str(wires)

    @pytest.mark.parametrize(
        ("shares", "told", "warning"),
        [
            ((0.94, 0.93, 0.94, 0.94), "a transfer got 465 Mbit/s of 500 Mbit/s, 93%", ""),
            ((0.93, 0.94, 0.94, 0.94), "a transfer got 93 Mbit/s of 100 Mbit/s, 93%", ""),
            ((0.94, 0.94, 0.7, 0.9), "a transfer got 700 Mbit/s, 70%", "wires of 1 Gbit/s carry 700 Mbit/s"),
            (
                (0.9, 0.5, 0.7, 0.9),
                "a transfer got 250 Mbit/s of 500 Mbit/s, 50%",
                "cables of 500 Mbit/s carry 250 Mbit/s",
            ),
        ],
    )
    def test_a_transfer_is_held_to_what_it_may_get(self, make, monkeypatch, shares, told, warning):
        """From node 1 to 2 over a slow wire, from 2 to 3 over uplinks, from 3 to 4 over wires, and back."""
        most = (100e6, 500e6, 1e9, 100e6)

        def transfer(self, pairs, expected):
            assert tuple(expected) == most
            return {after.address: share * rate for (_, after), share, rate in zip(pairs, shares, most, strict=True)}

        monkeypatch.setattr(Testbed, "_transfer", transfer)
        wires = make(4, "1 Gbit/s", racks=2, uplink="500 Mbit/s", slow={1: "100 Mbit/s"})
        assert (
            str(wires)
            == f"4 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 500 Mbit/s, node 1 on 100 Mbit/s: {told}"
        )
        assert wires.warning == (f"Warning: {warning} here: take them for that." if warning else "")


class TestAlone:
    def test_a_node_sees_its_interface_and_no_other(self, make):
        wires = make(2)
        lines = on(wires, 1, programs.which("ip"), "-br", "addr").stdout.splitlines()
        assert sorted(line.partition(" ")[0].partition("@")[0] for line in lines) == sorted(["lo", wires.interface])
        assert on(wires, 1, "hostname").stdout == "node1\n"
        assert subprocess.run(["hostname"], capture_output=True, text=True).stdout != "node1\n"

    def test_no_route_leads_out(self, make):
        wires = make(2)
        for node in (None, 1):
            routes = python_on(wires, node, "print(open('/proc/net/route').read())").splitlines()[1:]
            assert [line.split()[1:3] for line in routes] == [["00004D0A", "00000000"]]  # 10.77.0.0, by no gateway
            text = """
                import errno, socket
                with socket.socket() as out:
                    out.settimeout(3)
                    print(errno.errorcode[out.connect_ex(("{address}", 80))])
            """
            for address in ("192.0.2.1", "127.0.0.1"):
                expected = "ECONNREFUSED" if address == "127.0.0.1" else "ENETUNREACH"
                assert python_on(wires, node, text.format(address=address)) == expected

    def test_what_listens_on_this_machine_is_out_of_reach(self, make):
        wires = make(1)
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            text = f"""
                import socket
                for address in ("127.0.0.1", "10.77.0.254"):
                    with socket.socket() as out:
                        print(out.connect_ex((address, {port})) == 0)
            """
            assert python_on(wires, 1, text).split() == ["False", "False"]

    def test_two_side_by_side_have_the_same_addresses_and_do_not_meet(self, make):
        first, second = make(2, "100 Mbit/s"), make(2, "100 Mbit/s")
        assert [node.address for node in first.nodes] == [node.address for node in second.nodes]
        before = second.traffic()
        send(first, 1, 2, 200_000)
        assert all(after.sent - earlier.sent < 20_000 for after, earlier in zip(second.traffic(), before, strict=True))
        first.close()
        send(second, 1, 2, 1000)

    def test_nothing_on_this_machine_is_changed(self, make):
        def state() -> list[str]:
            commands = ("ip -br addr", "ip route", "ip rule", "tc qdisc", "hostname")
            environ = {"PATH": programs.search_path()}
            done = [
                subprocess.run(line.split(), env=environ, capture_output=True, text=True).stdout for line in commands
            ]
            return [*done, *(Path(f"/proc/sys/net/ipv4/tcp_{way}mem").read_text() for way in "rw")]

        before = state()
        wires = make(2)
        wires.cut(1)
        assert state() == before
        wires.close()
        assert state() == before


class TestEnd:
    def test_closing_ends_what_runs_on_the_nodes(self, make):
        wires = make(2)
        with subprocess.Popen([*wires.enter(2), "sh", "-c", "trap '' TERM HUP INT; sleep 60 & wait"]) as process:
            began = time.monotonic()
            wires.close()
            assert process.wait(5) == -signal.SIGKILL
            assert time.monotonic() - began < 5

    def test_it_may_be_closed_again_and_then_says_so(self, make):
        wires = make(2)
        wires.close()
        wires.close()
        for use in (wires.traffic, wires.enter, lambda: wires.enter(1), lambda: wires.cut(1), lambda: wires.mend(1)):
            assert error_of(use) == namespaces.ENDED

    def test_a_node_that_has_ended_is_told(self, make):
        wires = make(2)
        os.kill(wires.nodes[1].pid, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{wires.nodes[1].pid}/ns/net").exists(), 5)
        assert error_of(wires.traffic) == namespaces.ENDED
        assert error_of(wires.enter, 2) == namespaces.ENDED
        assert wires.enter(1)

    def test_the_switch_that_has_ended_is_told(self, make):
        wires = make(2)
        os.kill(wires._shell.pid, signal.SIGKILL)
        wires._shell._shell.wait()
        assert error_of(wires.enter) == namespaces.ENDED
        assert "has ended" in error_of(wires.cut, 1)

    def test_one_made_in_a_thread_outlives_the_thread(self, make):
        made = []
        thread = threading.Thread(target=lambda: made.append(make(2)))
        thread.start()
        thread.join()
        send(made[0], 1, 2, 1000)

    def test_a_fork_of_this_process_neither_keeps_it_nor_ends_it(self, make):
        wires = make(1)
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                wires._shell.close()
                time.sleep(60)
            os._exit(0)
        try:
            time.sleep(0.2)
            assert wires.traffic()
            began = time.monotonic()
            wires.close()
            assert time.monotonic() - began < 5
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    @pytest.mark.parametrize("forks", [False, True])
    def test_it_ends_when_its_process_is_killed(self, nothing_left, forks):
        text = """
            import os, sys, time
            from labkit.testbed import Testbed
            wires = Testbed(2)
            if {forks} and not os.fork():
                time.sleep(60)
            print(wires._shell.pid, *(node.pid for node in wires.nodes), flush=True)
            time.sleep(60)
        """
        command = [sys.executable, "-c", textwrap.dedent(text.format(forks=forks))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            pids = list(map(int, process.stdout.readline().split()))
            nothing_left(*pids)
            process.kill()
            process.wait()
            try:
                assert wait_until(lambda: not any(Path(f"/proc/{pid}/ns/net").exists() for pid in pids), 10)
            finally:
                if forks:
                    os.killpg(process.pid, signal.SIGKILL)

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
    def test_it_needs_no_standard_streams(self, nothing_left, tmp_path, closed):
        text = f"""
            from pathlib import Path
            from labkit.testbed import Testbed
            with Testbed(2) as wires:
                Path({str(tmp_path / "told")!r}).write_text(str(wires))
        """
        (tmp_path / "use.py").write_text(textwrap.dedent(text))
        subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", sys.executable, tmp_path / "use.py"], timeout=30)
        assert (tmp_path / "told").read_text().startswith("2 nodes on wires of 1 Gbit/s")

    def test_what_an_interrupt_left_is_not_taken_for_the_next_commands_output(self, make, monkeypatch):
        wires = make(1)
        monkeypatch.setattr(namespaces, "COMMAND_TIMEOUT_S", 0.05)
        assert error_of(wires._shell.run, "sleep 0.3; echo late").startswith("no end within")
        monkeypatch.undo()
        assert wires._shell.run("echo next") == "next\n"
        assert wires._shell.run("echo more") == "more\n"
        assert error_of(wires._shell.run, "echo why >&2; false; echo never") == "why"


class TestCables:
    def test_a_cable_that_is_pulled_carries_nothing_until_it_is_mended(self, make):
        wires = make(2)
        reach = f"""
            import errno, socket
            with socket.socket() as out:
                out.settimeout(0.5)
                print(out.connect_ex(("{wires.nodes[1].address}", 9)) == errno.ECONNREFUSED)
        """
        assert python_on(wires, 1, reach) == "True"
        wires.cut(2)
        assert python_on(wires, 1, reach) == "False"
        wires.mend(2)
        assert (wires.lost(), wires.pulled()) == ("", "")
        assert python_on(wires, 1, reach) == "True"

    def test_it_is_lost_after_a_while(self, make, monkeypatch):
        wires = make(3)
        wires.mend(1)  # which was not pulled
        wires.cut(3)
        wires.cut(1)
        assert wires.lost() == ""
        assert wires.pulled() == "The cable of node 1 and node 3 is pulled: mend plugs it in again."
        monkeypatch.setattr(testbed, "LOST_S", 0)
        assert wires.lost().startswith("The cable of node 1 and node 3 has been pulled for 0 s")
        wires.cut(3)
        wires.mend(1)
        assert wires.lost().startswith("The cable of node 3 has")

    def test_there_is_no_such_node(self, make):
        wires = make(2)
        for use in (wires.cut, wires.mend):
            for odd in (0, 3, -1, None, "1"):
                assert error_of(use, odd) == f"the nodes are 1 to 2: there is no node {odd!r}."


class TestInput:
    @pytest.mark.parametrize("odd", [0, -1, 65, 10**9, 1.5, "2", None, True, [2]])
    def test_nodes(self, nothing_left, odd):
        assert error_of(Testbed, odd) == f"nodes is a whole number from 1 to {topology.MAX_NODES}, not {odd!r}."

    @pytest.mark.parametrize("options", [{"rate": "0 bit/s"}, {"rate": "1 GB/s"}, {"rate": None}, {"delay": "5 s"}])
    def test_rate_and_delay(self, nothing_left, options):
        assert error_of(Testbed, 2, **options)

    @pytest.mark.parametrize(
        ("odd", "told"),
        [
            ("0 ms", "a queue lets packets wait for 1 us or longer, not for '0 ms'."),
            ("2 s", "a delay is written like '1 ms' or '200 us', and is 1 s at most, not '2 s'."),
            (0.02, "a delay is written like '1 ms' or '200 us', and is 1 s at most, not 0.02."),
        ],
    )
    def test_queue(self, nothing_left, odd, told):
        assert error_of(Testbed, 2, queue=odd) == told


NETEM_ABSENT = "Error: Specified qdisc kind is unknown."


@pytest.fixture
def fake_tc(tmp_path, monkeypatch):
    """Have `tc` write down how it was called, and return what it was called with; `netem` may be missing."""

    def fake(netem: bool):
        program = tmp_path / "bin" / "tc"
        program.parent.mkdir()
        refuse = f'case "$*" in *netem*) echo "{NETEM_ABSENT}" >&2; exit 2;; esac'
        program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\n{"" if netem else refuse}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
        return lambda: (tmp_path / "calls").read_text().splitlines()

    return fake


class TestDelay:
    def test_netem_is_at_the_switchs_ends_and_the_rate_is_below(self, make, fake_tc):
        """As tc-netem(8) has it: "netem delay" as the root, with a handle, and tbf as its child."""
        calls = fake_tc(netem=True)
        wires = make(2, "100 Mbit/s", "0.25 ms")
        rate = "tbf rate 100000000bit burst 16000 latency 100ms"
        assert calls() == [
            line
            for port in ("port1", "port2")
            for line in (
                f"qdisc add dev {port} root handle 1: netem delay 500us limit 100000",
                f"qdisc add dev {port} parent 1:1 handle 10: {rate}",
                f"qdisc add dev {wires.interface} root {rate}",
            )
        ]
        assert "100 Mbit/s, each adding 0.25 ms: a transfer got" in str(wires)

    def test_uplinks_are_delayed_at_the_cores_ends(self, make, fake_tc):
        calls = fake_tc(netem=True)
        wires = make(2, "100 Mbit/s", "0.25 ms", racks=2, uplink="10 Mbit/s")
        delayed = [line.split()[3] for line in calls() if "netem delay 500us" in line]
        assert sorted(delayed) == ["down1", "down2", "port1", "port2"]
        plain = [line.split()[3] for line in calls() if "root tbf" in line]
        assert sorted(plain) == sorted(["up1", "up2", wires.interface, wires.interface])

    @pytest.mark.parametrize(("options", "cables"), [({}, 4), ({"racks": 2, "uplink": "50 Mbit/s"}, 8)])
    def test_windows_hold_what_is_under_way(self, make, fake_tc, options, cables):
        """The kernel takes up to a half of a window for its own records."""
        fake_tc(netem=True)
        wires = make(2, "100 Mbit/s", "5 ms", **options)
        setting = Path("/proc/sys/net/ipv4/tcp_rmem")
        window = int(python_on(wires, 1, f"print(open('{setting}').read())").split()[-1])
        assert os.access(setting, os.W_OK) <= (window / 2 > wires.rate / 8 * cables * 0.005)

    @pytest.mark.parametrize("delay", [None, "0 ms"])
    def test_without_a_delay_netem_is_not_needed(self, make, fake_tc, delay):
        calls = fake_tc(netem=False)
        make(1, "1 Gbit/s", delay)
        assert all("root tbf rate 1000000000bit burst 31250 latency 100ms" in line for line in calls())

    def test_a_kernel_without_netem_says_so(self, nothing_left, fake_tc):
        fake_tc(netem=False)
        assert error_of(Testbed, 2, "1 Gbit/s", "1 ms") == (
            f"this kernel adds no delay, as it has no netem ({NETEM_ABSENT}): leave the delay out."
        )

    @pytest.mark.parametrize(("options", "cables"), [({}, 4), ({"racks": 2, "uplink": "1 Gbit/s"}, 8)])
    def test_a_round_trip_takes_the_delays_of_all_its_cables(self, make_delayed, options, cables):
        """From node to node, and from the switch, where mpirun is: half as many."""
        wires = make_delayed(2, "1 Gbit/s", "5 ms", **options)
        for sender, delay in ((1, cables * 0.005), (None, cables / 2 * 0.005)):
            assert delay < least_round_trip(wires, sender, 2) < 1.8 * delay

    @pytest.mark.parametrize("delay", ["1 ms", "10 ms"])
    def test_one_flow_gets_its_window_in_each_round_trip_or_the_rate(self, make, make_delayed, delay):
        """The sender's own queue must not hold what is under way: with 10 ms there, a flow got a small part of it.

        What the machine carries in the same seconds stands for the rate.
        """

        def share() -> float:
            wires, plain = make_delayed(2, "1 Gbit/s", delay), make(2, "1 Gbit/s")
            return wires.measured / min(plain.measured, wires._window(wires.rate) / 2 * 8 / wires._round_trip)

        assert any(share() > 0.5 for _ in range(5))


@pytest.fixture
def make_delayed(make):
    """Make testbeds with a delay; skip the test where the kernel adds none."""

    def make_delayed(*args, **options) -> Testbed:
        try:
            return make(*args, **options)
        except LabError as error:
            if "it has no netem" not in str(error):
                raise
            pytest.skip(f"DELAY ON WIRES NOT TESTED HERE: {error}")

    return make_delayed


def least_round_trip(wires: Testbed, sender: int | None, receiver: int) -> float:
    """Return the shortest time, in seconds, that some datagrams take to a node and back."""
    at = wires.nodes[receiver - 1].address
    echo = f"""
        import socket
        with socket.socket(type=socket.SOCK_DGRAM) as out:
            out.bind(("{at}", 7079))
            print("ready", flush=True)
            while True:
                out.sendto(*out.recvfrom(100))
    """
    ask = f"""
        import socket, time
        times = []
        with socket.socket(type=socket.SOCK_DGRAM) as out:
            out.settimeout(5)
            out.connect(("{at}", 7079))
            for _ in range(20):
                began = time.monotonic()
                out.send(b"ping")
                out.recv(100)
                times.append(time.monotonic() - began)
        print(min(times))
    """
    command = [*wires.enter(receiver), sys.executable, "-c", textwrap.dedent(echo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        try:
            assert listener.stdout.readline() == "ready\n"
            return float(python_on(wires, sender, ask))
        finally:
            listener.kill()


class TestInterface:
    """How the nodes' interface is called: as one of this machine's own, whatever that is."""

    @pytest.fixture
    def machine_with(self, tmp_path, monkeypatch):
        def put(*names: str) -> None:
            for name in names:
                kind, _, name = name.rpartition(":")
                (tmp_path / name / kind).mkdir(parents=True)
            (tmp_path / "bonding_masters").touch()  # a file, where the module is loaded
            monkeypatch.setattr(testbed, "INTERFACES", tmp_path)

        return put

    @pytest.mark.parametrize(
        ("names", "chosen"),
        [
            (("lo", "eth0"), "eth0"),
            (("lo", "enp3s0"), "enp3s0"),
            (("lo", "enp3s0", "wlp2s0", "eth0"), "eth0"),
            (("bridge:docker0", "lo", "wlp2s0"), "wlp2s0"),
            (("bonding:bond0", "enp4s0", "bridge:br0", "lo", "veth12ab"), "enp4s0"),
            (("lo", "enx00e04c680001"), "enx00e04c680001"),
        ],
    )
    def test_names(self, machine_with, names, chosen):
        machine_with(*names)
        assert testbed.interface() == chosen

    @pytest.mark.parametrize("names", [("lo",), ("lo", "bridge:docker0"), ()])
    def test_none_that_mpi_would_find(self, machine_with, names):
        machine_with(*names)
        with pytest.raises(NoTestbed, match="no network interface but lo"):
            testbed.interface()
        assert "no network interface but lo" in obstacle()

    def test_no_sys_at_all(self, monkeypatch, tmp_path):
        monkeypatch.setattr(testbed, "INTERFACES", tmp_path / "gone")
        assert "no network interface but lo" in obstacle()


def test_the_room_has_what_labs_use():
    assert all(hasattr(labkit.testbed, name) for name in labkit.testbed.__all__)
    assert testbed.ENTER.stat().st_mode & stat.S_IXUSR
