import json
import math
from typing import NamedTuple

import lab_cells
import numpy as np
import pytest
from labs import ThreeWays
from mpi4py import MPI
from scipy.optimize import least_squares

from labkit.display.consistency import Prediction
from labkit.display.measured import Measured
from labkit.mpi import counting
from labkit.mpi.launch import run_ranks
from labkit.system import statistics
from labkit.testbed.testbed import SLEEP_WHILE_WAITING
from labkit_author import sources
from labkit_author.mistakes import Change


class TestExercises(ThreeWays):
    lab = "06"
    names = {"np": np, "math": math}

    @classmethod
    def make_student(cls, folder):
        """The lab up to its exercises: chunks.py from the lab."""
        write(folder, "chunks")
        return super().make_student(folder)


def write(folder, script):
    """Write one of the lab's scripts that are not exercises."""
    cells = sources.read(sources.find("06")).cells
    text = next(cell.source for cell in cells if cell.source.startswith(f"%%writefile work/{script}.py"))
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work" / f"{script}.py").write_text(text.partition("\n")[2])


def test_a_solution_passes_when_launched_alone(student, capsys):
    """As a student runs it, unlike the answers above, which share launches."""
    student.check(2, student.answer(2))
    assert "Exercise 2 · passed." in capsys.readouterr().out


def test_bytes_and_messages_match_theory(student, tmp_path):
    """For the solutions, as the lab counts them."""
    write(tmp_path, "count")
    servers, ring = (student.answer(number) for number in (1, 2))
    assert (servers, ring) == ("work/servers.py", "work/ring.py")
    lines = run_ranks(4, "work/count.py", "servers", "ring", threads=1, env=SLEEP_WHILE_WAITING, show=False).lines[0]
    lines_of = [[part.strip() for part in line.replace("in theory", "theory").split("|")] for line in lines]
    for (method, *counted), (same_method, *theory) in zip(lines_of[::2], lines_of[1::2], strict=True):
        assert method.split()[:-1] == same_method.split()[:-1]
        assert (method.split()[-1], same_method.split()[-1]) == ("counted", "theory")
        assert counted == theory, method
    assert len(lines_of) == 2 * (3 + 3 + 4)


