import functools
import json
import sys
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from guide_flags import GUIDE
from tfrecord_sets import example, jpeg, write_set

from labkit.data import synthetic
from labkit.mpi.failure import RankError
from labkit.mpi.launch import run_ranks
from labkit.system import processes
from labkit.train import log, loop

TRAINED, VALIDATED = 96, 37
SMALL = ("--model=resnet8", "--batch_size=8", "--iter_unit=batch", "--log_every=1", "--lr_warmup_epochs=1")
# The program; one rank gets a signal as soon as the log has reached a step.
PROGRAM = """\
import os, pathlib, signal, sys, threading, time
from labkit.train import log
from labkit.train.__main__ import main

def send(results, rank, step, number):
    while not any(record["step"] >= step for record in log.read(results)):
        time.sleep(0.005)
    os.kill(os.getpid(), number)

if len(sys.argv) > 1 and sys.argv[1].startswith("SIG"):
    name, rank, step, results = sys.argv.pop(1).split(",")
    if os.environ["PMI_RANK"] == rank:
        args = (pathlib.Path(results), int(rank), int(step), getattr(signal, name))
        threading.Thread(target=send, args=args, daemon=True).start()
main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "set"
    synthetic.write(folder, train=TRAINED, validation=VALIDATED, size=32, shards=(3, 2))
    return folder


def train_in(folder, data, n, results, *flags, signalled=None):
    """Run the program on n ranks; return rank 0's lines and the log's records."""
    (folder / "train.py").write_text(PROGRAM)
    signal_args = [f"{signalled},{results}"] if signalled else []
    options = (*SMALL, f"--data_dir={data}", f"--results_dir={results}", *flags)
    run = run_ranks(n, "train.py", *signal_args, *options, cwd=folder, show=False, timeout=200)
    return [line for line in run.lines[0] if "absl" not in line], log.read(folder / results)


@pytest.fixture
def train(data, tmp_path):
    """Run the program in the test's folder."""
    return functools.partial(train_in, tmp_path, data)


# Two epochs of 96 images; with 2 ranks × 8 images per step, 12 steps.
TWO_EPOCHS = "--num_iter=2 --iter_unit=epoch --use_cosine_lr --evaluate_every=1 --checkpoint_every=4 --deterministic"
TWO_EPOCHS = TWO_EPOCHS.split()


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Return an uninterrupted run of two ranks: its folder, rank 0's lines, the log's records."""
    folder = tmp_path_factory.mktemp("whole")
    return folder / "run", *train_in(folder, data, 2, "run", *TWO_EPOCHS)


def weights(results, step):
    reader = tf.train.load_checkpoint(str(results / f"checkpoints/step-{step:08d}/state"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "/" in name}


def steps(records):
    return [record["step"] for record in records if record["event"] == "train"]


def test_after_a_rank_is_killed_two_ranks_resume_with_the_same_result(train, whole, tmp_path):
    with pytest.raises(RankError) as error:
        train(2, "killed", *TWO_EPOCHS, signalled="SIGKILL,1,5")
    assert error.value.rank == 1
    _, records = train(2, "killed", *TWO_EPOCHS)
    assert steps(records) == list(range(1, 13))
    resumed, expected = weights(tmp_path / "killed", 12), weights(whole[0], 12)
    assert resumed.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(resumed[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_on_a_stop_signal_all_ranks_save_and_exit_and_the_same_command_continues(train, tmp_path):
    with pytest.raises(RankError) as error:
        train(2, "run", "--num_iter=5000", "--mode=train", signalled="SIGTERM,1,5")
    assert error.value.status == loop.STOPPED_STATUS
    records = log.read(tmp_path / "run")
    stopped = records[-1]
    assert stopped["event"] == "stop"
    assert steps(records)[-1] == stopped["step"] < 5000
    total = stopped["step"] + 3
    lines, records = train(2, "run", f"--num_iter={total}")
    assert f"continuing after step {stopped['step']}" in lines
    assert steps(records) == list(range(1, total + 1))
    assert records[-1]["event"] == "evaluate"


def test_every_validation_image_counts_once_on_any_number_of_ranks(train, whole, single):
    _, records = train(3, whole[0], "--mode=evaluate")
    evaluations = [record for record in records if record["event"] == "evaluate"][1:]  # of 2 ranks, 1 rank, 3 ranks
    assert [record["images"] for record in evaluations] == [VALIDATED] * 3
    first = evaluations[0]
    for name in ("top1", "top5"):
        assert len({record[name] for record in evaluations}) == 1
        assert first[name] * VALIDATED == pytest.approx(round(first[name] * VALIDATED))
    assert first["top1"] <= first["top5"]


def test_the_log_is_complete(whole):
    _, lines, records = whole
    trained = [record for record in records if record["event"] == "train"]
    assert steps(records) == list(range(1, 13))
    assert [record["step"] for record in records if record["event"] == "evaluate"] == [6, 12]
    for record in trained:
        assert record["total_loss"] == pytest.approx(record["cross_entropy"] + record["l2_loss"])
    assert [record["images_per_second"] for record in trained[:2]] == [None, None]  # while warming up
    assert all(record["images_per_second"] > 0 for record in trained[2:])
    rates = [record["learning_rate"] for record in trained]
    assert rates[0] == 0
    assert max(rates) == rates[6] == pytest.approx(0.256 * 16 / 256)  # after an epoch's warm-up
    assert all(a > b for a, b in pairwise(rates[6:]))
    assert sum(line.startswith("step ") for line in lines) == len(trained)


def test_it_learns_on_two_ranks(tmp_path, train):
    synthetic.write(tmp_path / "more", train=800, validation=200, size=32, shards=(4, 2))
    flags = ("--batch_size=32", "--iter_unit=epoch", "--num_iter=8", "--lr_init=0.8", "--lr_warmup_epochs=2")
    _, records = train(2, "run", f"--data_dir={tmp_path / 'more'}", *flags, "--use_cosine_lr", "--least_area=0.5")
    trained = [record["cross_entropy"] for record in records if record["event"] == "train"]
    assert np.mean(trained[-10:]) < 0.7 * np.mean(trained[:10])
    assert records[-1]["top1"] > 0.4  # chance level is 0.1


CASES = {"plain": [], "lars, fp16": ["--optimizer=lars", "--compression=fp16"], "bf16": ["--precision=bf16"]}
STEP = """\
import json
import sys
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from labkit.models.networks import Network
from labkit.models.optimizers import Momentum
from labkit.system import flags
from labkit.train import loop
from labkit.train.config import TrainConfig

