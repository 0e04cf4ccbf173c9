import json
from pathlib import Path

import lab_cells
import pytest
from labs import ThreeWays

from labkit.measure import recorded
from labkit.mpi import run_ranks, torch_ranks
from labkit.testbed import Testbed

LAYERS, WIDTH, RANKS = 4, 64, 4
PROGRAMS = {  # by name: the scheme, its file and its function
    "DDP": ("DDP", "work/ddp.py", "ddp_backward"),
    "ZeRO-1": ("ZeRO-1", "work/leaky.py", "zero2_backward"),
    "ZeRO-2": ("ZeRO-2", "work/zero2.py", "zero2_backward"),
    "FSDP": ("FSDP", "work/fsdp.py", "fsdp_backward"),
}


def write(folder):
    """Write the lab's scripts, with the kit's answers."""
    (folder / "work" / "checked").mkdir(parents=True)
    lab_cells.write_files("11", folder)
    (folder / "work/checked/ddp_plan.py").write_text((folder / "work/ddp_plan.py").read_text())


class TestExercises(ThreeWays):
    lab = "11"
    on_ranks = frozenset({2, 3, 4})

    @classmethod
    def make_student(cls, folder):
        write(folder)
        return super().make_student(folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    return tmp_path


def count(name, ranks, width=WIDTH, network=None):
    arguments = LAYERS, width, 2, *PROGRAMS[name]
    run_ranks(ranks, "work/counted.py", *arguments, threads=1, network=network, show=False)
    return json.loads(Path("work/counted.json").read_text())


@pytest.mark.slow
def test_all_schemes_train_alike_and_all_ranks_agree(folder):
    for ranks in (1, 2, 4):
        reports = {name: count(name, ranks) for name in PROGRAMS}
        for name, report in reports.items():
            assert report["losses"] == pytest.approx(reports["DDP"]["losses"], rel=1e-5)
            assert report["apart"] == (None if name == "FSDP" else 0)


@pytest.mark.slow
@pytest.mark.usefixtures("wires_can_be_made")
def test_bytes_on_wires_follow_the_formulas_and_the_leak_is_measured(folder):
    formulas = lab_cells.functions("11", "FORMULAS", LAYERS=LAYERS)["FORMULAS"]
    with Testbed(RANKS, "200 Mbit/s") as network:
        reports = {name: count(name, RANKS, 256, network) for name in PROGRAMS}
    for name, (_, sent) in formulas.items():
        assert reports[name]["sent"] == pytest.approx(sent(RANKS), rel=0.02), name
    assert reports["ZeRO-1"]["peak"] > reports["ZeRO-2"]["peak"] > reports["FSDP"]["peak"]


@pytest.mark.slow
@pytest.mark.parametrize("spare", ["", "own", "other's"])
def test_both_lanes_of_a_step_are_recorded(folder, spare):
    runs = [("in turn", *PROGRAMS["FSDP"], False), ("overlapped", *PROGRAMS["FSDP"], True)]
    options = {"runs": runs, "spare": spare, "rows": 8, "layers": LAYERS, "width": WIDTH, "in_bucket": 2, "steps": 1}
    run_ranks(2, "work/timed.py", json.dumps(options), threads=1, show=False)
    for (log,) in json.loads(Path("work/timed.json").read_text()).values():
        kinds = [bar[0] for bar in log]
        assert kinds.count("wire") == kinds.count("send") == kinds.count("wait") == 3 * LAYERS - 1
        assert kinds.count("compute") == 3 * LAYERS + 1  # with the loss
        assert all(0 <= began <= ended for _, _, began, ended, _ in log)


@pytest.mark.parametrize(
    ("actions", "on_core", "end"),
    [
        ([("compute", "a"), ("send", 0), ("wait", 0)], {}, 5),
        ([("send", 0), ("compute", "a"), ("wait", 0)], {}, 3),
        ([("send", 0), ("send", 1), ("compute", "a"), ("wait", 1)], {}, 4),  # one after the other
        ([("send", 0), ("compute", "a"), ("wait", 0), ("compute", "b")], {}, 4),
        ([("send", 0), ("compute", "a"), ("wait", 0), ("compute", "b")], {0: 2}, 6),
    ],
)
def test_the_simulator_rearranges_bars(actions, on_core, end):
    simulate = lab_cells.functions("11", "simulate")["simulate"]
    ms = {("compute", "a"): 3.0, ("compute", "b"): 1.0, ("wire", 0): 2.0, ("wire", 1): 2.0}
    assert max(bar[3] for bar in simulate(actions, ms, on_core)) == end


@pytest.mark.slow
def test_averaged_weights_learn_also_if_they_are_averaged_rarely(folder):
    run_ranks(4, "work/local.py", 32, 1, 8, threads=1, show=False)
    losses = {tuple(row[:2]): row[4] for row in json.loads(Path("work/local.json").read_text())}
    assert losses["shuffled", 8] < 1.05 * losses["shuffled", 1]
    assert losses["by class", 8] > 1.1 * losses["by class", 1]


@pytest.mark.slow
@pytest.mark.usefixtures("pytorch_is_here")
def test_pytorch_sends_what_the_table_says(folder):
    passes = lab_cells.functions("11", "PASSES")["PASSES"]
    env = torch_ranks.variables()
    run_ranks(2, "work/in_torch.py", 3, 512, 8, 12, threads=1, env=env, show=False, timeout=200)
    found = json.loads(Path("work/in_torch.json").read_text())
    assert found.keys() == passes.keys() == recorded("11-torch").data["found"].keys()
    for name, (gathers, averages, size) in passes.items():
        assert found[name]["sent"] == pytest.approx((gathers + 2 * averages) / 2 * size / 4, rel=0.1, abs=0.05), name
        assert name == "nothing sent" or found[name]["apart"] == 0
    assert found["DDP"]["buckets"] == [2**20, 2 * 2**20]  # the first is smaller, unless the size is set
    assert found["DDP, bucket_cap_mb=4"]["buckets"] == [3 * 2**20]


def test_a_processs_tcp_bytes_are_counted(folder, monkeypatch):
    import importlib
    import socket

    monkeypatch.syspath_prepend(str(folder / "work"))
    bytes_sent = importlib.import_module("tcp").bytes_sent
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = bytes_sent()
        with socket.create_connection(server.getsockname()) as sender, server.accept()[0] as receiver:
            sender.sendall(bytes(100_000))
            received = 0
            while received < 100_000:
                received += len(receiver.recv(100_000))
            files = len([*Path("/proc/self/fd").iterdir()])
            assert bytes_sent() - before >= 90_000
            assert len([*Path("/proc/self/fd").iterdir()]) == files
