"""`lab scale` takes turns, keeps what was measured when something fails, and its words follow the intervals."""

import json
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

from labkit import cli
from labkit.network import NoNetwork, obstacle
from labkit.network.network import Node
from labkit.scale import picture, report, run
from labkit.scale.measure import NO_LIMIT, REFERENCE, Point, Scaling, points, take_turns
from labkit.system.errors import LabError
from labkit.system.machine import Machine, shares

FAST, SLOW = "1 Gbit/s", "100 Mbit/s"
PROGRAM = [sys.executable, "-S", "-c"]


def scaling(rows, rounds=5, noise=0.01, **options):
    """Return invented results: the efficiency of each number of nodes on each of the wires, and noise."""
    metrics = {REFERENCE: 100.0}
    for nodes, *efficiencies in rows:
        for wires, efficiency in zip((NO_LIMIT, FAST, SLOW), efficiencies, strict=False):
            metrics[Point(nodes, wires)] = 100.0 * nodes * efficiency
    logs = np.random.default_rng(2).normal(0, noise, (len(metrics), rounds))
    logs -= logs.mean(axis=1, keepdims=True)  # so that the efficiencies are those asked for
    factors = dict(zip(metrics, np.exp(logs), strict=True))
    return Scaling({point: list(metric * factors[point]) for point, metric in metrics.items()}, **options)


# Turns


def test_all_take_turns_and_a_failure_costs_no_other_result(capsys):
    asked = []

    def measure(point):
        asked.append(point)
        if point == Point(2, SLOW) and len(asked) > 3:
            raise LabError("exit status 3. Its last lines:\n  no memory")
        return 10.0 * point.nodes

    wanted = points([1, 2], [SLOW])
    assert wanted == [REFERENCE, Point(2, NO_LIMIT), Point(2, SLOW)]
    found = take_turns(wanted, measure, 3, "images/s")
    assert asked == [*wanted, *wanted[::-1], *wanted[:2]]
    assert found.metrics == {REFERENCE: [10] * 3, Point(2, NO_LIMIT): [20] * 3, Point(2, SLOW): [20]}
    assert list(found.failed) == [Point(2, SLOW)]
    told = capsys.readouterr().out
    assert "round 2 of 3  2 nodes, 100 Mbit/s  failed: exit status 3. Its last lines:\n  no memory\n" in told
    assert told.count("images/s\n") == 7
    assert found.efficiency(Point(2, NO_LIMIT)).value == pytest.approx(1)
    assert report.find_break(found, SLOW, 0.5).text == "On 2 nodes it failed."


@pytest.mark.parametrize("error", [KeyboardInterrupt, LabError])
def test_an_interrupt_or_a_failing_reference_keeps_the_rounds_that_are_whole(error):
    asked = []

    def measure(point):
        asked.append(point)
        if len(asked) > 2 and point == REFERENCE:
            raise error("gone")
        return 10.0

    found = take_turns([REFERENCE, Point(2, FAST)], measure, 3)
    assert found.metrics == {REFERENCE: [10], Point(2, FAST): [10]}
    assert found.interrupted == (error is KeyboardInterrupt)
    assert list(found.failed) == [REFERENCE] * (error is LabError)
    assert found.efficiency(Point(2, FAST)).value == 0.5


def test_a_command_that_fails_on_one_node_is_said_at_once():
    def fail(point):
        raise LabError("exit status 1.")

    with pytest.raises(LabError, match=r"fails on 1 node, where there are no wires: exit status 1\."):
        take_turns(points([2], [FAST]), fail, 3)


# Efficiencies


def test_an_efficiency_is_a_throughputs_a_weak_or_a_strong_time():
    four = Point(4, FAST)
    assert Scaling({REFERENCE: [100, 100], four: [300, 300]}).efficiency(four).value == pytest.approx(0.75)
    weak = Scaling({REFERENCE: [3, 3], four: [4, 4]}, minimize=True)
    assert weak.efficiency(four).value == pytest.approx(0.75)
    assert weak.times(four).value == pytest.approx(3)
    strong = Scaling({REFERENCE: [12, 12], four: [4, 4]}, minimize=True, strong=True)
    assert strong.efficiency(four).value == pytest.approx(0.75)
    assert "weak scaling" in report.notes(weak)[0]
    assert "strong scaling" in report.notes(strong)[0]


