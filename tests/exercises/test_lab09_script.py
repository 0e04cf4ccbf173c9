"""Lab 09's script on 1 to 4 ranks: equal centroids, one process's objective, each pixel once, one picture."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from labkit.mpi.failure import RankError
from labkit.mpi.launch import run_ranks
from labkit_author import sources

HEIGHT, WIDTH, COLOURS, ITERATIONS = 41, 53, 7, 15  # 2,173 pixels: uneven shares for 2, 3 and 4 ranks
MARK = "REPORT "  # MPI may write to stderr too
DRIVER = """\
import json, sys
import numpy as np
from kmeans import main
from mpi4py import MPI

begin, centroids, labels = main(sys.argv[1:])
reports = {"begin": begin.tolist(), "centroids": centroids.tolist(), "labels": labels.tolist()}
print("REPORT", json.dumps(reports | {"type": str(labels.dtype)}), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The lab's modules and scripts, written as its notebook writes them, and a small picture."""
    folder = tmp_path_factory.mktemp("lab09")
    work = folder / "work"
    work.mkdir()
    notebook = sources.read(sources.find("09"))
    solved = {n: e.solution for n, e in sources.exercises(notebook).items()}
    helpers = "%%writefile work/kmeans_helpers.py\n"
    cell = next(cell.source for cell in notebook.cells if cell.source.startswith(helpers))
    (work / "kmeans_helpers.py").write_text(cell.removeprefix(helpers))
    scripts = {4: "spmd.py", 5: "kmeans.py"}
    for number, name in scripts.items():
        (work / name).write_text(solved[number].partition("\n")[2] + "\n")
    (work / "pieces.py").write_text("\n\n".join(["import daal4py as d4p", solved[3], solved[2]]))
    (work / "driver.py").write_text(DRIVER)
    down, right = np.mgrid[0:HEIGHT, 0:WIDTH]
    smooth = np.stack([40 + 4 * down, 250 - 3 * right - down, 128 + 100 * np.sin(right / 7)], axis=2)
    noisy = smooth + np.random.default_rng(0).normal(0, 8, smooth.shape)
    np.save(work / "photo.npy", np.clip(noisy, 0, 255).astype(np.uint8))
    return folder


def run(folder, ranks, *arguments, photo="photo.npy", script="driver.py", out="out-{ranks}"):
    out = folder / "work" / out.format(ranks=ranks)
    result = run_ranks(
        ranks,
        f"work/{script}",
        *("--photo", folder / "work" / photo, "--colours", COLOURS, "--iterations", ITERATIONS, "--out", out),
        *arguments,
        threads=1,
        cwd=folder,
        show=False,
        timeout=120,
    )
    reports = [line.removeprefix(MARK) for lines in result.lines for line in lines if line.startswith(MARK)]
    return [json.loads(report) for report in reports], out


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(folder, request):
    """Reports of each rank, the folder of the output, and the picture's pixels."""
    reports, out = run(folder, request.param)
    assert len(reports) == request.param
    return reports, out, np.load(folder / "work" / "photo.npy").reshape(-1, 3).astype(np.float64)


def test_all_ranks_hold_the_same_centroids(ranks):
    reports, out, _ = ranks
    for rank in reports[1:]:
        np.testing.assert_array_equal(rank["begin"], reports[0]["begin"])
        np.testing.assert_array_equal(rank["centroids"], reports[0]["centroids"])
    assert json.loads((out / "log.json").read_text())["spread"] == 0.0


def test_ranks_find_the_centroids_of_one_process(ranks):
    import daal4py as d4p  # a second

    reports, out, pixels = ranks
    begin = np.array(reports[0]["begin"])
    batch = d4p.kmeans(COLOURS, ITERATIONS, accuracyThreshold=0).compute(pixels, begin)
    np.testing.assert_allclose(reports[0]["centroids"], batch.centroids, rtol=1e-9)
    reported = json.loads((out / "log.json").read_text())["objective"]
    assert math.isclose(reported, batch.objectiveFunction.item(), rel_tol=1e-9)
    assert math.isclose(reported, squares(pixels, batch.centroids).min(axis=1).sum(), rel_tol=1e-9)


def test_every_pixel_is_labelled_once_with_its_nearest_centroid(ranks):
    reports, out, pixels = ranks
    counts = [len(rank["labels"]) for rank in reports]
    assert sum(counts) == HEIGHT * WIDTH
    assert max(counts) - min(counts) <= 1
    assert json.loads((out / "log.json").read_text())["pixels"] == counts
    assert {rank["type"] for rank in reports} == {"uint8"}
    labels = np.concatenate([rank["labels"] for rank in reports])
    away = squares(pixels, np.array(reports[0]["centroids"]))
    np.testing.assert_allclose(away[np.arange(len(pixels)), labels], away.min(axis=1), rtol=1e-12)


def test_the_picture_has_the_palettes_colours_in_place(ranks):
    reports, out, _ = ranks
    labels = np.concatenate([rank["labels"] for rank in reports])
    with Image.open(out / "photo.png") as image:
        assert image.mode == "P"
        picture = np.asarray(image.convert("RGB"))
    colours = np.rint(reports[0]["centroids"]).astype(np.uint8)
    np.testing.assert_array_equal(picture, colours[labels].reshape(HEIGHT, WIDTH, 3))


def test_only_rank_0_writes(folder):
    """Each rank gets its own folder to write to."""
    (folder / "work" / "apart.py").write_text(
        "import sys\nfrom mpi4py import MPI\nfrom kmeans import main\n"
        "main([argument.format(rank=MPI.COMM_WORLD.rank) for argument in sys.argv[1:]])\n"
    )
    run(folder, 3, script="apart.py", out="apart-{{rank}}")
    written = sorted(path.parent.name for path in (folder / "work").glob("apart-*/*"))
    assert written == ["apart-0", "apart-0"]  # picture and log


def test_the_script_runs_by_itself(folder):
    _, out = run(folder, 2, "--threads", 1, script="kmeans.py", out="own")
    log = json.loads((out / "log.json").read_text())
    assert log["threads"] == [1, 1]
    assert log["cpus"] >= 1
    assert log["seconds"]["fit"] > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.zeros((1, 2, 3), np.uint8), "each rank needs a pixel for each colour"),
        (lambda: np.zeros((3, 5, 3), np.uint8), "each rank needs a pixel for each colour"),
        (lambda: np.tile(np.uint8([0, 255]), 900).reshape(20, 30, 3), "fewer than 7 different colours"),
    ],
    ids=["fewer pixels than ranks", "fewer than colours on a rank", "fewer colours"],
)
def test_input_that_would_crash_or_hang_daal4py_gives_a_one_line_error(folder, make, message):
    np.save(folder / "work" / "odd.npy", make())
    with pytest.raises(RankError) as failure:
        run(folder, 3, photo="odd.npy", out="odd")
    assert message in failure.value.lines[-1]
    assert not any("Traceback" in line for line in failure.value.lines)


def test_a_share_of_one_colour_is_accepted(folder):
    photo = np.load(folder / "work" / "photo.npy")
    photo[: HEIGHT // 2] = 255  # a white sky: all of rank 0's pixels, and more
    np.save(folder / "work" / "sky.npy", photo)
    reports, _ = run(folder, 3, photo="sky.npy", out="sky")
    assert reports[0]["centroids"] == reports[2]["centroids"]


def squares(pixels, centroids):
    return ((pixels[:, None] - centroids[None]) ** 2).sum(axis=2)