hvd.init()
cases = json.loads(sys.argv[1])


def train(batch, accumulate, extra):  # returns the losses of three steps, and the weights after them
    config = flags.parse(TrainConfig, [f"--batch_size={batch}", f"--accumulate={accumulate}", *extra], "train")
    network = Network("mnist")  # without batch norms, which would see different batches
    optimizer = Momentum(network.weights, 0.9, 1e-3, lars=config.optimizer == "lars")
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(96, 28, 28, 1)).astype("float32"), rng.integers(10, size=96)
    batches = list(zip(np.split(images, 96 // batch), np.split(labels, 96 // batch)))
    local = iter(batches[hvd.rank() :: hvd.size()])
    step = loop.make_train_step(config, network, optimizer)
    losses = [float(hvd.allreduce(step(local, 0.05))) for _ in range(3)]
    assert not list(local)
    for w in network.weights:
        gathered = hvd.allgather(w[None])
        assert np.array_equal(gathered[0], gathered[-1])
    return [losses, *(w.numpy() for w in network.weights)]


for batch, accumulate in json.loads(sys.argv[2]):
    results = {
        f"{case}/{number}": value
        for case, extra in cases.items()
        for number, value in enumerate(train(batch, accumulate, extra))
    }
    if hvd.rank() == 0:
        np.savez(f"{hvd.size()}-{batch}-{accumulate}.npz", **results)
"""


def test_ranks_and_accumulated_batches_match_one_large_batch(tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    for ranks, batches in ((1, [(32, 1)]), (2, [(16, 1), (4, 4)])):
        run_ranks(ranks, "step.py", json.dumps(CASES), json.dumps(batches), cwd=tmp_path, show=False)
    reference, *others = (np.load(tmp_path / f"{name}.npz") for name in ("1-32-1", "2-16-1", "2-4-4"))
    for other in others:
        for name, value in reference.items():
            tolerance = 1e-5 if name.startswith("plain") else 5e-3
            np.testing.assert_allclose(
                other[name], value, rtol=tolerance, atol=tolerance * np.abs(value).max(), err_msg=name
            )


def error_line(*flags, cwd):
    completed = processes.run([sys.executable, "-m", "labkit.train", *flags], cwd=cwd)
    assert completed.status == 2, completed.lines
    line = completed.lines[-1]
    assert line.startswith("lab: ")
    assert not any("Traceback" in line for line in completed.lines)
    return line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--modl=resnet8"], "No such option: --modl (Possible options: --mode, --model). See python -m labkit.train"),
        (["--data_dir=nowhere"], "--data_dir=nowhere is not a folder"),
    ],
)
def test_invalid_flags_are_one_line_errors(tmp_path, flags, message):
    assert message in error_line(*flags, cwd=tmp_path)


# Runs the program several times with different arguments, since TensorFlow takes seconds to load.
SEVERAL = """\
import json, sys
from labkit.train.__main__ import main

for args in json.loads(sys.argv[1]):
    sys.argv[1:] = args
    try:
        main()
    except SystemExit as end:
        print(json.dumps({"status": end.code}), flush=True)
"""
TO_30 = ("--num_iter=30", "--checkpoint_every=7", "--deterministic", "--mode=train")


@pytest.fixture(scope="module")
def single(data, whole, tmp_path_factory):
    """Return runs of one rank, by name: their folder, exit status and lines."""
    folder = tmp_path_factory.mktemp("single")
    synthetic.write(folder / "damaged", train=16, validation=4, size=32, shards=(1, 1))
    file = folder / "damaged" / "train-00000-of-00001"
    file.write_bytes(file.read_bytes().replace(b"\xff\xd8\xff", b"GIF"))
    pixels = jpeg(np.zeros((32, 32, 3)))
    write_set(folder / "unknown", [example(pixels, 10), example(pixels, 11)], files=2)  # 11 is not the network's
    with pytest.raises(RankError, match="SIGKILL"):
        train_in(folder, data, 1, "killed", *TO_30, signalled="SIGKILL,0,17")
    small = [*SMALL, f"--data_dir={data}", "--num_iter=2"]
    runs = {
        "nothing": [*small, "--mode=evaluate"],
        "explodes": [*small, "--lr_init=1e30", "--lr_warmup_epochs=0", "--num_iter=20"],
        "other": [*small, f"--results_dir={whole[0]}"],
        "evaluated": [*small, f"--results_dir={whole[0]}", "--mode=evaluate"],
        "damaged": [*small, "--data_dir=damaged", "--num_iter=4"],
        "unknown": [*small, "--data_dir=unknown", "--num_iter=4", "--batch_size=1"],
        "run_results": [*GUIDE, *small],  # the guide's folder; later flags override earlier ones, so it is small
        "uninterrupted": [*small, *TO_30],
        "killed": [*small, *TO_30],
    }
    named = [[f"--results_dir={name}", *flags] for name, flags in runs.items()]
    (folder / "several.py").write_text(SEVERAL)
    lines = processes.run([sys.executable, "several.py", json.dumps(named)], cwd=folder, timeout=200).lines
    assert not any("Traceback" in line for line in lines)
    ends = [number for number, line in enumerate(lines) if line.startswith('{"status"')]
    assert len(ends) == len(runs), lines
    return {
        name: (folder / name, json.loads(lines[end])["status"], lines[begin:end])
        for name, begin, end in zip(runs, [0, *ends], ends, strict=False)
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "there is nothing to evaluate in nothing: train first"),
        ("explodes", "lower --lr_init or lengthen --lr_warmup_epochs"),
        ("other", "run/checkpoints is from a run with global_batch 16, but this run has 8: name another"),
        ("damaged", "train-00000-of-00001, record"),
        ("unknown", "train-00001-of-00002, record 0 has label 11, but the network's labels are 0 to 10"),
    ],
)
def test_fatal_problems_are_one_line_errors(single, name, message):
    _, status, lines = single[name]
    assert status == 2
    (line,) = (line for line in lines if "lab: " in line)
    assert line.startswith("lab: ")
    assert message in line


def test_the_guides_flags_train(single):
    """The flags use fp16 with loss scaling, and XLA."""
    folder, status, _ = single["run_results"]
    records = log.read(folder)
    assert status == 0
    assert steps(records) == [1, 2]
    assert records[-1]["event"] == "evaluate"


def test_a_killed_run_of_one_rank_resumes_bit_identically(single):
    (whole, *_), (killed, _, lines) = single["uninterrupted"], single["killed"]
    resumed_after = next(int(line.split()[-1]) for line in lines if line.startswith("continuing after step"))
    assert resumed_after in (14, 21, 28)
    expected, records = log.read(whole), log.read(killed)
    assert steps(records) == list(range(1, 31))
    assert [r["cross_entropy"] for r in records] == [r["cross_entropy"] for r in expected]
    name = "checkpoints/step-00000030/state.data-00000-of-00001"
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