def test_an_interval_has_the_noise_of_two_and_notes_tell_of_noise_that_differs():
    two, four = Point(2, NO_LIMIT), Point(4, NO_LIMIT)
    metrics = {REFERENCE: [100, 101, 100, 99, 100], two: [200, 198, 202, 200, 200], four: [400, 400, 396, 404, 400]}
    noisy = Point(3, SLOW)
    found = Scaling(metrics | {noisy: [200, 120, 300, 160, 240]})
    assert found.efficiency(two) == Scaling(metrics).efficiency(two)
    assert found.efficiency(noisy).high > 1.3 * found.efficiency(noisy).value
    told = report.notes(found)
    assert "over 5 rounds" in told[1]
    assert told[2].startswith("not pooled: the noise of 3 nodes, 100 Mbit/s is ")
    assert len(report.notes(Scaling(metrics))) == 2
    unsteady = Scaling(metrics | {REFERENCE: [100, 140, 90, 100, 100]})
    assert report.notes(unsteady)[-1] == "measure again: the reference varied by 18% between rounds"


# Words


@pytest.mark.parametrize(
    ("rows", "options", "nodes", "told"),
    [
        ([(2, 0.9, 0.8), (4, 0.8, 0.7)], {}, None, "does not break up to 4 nodes."),
        ([(2, 0.9, 0.8), (4, 0.8, 0.45)], {}, 4, "breaks at 4 nodes: efficiency 45% ("),
        ([(2, 0.9, 0.3), (4, 0.8, 0.2)], {}, 2, "breaks at 2 nodes: efficiency 30% ("),
        ([(2, 0.9, 0.95), (3, 0.9, 0.56)], {}, 3, "breaks at 3 nodes, slower than 2 nodes: 0.88 ("),
        ([(2, 0.9, 0.9), (3, 0.9, 0.6)], {}, 3, "breaks at 3 nodes, not faster beyond chance than 2 nodes: "),
        ([(2, 0.9, 0.8), (4, 0.8, 0.5)], {}, None, "On 4 nodes, nobody can tell: the interval of the eff"),
        ([(2, 0.9, 0.8)], {"noise": 0.8, "rounds": 3}, None, "On 2 nodes, nobody can tell: "),
        ([(2, 0.9, 0.58)], {"noise": 0.3, "threshold": 0.3}, None, "On 2 nodes, nobody can tell: 1.16 ("),
        ([(2, 0.9, 0.8), (4, 0.8, 0.3)], {"threshold": 0.8}, 4, "breaks at 4 nodes at the latest: efficiency 30% ("),
        ([(2, 0.9, 0.1)], {"rounds": 1}, None, "one round only, so nobody can tell."),
        ([(2, 0.9, 0.8), (4, 0.8, 0.7)], {"threshold": 0.75}, 4, "breaks at 4 nodes: efficiency 70% ("),
    ],
)  # fmt: skip
def test_where_it_breaks_follows_from_the_intervals(rows, options, nodes, told):
    invented = {name: value for name, value in options.items() if name != "threshold"}
    found = report.find_break(scaling(rows, **invented), FAST, options.get("threshold", 0.5))
    assert found.nodes == nodes
    assert found.text.startswith(told)


def test_a_break_without_a_limit_is_not_laid_on_the_rate_alone():
    found = report.find_breaks(scaling([(2, 0.9, 0.9, 0.3), (4, 0.4, 0.35, 0.2)]), 0.5)
    assert {wires: each.nodes for wires, each in found.items()} == {NO_LIMIT: 4, FAST: 4, SLOW: 2}
    assert [wires for wires, each in found.items() if "not the only reason" in each.text] == [FAST]


