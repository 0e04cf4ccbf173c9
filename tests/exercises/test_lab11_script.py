"""Lab 11's scripts on ranks: all schemes and PyTorch train identically, and traffic matches the lab's formulas."""

import ast
import json
from pathlib import Path

import pytest

from labkit.exercises import catalogue
from labkit.mpi import run_ranks, torch_ranks
from labkit.testbed import Testbed
from labkit_author import sources

MAGIC = "%%writefile "
LAYERS, WIDTH, ROWS, STEPS = 3, 50, 24, 4  # rows of all ranks together
SCHEMES = ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The lab's scripts, solved, written as its notebook writes them."""
    folder = tmp_path_factory.mktemp("lab11")
    (folder / "work").mkdir()
    notebook = sources.read(sources.find("11"))
    for cell in sources.solved(notebook).cells:
        if cell.source.startswith(MAGIC):
            first, _, text = cell.source.partition("\n")
            (folder / first.removeprefix(MAGIC).strip()).write_text(text + "\n")
    for name in ("ddp", "zero1", "fsdp"):
        (folder / "work" / f"own_{name}.py").write_text((folder / "work" / f"{name}.py").read_text())
    (folder / "work" / "buckets.py").write_text(sources.exercises(notebook)[1].solution)
    return folder


def train(folder: Path, ranks: int, *schemes: str, testbed: Testbed | None = None, width: int = WIDTH) -> dict:
    """Return the report of sharded_steps.py, with its lists by scheme."""
    flags = {"layers": LAYERS, "width": width, "rows": ROWS // ranks, "steps": 2 * STEPS - 1}
    arguments = [f"--{name}={value}" for name, value in flags.items()] + ["--wires", "--costs"] * bool(testbed)
    runs = json.dumps([(scheme, 2, 0.0) for scheme in schemes])
    script = folder / "work" / "sharded_steps.py"
    run_ranks(ranks, script, *arguments, "--runs", runs, threads=1, cwd=folder, network=testbed, show=False)
    report = json.loads((folder / "work" / "sharded_steps.json").read_text())
    return report | {key: dict(zip(schemes, report[key], strict=True)) for key in ("seconds", "sent", "losses")}


def count_in_torch(folder: Path, ranks: int, testbed: Testbed | None = None, width: int = WIDTH) -> dict:
    """Return the counts of torch_steps.py for each PyTorch method, on `ROWS` rows in all."""
    flags = {"layers": LAYERS, "width": width, "few": ROWS // ranks, "count": 2 * STEPS, "rows": 1, "rounds": 0}
    arguments = [f"--{name}={value}" for name, value in flags.items()] + ["--wires"] * bool(testbed)
    script, env = folder / "work" / "torch_steps.py", torch_ranks.variables(testbed)
    run_ranks(ranks, script, *arguments, threads=1, cwd=folder, env=env, network=testbed, show=False, timeout=200)
    return json.loads((folder / "work" / "torch_steps.json").read_text())["counted"]


def lab_cell(text: str) -> dict:
    """Return the names defined by the first statement of the lab's cell that begins with `text`."""
    cells = sources.read(sources.find("11")).cells
    source = next(cell.source for cell in cells if cell.source.startswith(text))
    names: dict = {}
    exec(ast.unparse(ast.parse(source).body[0]), names)
    return names


def test_all_schemes_train_identically_on_any_number_of_ranks(folder):
    alone = train(folder, 1, "alone")["losses"]["alone"]
    assert sum(alone[STEPS:]) < sum(alone[:STEPS])  # each step has other rows
    for ranks in (2, 3):
        losses = train(folder, ranks, *SCHEMES)["losses"]
        for scheme in SCHEMES:
            assert losses[scheme] == pytest.approx(alone, rel=1e-5), scheme


@pytest.mark.usefixtures("wires_can_be_made")
@pytest.mark.parametrize("ranks", [2, 4])
def test_traffic_on_wires_matches_the_formulas(folder, ranks):
    width = 256
    share, weights = (ranks - 1) / ranks, 4 * LAYERS * width**2
    with Testbed(ranks, "1 Gbit/s") as testbed:
        report = train(folder, ranks, *SCHEMES, testbed=testbed, width=width)
    for scheme, passes in zip(SCHEMES, (2, 2, 2, 3 - 1 / LAYERS), strict=True):
        assert report["sent"][scheme] == pytest.approx(passes * share * weights, rel=0.03), scheme
    sizes = {name: [int(size) for size in costs] for name, costs in report["costs"].items()}
    assert sizes == {"average": [2], "gather": [1], "scatter": [1], "exchange": [LAYERS]}
    for costs in report["costs"].values():
        for alone, together, _ in costs.values():
            assert alone > 0
            assert together > 0


@pytest.mark.parametrize(
    ("plan", "seconds"),
    [
        ([("compute", 3.0)], 3),
        ([("send", 0, "s", 1), ("wait", 0)], 2),  # alone
        ([("send", 0, "s", 1), ("send", 1, "s", 1), ("wait", 1)], 4),  # one after the other
        ([("send", 0, "s", 1), ("compute", 3.0), ("wait", 0)], 4),  # at 3/4 of the speed, for as long as the send takes
        ([("send", 0, "s", 1), ("compute", 6.0), ("wait", 0)], 7),  # the rest at full speed
        ([("send", 0, "s", 1), ("compute", 1.5), ("wait", 0)], 3),  # half of the send is left, alone
        ([("compute", 1.0), ("send", 0, "s", 1), ("compute", 0.0), ("wait", 0), ("wait", 0)], 3),
    ],
)
def test_the_time_of_a_plan_follows_from_its_sends_and_computing(plan, seconds):
    step_seconds = lab_cell("def step_seconds")["step_seconds"]
    assert step_seconds(plan, lambda send, size: (2.0, 4.0, 1.0)) == pytest.approx(seconds)
    later = 0.5 * any(action == "send" for action, *_ in plan)
    free = step_seconds(plan, lambda send, size: (2.0, 2.0, 0.0))
    assert free <= step_seconds(plan, lambda send, size: (2.0, 2.0, 0.0), delay=0.5) <= free + 2 * later


@pytest.mark.usefixtures("pytorch_is_here")
@pytest.mark.parametrize("ranks", [2, 3])
def test_pytorch_trains_identically(folder, ranks):
    """With each method that averages float32, also if rows are split into micro-batches."""
    losses = train(folder, ranks, "DDP")["losses"]["DDP"]
    counted = count_in_torch(folder, ranks)
    assert len(counted) == 10
    for method in counted.keys() - {"nothing sent", "FSDP, bfloat16"}:
        assert counted[method]["losses"] == pytest.approx(losses, rel=1e-5), method
    assert counted["FSDP, bfloat16"]["losses"] == pytest.approx(losses, rel=0.1)


@pytest.mark.usefixtures("pytorch_is_here", "wires_can_be_made")
def test_pytorch_traffic_matches_the_lab(folder):
    """With Gloo, whose reduce-scatter is a whole all-reduce; on two nodes, (n - 1)/n is a half."""
    width = 256
    with Testbed(2, "1 Gbit/s") as testbed:
        counted = count_in_torch(folder, 2, testbed, width)
    passes = lab_cell("PASSES = {")["PASSES"]
    assert passes.keys() == counted.keys() - {"nothing sent"}
    for method, (gathers, averages, size) in passes.items():
        formula = (gathers + 2 * averages) / 2 * size * LAYERS * width**2
        assert counted[method]["sent"] == pytest.approx(formula, rel=0.05), method


@pytest.mark.usefixtures("pytorch_is_here")
def test_the_first_bucket_of_ddp_holds_1_mib_unless_the_size_is_set(folder):
    counted = count_in_torch(folder, 2, width=512)  # 1 MiB per layer
    assert counted["DDP"]["buckets"] == [2**20, (LAYERS - 1) * 2**20]
    assert counted["DDP, bucket_cap_mb=4"]["buckets"] == [LAYERS * 2**20]
    weights = LAYERS * 512**2
    assert 20 < counted["DDP"]["most"] / weights < 24  # weights, gradients, buckets, Adam's two; and Gloo's own
    whole_gradients = counted["FSDP, 4 micro-batches, no sync"]["most"] - counted["FSDP, 4 micro-batches"]["most"]
    assert whole_gradients / weights > 0.5  # of the 4 - 4/n, some of which replace gathered weights at the peak


@pytest.mark.usefixtures("pytorch_is_here")
def test_lab_07s_script_and_its_twin_train_identically(folder):
    names = {"catalogue": catalogue, "json": json}
    for cell in sources.read(sources.find("11")).cells:
        if cell.source.startswith(("MAGIC = ", "def write_lab_07")):
            exec(cell.source, names)
    names["write_lab_07"](folder / "work" / "lab-07")
    env = torch_ranks.variables()
    env["PYTHONPATH"] = f"{folder / 'work' / 'lab-07'}:{env['PYTHONPATH']}"
    flags = (2, "--digits", 512, "--epochs", 2, "--warmup", 0)
    script = folder / "work" / "two_scripts.py"
    run_ranks(2, script, *flags, threads=1, cwd=folder, env=env, show=False, timeout=300)
    histories = json.loads((folder / "work" / "two_scripts.json").read_text())
    for horovod, twin in zip(histories["Horovod"], histories["DDP"], strict=True):
        assert [epoch["loss"] for epoch in twin] == pytest.approx([epoch["loss"] for epoch in horovod], rel=1e-3)


def train_digits(folder: Path, out: Path, ranks: int, *arguments: object) -> dict:
    script, env = folder / "work" / "mnist_ddp.py", torch_ranks.variables()
    run_ranks(ranks, script, "--out", out, *arguments, threads=1, cwd=folder, env=env, show=False, timeout=200)
    return json.loads((out / "log.json").read_text())


@pytest.mark.usefixtures("pytorch_is_here")
def test_digits_are_learned_with_equal_weights_on_all_ranks(folder, tmp_path):
    log = train_digits(folder, tmp_path, 3, "--digits", 4000, "--batch", 32, "--epochs", 3)
    assert (log["ranks"], log["spread"]) == (3, 0.0)
    assert [entry["epoch"] for entry in log["history"]] == [1, 2, 3]
    assert log["history"][-1]["accuracy"] > 0.8


@pytest.mark.usefixtures("pytorch_is_here")
def test_a_resumed_run_ends_like_an_uninterrupted_one(folder, tmp_path):
    sizes = ("--digits", 1000, "--batch", 50)
    whole = train_digits(folder, tmp_path / "whole", 2, *sizes, "--epochs", 3)
    train_digits(folder, tmp_path / "stopped", 2, *sizes, "--epochs", 1)
    rest = train_digits(folder, tmp_path / "stopped", 2, *sizes, "--epochs", 3, "--resume")
    assert [entry["epoch"] for entry in rest["history"]] == [2, 3]
    assert rest["history"][-1]["loss"] == pytest.approx(whole["history"][-1]["loss"], rel=1e-4)
    assert rest["history"][-1]["accuracy"] == pytest.approx(whole["history"][-1]["accuracy"], abs=0.01)
