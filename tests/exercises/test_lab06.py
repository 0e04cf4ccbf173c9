import contextlib
import json
from collections import Counter

import lab_cells
import numpy as np
import pytest
from labs import ThreeWays
from mpi4py import MPI

from labkit.exercises.engine import launches
from labkit.exercises.labs import on_ranks
from labkit.mpi import counting
from labkit.mpi.launch import run_ranks
from labkit.testbed.testbed import SLEEP_WHILE_WAITING
from labkit_author import sources


class TestExercises(ThreeWays):
    lab = "06"
    on_ranks = frozenset({1, 2, 4})

    @classmethod
    def make_student(cls, folder):
        """The lab up to its exercises: chunks.py from the lab."""
        write(folder, "chunks")
        return super().make_student(folder)


def write(folder, *scripts):
    """Write some of the lab's scripts."""
    (folder / "work").mkdir(exist_ok=True)
    for cell in sources.solved(sources.read(sources.find("06"))).cells:
        head, _, text = cell.source.partition("\n")
        if head in [f"%%writefile work/{script}.py" for script in scripts]:
            (folder / head.split()[-1]).write_text(text)


@pytest.mark.slow
def test_a_solution_passes_when_launched_alone(student, capsys):
    """As a student runs it, unlike the answers in `engine/test_on_ranks.py`, which share launches."""
    student.check(2, student.answer(2))
    assert "Exercise 2 · passed." in capsys.readouterr().out


@pytest.mark.slow
def test_the_check_accepts_the_colleagues_ring(tmp_path, monkeypatch):
    """As the lab says: only the picture shows that its ranks take turns."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "chunks", "colleague")
    launches.check(on_ranks("06")[2], "work/colleague.py")


# --- the recording, and the model ---

N, BYTES = 4, 40_000


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """The recordings of a ring, a ring whose ranks take turns, a wrong one, and four servers."""
    folder = tmp_path_factory.mktemp("recordings")
    write(folder, "chunks", "servers", "ring", "colleague", "travel")
    ring = (folder / "work/ring.py").read_text()
    (folder / "work/wrong.py").write_text(ring.replace("me + 1 - step", "me - step"))

    def run(module, method="ring"):
        arguments = ("servers", module, method, BYTES // 4, "out.json")
        with contextlib.chdir(folder):
            run_ranks(N, "work/travel.py", *arguments, threads=1, env=SLEEP_WHILE_WAITING, show=False)
        return json.loads((folder / "out.json").read_text())

    return {name: run(name) for name in ("ring", "colleague", "wrong")} | {"servers": run("ring", "n servers")}


def rounds_of(recording):
    return lab_cells.functions("06", "rounds_of")["rounds_of"](recording["messages"])


def test_a_recording_has_each_message_of_the_ring(recordings):
    sent = sorted((source, dest, size, chunk) for source, dest, size, chunk, *_ in recordings["ring"]["messages"])
    chunks = {rank: [(rank - step) % N for step in range(2 * (N - 1))] for rank in range(N)}
    assert sent == sorted((rank, (rank + 1) % N, BYTES // N, chunk) for rank in range(N) for chunk in chunks[rank])
    assert all(began < ended for *_, began, ended in recordings["ring"]["messages"])
    assert not recordings["ring"]["wrong"]


def test_the_picture_of_a_wrong_ring_differs(recordings):
    def sent(name):
        return sorted(message[:4] for message in recordings[name]["messages"])

    assert sent("wrong") != sent("ring") == sent("colleague")
    assert recordings["wrong"]["wrong"]
    assert not recordings["colleague"]["wrong"]
    assert [len(messages) for messages in rounds_of(recordings["ring"])] == [N] * 2 * (N - 1)
    assert [len(messages) for messages in rounds_of(recordings["colleague"])] == [1] * N * 2 * (N - 1)


def test_servers_push_in_one_round_and_pull_in_the_next(recordings):
    pairs = [(a, b) for a in range(N) for b in range(N) if a != b]
    assert [sorted(messages) for messages in rounds_of(recordings["servers"])] == [
        [(*pair, BYTES // N) for pair in pairs]
    ] * 2


def test_predictions_are_bytes_over_rates():
    names = {"Counter": Counter, "latency": 1.0, "bandwidth": 1_000.0, "adding": 10_000.0}
    predict = lab_cells.functions("06", "predict", **names)["predict"]
    step = [(rank, (rank + 1) % N, 500) for rank in range(N)]
    assert predict([step] * 6, 20_000) == pytest.approx(2 + 6 * 1.5)
    assert predict([step], 0, {"to 2": 250}) == pytest.approx(1 + 2)
    fast = dict.fromkeys([f"{side} {rank}" for side in ("from", "to") for rank in range(N)], 10_000)
    assert predict([step], 0, fast, (0, 0, 1, 1)) == pytest.approx(1 + 0.5)
    assert predict([[(0, 2, 500), (1, 3, 500)]], 0, fast, (0, 0, 1, 1)) == pytest.approx(1 + 1)


# --- counting ---


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


EXCHANGES = """
import json
import numpy as np
from mpi4py import MPI
from labkit.mpi import CountingComm

ranks = CountingComm(MPI.COMM_WORLD)
other, mine, theirs = 1 - ranks.rank, np.zeros(6), np.zeros(6)
ranks.Sendrecv(mine[2:], other, 3, theirs, other, 3)  # as positions, without a status
status = MPI.Status()
if ranks.rank:
    ranks.send("text", dest=0, tag=5)
    ranks.Send([mine[4:], MPI.DOUBLE], 0)
else:
    assert ranks.recv(tag=5, status=status) == "text"
    assert status.source == 1
    request = ranks.Irecv(theirs, MPI.ANY_SOURCE)
    request.Wait()
ranks.Barrier()
messages = [(m.source, m.dest, m.tag, m.offset, m.began <= m.ended) for m in ranks.timeline()]
if not MPI.COMM_WORLD.rank:
    print(json.dumps(sorted(messages)))
"""


@pytest.mark.slow
def test_a_timeline_matches_sends_and_receives_of_all_kinds(tmp_path, monkeypatch):
    (tmp_path / "exchanges.py").write_text(EXCHANGES)
    monkeypatch.chdir(tmp_path)
    run = run_ranks(2, "exchanges.py", threads=1, show=False)
    sent = [(0, 1, 3, 16, True), (1, 0, 0, 32, True), (1, 0, 3, 16, True), (1, 0, 5, 0, True)]
    assert [tuple(message) for message in json.loads(run.lines[0][-1])] == sent