def test_the_table_the_picture_and_the_json_have_all_that_was_measured(tmp_path):
    found = scaling([(2, 0.9, 0.9, 0.3), (4, 0.4, 0.35, 0.2)], failed={Point(4, SLOW): "exit status 1."})
    cells = [list(column.cells) for column in report.table(found, "images/s").columns]
    assert cells[0] == ["1", "2", "2", "2", "4", "4", "4"]
    assert cells[1] == ["–", *[NO_LIMIT, FAST, SLOW] * 2]
    assert cells[3][0] == "100%"
    assert cells[3][-1] == "failed"
    assert cells[3][1].startswith("9")
    assert cells[4][1] == ""
    assert cells[4][2].endswith("%)")
    breaks = report.find_breaks(found, 0.5)
    kept = json.loads(json.dumps(report.as_dict(found, breaks), allow_nan=False))
    assert [len(each["metric"]) for each in kept["results"]] == [5] * 7
    assert kept["results"][-1]["efficiency"] is None
    assert kept["breaks"][SLOW]["nodes"] == 2
    json.dumps(report.as_dict(scaling([(2, 0.9)], rounds=1), {}), allow_nan=False)
    figure, alt = picture.draw(found, 0.5)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "number of nodes"
    assert axes.get_ylabel() == "efficiency (%)"
    assert len({container.lines[0].get_marker() for container in axes.containers}) == 3
    assert len({container.lines[0].get_color() for container in axes.containers}) == 3
    assert "100 Mbit/s: 2 nodes 30% (" in alt
    assert "4 nodes" not in alt.partition("100 Mbit/s")[2]
    plt.close(figure)