def test_ranks_end_the_training_with_equal_weights(student, tmp_path):
    """Also if top_k returns lists. The reported traffic matches theory; FP16 sends half of float32."""
    for script in ("averages", "network", "compress"):
        write(tmp_path, script)
    writing = next(
        cell.source
        for cell in sources.read(sources.find("06")).cells
        if "topk.py" in cell.source and "write_text" in cell.source
    )
    lists = "return indices.tolist(), values.tolist(), owed.tolist()"
    top_k = student.answer(6, Change(before="return indices, values, owed", after=lists))
    assert student.check(6, top_k) is top_k
    exec(writing, {"check": student.check, "work": tmp_path / "work"})
    assert (tmp_path / "work" / "topk.py").read_text().count("# def top_k(") == 1
    run = run_ranks(2, "work/compress.py", "out.json", 256, 1, threads=1, show=False)
    assert [line.rpartition(" ")[2] for line in run.lines[0]] == ["0.0"] * 6
    sent = {method: log["megabytes"][-1] for method, log in json.loads((tmp_path / "out.json").read_text()).items()}
    weights = 784 * 64 + 64 + 64 * 10 + 10
    assert sent["float32"] == pytest.approx(4 * 4 * weights / 1e6)  # 256 digits in batches of 64: 4 steps
    assert sent["FP16"] == pytest.approx(sent["float32"] / 2)
    assert sent["1/50"] == sent["1/50, error feedback"] == pytest.approx(4 * 8 * (weights // 100) / 1e6)


@pytest.mark.parametrize("n", [4, 8, 64, 1024])
def test_an_uplink_costs_halving_more_than_the_ring(n):
    through = lab_cells.functions("06", "through_uplink")["through_uplink"]
    ring, last, first = (
        through(method, n) for method in ("ring", "halving, far partner last", "halving, far partner first")
    )
    assert ring == pytest.approx(2 * (n - 1) / n)
    # Step by step: partners in a rack exchange halves and so on, each on its own link; one step uses the uplink.
    halves = [1 / 2**step for step in range(1, n.bit_length())]
    assert last == pytest.approx(2 * (sum(halves[:-1]) + n / 2 * halves[-1]))
    assert first == pytest.approx(2 * (sum(halves[1:]) + n / 2 * halves[0]))
    assert ring < last <= first


def test_predictions_have_intervals_over_rounds():
    lab = model("predict_all", "milliseconds", "over_rounds")
    cases = {("ring", 2, 1_000_000): [1.0, 1.1, 0.9], ("1 server", 2, 1_000_000): [3.0, 3.0, 3.0]}
    ring, server = lab["predict_all"](cases, Machine(0.0, 1e6, math.inf), 0)
    assert (ring.name, ring.predicted, ring.inside) == ("ring, 2 ranks, 1,000,000 bytes", 1_000, True)
    assert (server.predicted, server.inside) == (2_000, False)
    assert server.measured.value == pytest.approx(3_000)


MODEL = ("message", "fit", "seconds_of", "predict", "fit_wires")


class Machine(NamedTuple):
    """The lab's own, which `lab_cells` doesn't load, as it is not a function."""

    latency: float
    bandwidth: float
    adding: float


def model(*more):
    """Return functions of the lab's model, with the costs of exercise 3."""
    cost = lab_cells.functions("06", "cost", math=math)["cost"]
    names = {"np": np, "math": math, "least_squares": least_squares, "cost": cost, "Machine": Machine}
    names["LIBRARY"] = ("doubling", "halving", "ring")
    names |= {"Prediction": Prediction, "Measured": Measured, "interval": statistics.interval}
    return lab_cells.functions("06", *MODEL, *more, **names)


@pytest.mark.parametrize(("latency", "bandwidth"), [(1e-4, 11.5e6), (2e-5, 118e6), (2e-6, 1.2e9)])
def test_the_fit_recovers_the_wires_and_predicts_other_times(latency, bandwidth):
    lab, wires = model(), Machine(latency, bandwidth, 5e9)
    methods = ("ring", "1 server", "n servers")

    def times(nodes, sizes):
        return {(m, n, s): lab["predict"](m, n, s, wires) for m in methods for n in nodes for s in sizes}

    fitted = lab["fit_wires"](times((2, 4), (1_000, 30_000, 300_000, 4_000_000)), 5e9)
    assert fitted == pytest.approx(wires, rel=1e-3)
    for case, seconds in times((3,), (10_000, 1_000_000)).items():
        assert lab["predict"](*case, fitted) == pytest.approx(seconds, rel=1e-2)


def test_each_method_of_section_5_has_its_own_cost():
    predict, wires = model()["predict"], Machine(0.0, 1e6, math.inf)
    seconds = {method: predict(method, 4, 1e6, wires) for method in ("1 server", "n servers", "ring", "MPI_Allreduce")}
    assert seconds == pytest.approx({"1 server": 6, "n servers": 1.5, "ring": 1.5, "MPI_Allreduce": 1.5})


@pytest.mark.parametrize(
    ("method", "milliseconds", "megabytes"),
    [("1 server", 2_000, 12), ("n servers", 500, 6), ("ring", 500, 6), ("MPI_Allreduce", 500, 6)],
)
def test_theoretical_time_and_traffic_on_wires(method, milliseconds, megabytes):
    names = {"GRADIENT": 4_000_000, "RATES": {"100 Mbit/s": 1e8}, "HEADERS": 25 / 24}
    in_theory = lab_cells.functions("06", "in_theory", **names)["in_theory"]
    assert in_theory(method, 4, "100 Mbit/s") == pytest.approx((milliseconds / 1e3, megabytes * 1e6))


@pytest.mark.parametrize(
    ("message", "pickled", "size"),
    [
        (np.zeros(6, np.float32), False, 24),
        ([np.zeros(6, np.float32), 4, None], False, 16),
        ([np.zeros(6, np.float32), [1, 3]], False, 16),
        ([np.zeros(6, np.float32), ([1, 3], [0, 1]), MPI.FLOAT], False, 16),
        ([np.zeros(6, np.float32), MPI.FLOAT], False, 24),
        ([np.zeros(6, np.float32), 24, MPI.BYTE], False, 24),
        ([np.zeros(6, np.float32), [8, 4], [0, 8], MPI.BYTE], False, 12),
        ([np.zeros(24, np.uint8), 6, MPI.FLOAT], False, 24),
        ([np.zeros(6, np.float32), 24, "B"], False, 24),
        ([np.zeros((2, 3), np.float64), None], False, 48),
        (np.zeros(0), False, 0),
        (None, False, 0),
    ],
)
def test_message_sizes_are_counted_in_bytes(message, pickled, size):
    assert counting._size(message, pickled) == size


def test_communicators_made_from_a_counting_one_count_too():
    alone = counting.CountingComm(MPI.COMM_SELF)
    for derived in (alone.Dup(), alone.Split(0), alone.Create(alone.group), alone.Create_cart([1])):
        alone.reset()
        derived.Allreduce(np.zeros(2), np.zeros(2))
        derived.sendrecv("to myself", dest=0, source=0)
        assert [name for name, _ in alone.collectives] == ["Allreduce"]
        assert alone.messages == []


def test_persistent_collectives_count_when_created():
    alone = counting.CountingComm(MPI.COMM_SELF)
    alone.Allreduce_init(np.zeros(2), np.zeros(2)).Free()
    assert [name for name, _ in alone.collectives] == ["Allreduce_init"]