# The command


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["lab", "scale", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give a command after --"),
        (("--nodes", "1,x", "--", "true"), "--nodes '1,x': give whole numbers from 1 to 64"),
        (("--nodes", "0,2", "--", "true"), "give whole numbers"),
        (("--nodes", "65", "--", "true"), "give whole numbers"),
        (("--nodes", "1", "--", "true"), "leaves nothing to compare"),
        (("--rates", "1 GB/s", "--", "true"), "a rate is written like"),
        (("--rates", "1 Gbit/s,0 Mbit/s", "--", "true"), "nothing passes"),
        (("--timeout", "0", "--", "true"), "no time to wait"),
        (("--timeout", "nan", "--", "true"), "no time to wait"),
        (("--break", "50", "--", "true"), "no efficiency"),
        (("--strong", "--", "true"), "goes with --minimize"),
        (("--metric", "(", "--", "true"), "not a regular expression"),
        (("--metric", "x", "--json-field", "y", "--", "true"), "give one of them"),
        (("--picture", "x.jpg", "--", "true"), "ends in .png"),
        (("--json", "not-there/x.json", "--", "true"), "there is no folder not-there"),
    ],
)
def test_what_makes_no_sense_is_one_line_before_anything_runs(monkeypatch, capsys, arguments, told):
    assert command(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("lab: ")
    assert error.count("\n") == 1


def test_where_no_network_can_be_made_that_is_the_one_line(monkeypatch, capsys):
    def make(nodes, rate):
        raise NoNetwork("missing: iproute2. As root: `apt-get install iproute2`.")

    monkeypatch.setattr(run, "Network", make)
    assert command(monkeypatch, "--", "true") == 2
    assert capsys.readouterr().err == "lab: missing: iproute2. As root: `apt-get install iproute2`.\n"


class Wires:
    """A network without nodes of its own, for commands that only say what they were given."""

    def __init__(self, nodes, rate):
        self.nodes = tuple(
            Node(number, f"10.77.0.{number}", 0, cpus)
            for number, cpus in enumerate(shares(MACHINE, nodes, max(1, 2 // nodes)), start=1)
        )
        self.rate = run.parse_rate(rate)
        self.measured, self.warning, self.variables = self.rate, "", {"WIRES": rate}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def enter(self):
        return []


MACHINE = Machine((0, 1), ((0,), (1,)), None, 1 << 30, 1 << 30, (), ((0, 1),), "two cores")


@pytest.fixture
def without_a_network(monkeypatch):
    monkeypatch.setattr(run, "Network", Wires)


@pytest.mark.slow
@pytest.mark.usefixtures("without_a_network")
def test_the_metric_follows_nodes_and_wires_and_all_is_written(monkeypatch, capsys, tmp_path):
    program = """import os, sys
hosts = open(os.environ["HYDRA_HOST_FILE"]).read().split()
share = {"100 Gbit/s": 1, "1 Gbit/s": 0.8, "100 Mbit/s": 0.2}[os.environ["WIRES"]] if len(hosts) > 1 else 1
assert len(hosts) == int(sys.argv[1])
print(hosts, "speed", 100 * len(hosts) * share + os.getpid() % 7 / 10)"""
    out, drawn = tmp_path / "out.json", tmp_path / "out.png"
    options = ("--metric", "speed (.*)", "--nodes", "4,2", "--rounds", 2, "--json", out, "--picture", drawn)
    assert command(monkeypatch, *options, "--", *PROGRAM, program, "{nodes}") == 0
    told = capsys.readouterr().out
    assert "on 1, 2, 4 nodes of 1 CPU each" in told
    assert "It has no {nodes}" not in told
    assert "1 Gbit/s: does not break up to 4 nodes.\n" in told
    assert "100 Mbit/s: breaks at 2 nodes: efficiency 20%" in told
    assert "4 nodes take turns on 2 CPUs: what fills the CPUs of its node reaches about 50% there" in told
    assert "2 nodes take turns" not in told
    kept = json.loads(out.read_text())
    assert [(each["nodes"], each["wires"]) for each in kept["results"]][:3] == [(1, None), (2, NO_LIMIT), (2, FAST)]
    assert kept["breaks"][SLOW]["nodes"] == 2
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("without_a_network")
def test_what_fails_on_some_nodes_is_told_and_the_rest_is_shown(monkeypatch, capsys):
    program = "import sys; print('speed', 5); sys.exit(sys.argv[1] == '4')"
    options = ("--metric", "speed (.*)", "--rounds", 1, "--rates", FAST)
    assert command(monkeypatch, *options, "--", *PROGRAM, program, "{nodes}") == 1
    told = capsys.readouterr().out
    assert "4 nodes, 1 Gbit/s  failed: exit status 1. Its last lines:\n  speed 5\n" in told
    assert "one round only, so there are no intervals" in told


@pytest.mark.usefixtures("without_a_network")
def test_a_command_that_cannot_run_or_prints_no_metric_is_one_error(monkeypatch, capsys):
    assert command(monkeypatch, "--", "no-such-program") == 2
    assert "cannot start no-such-program" in capsys.readouterr().err
    assert command(monkeypatch, "--", "echo", "hello") == 2
    told = capsys.readouterr()
    assert "It has no {nodes}, so it is the same each time" in told.out
    assert "fails on 1 node, where there are no wires: it printed no line that matches" in told.err
    assert command(monkeypatch, "--metric", "(.+)", "--", "echo", "0") == 2
    assert "a metric of 0 has no ratio" in capsys.readouterr().err
    assert command(monkeypatch, "--timeout", "0.2", "--", "sleep", "60") == 2
    assert "not over after 0 s" in capsys.readouterr().err


@pytest.mark.parametrize("nodes", range(1, 9))
def test_a_part_of_the_nodes_shares_as_few_cores_as_can_be(nodes):
    for number in range(1, nodes + 1):
        used = [cpu for node in run.part(Wires(nodes, FAST), number) for cpu in node.cpus]
        assert len(set(used)) == min(2, len(used))


RANKS = """
from mpi4py import MPI
import numpy as np, os, time
comm = MPI.COMM_WORLD
data = np.ones(100_000)
comm.Barrier()
start = time.perf_counter()
comm.Allreduce(MPI.IN_PLACE, data)
seconds = comm.allreduce(time.perf_counter() - start, MPI.MAX) + 0.02
names = comm.gather(os.uname().nodename)
if comm.rank == 0:
    print(len(set(names)), "nodes of", comm.size, "ranks, speed", comm.size / seconds)
"""


@pytest.mark.slow
def test_ranks_run_on_their_nodes_over_slow_wires(monkeypatch, capsys, tmp_path):
    if why := obstacle():
        pytest.skip(f"no network: {why}")
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    metric = r"^(?:1 nodes of 1|2 nodes of 2) ranks, speed (.*)"
    options = ("--nodes", "2", "--rates", "8 Mbit/s", "--rounds", 1, "--metric", metric, "--json", tmp_path / "out")
    assert command(monkeypatch, *options, "--", "mpirun", "python", script) == 0
    alone, free, slow = (each["metric"][0] for each in json.loads((tmp_path / "out").read_text())["results"])
    assert slow < 5, "800 kB at 8 Mbit/s take 0.8 s"
    assert free > slow
    assert alone > slow
