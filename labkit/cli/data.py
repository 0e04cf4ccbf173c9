"""`lab data`: fetch, check and generate the labs' data."""

import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.system import paths

app = typer.Typer(help="Fetch, check and generate the labs' data.", no_args_is_help=True)


@app.command(epilog="Example: `./lab data fetch`")
def fetch() -> None:
    """Download MNIST, which the labs then use instead of 5,000 of its digits. Do it before the workshop.

    It goes into `data/`, or the folder that LAB_DATA names; an incomplete or wrong download is never kept.
    """
    from labkit.data import mnist

    print(mnist.fetch())


@app.command(epilog="Example: `./lab data status`")
def status() -> None:
    """List the data files and whether they are intact.

    Looks in `data/`, or in the folder that LAB_DATA names. Exit code 1 if a file is damaged.
    """
    from labkit.data import mnist

    data_files = mnist.status()
    for file in data_files:
        print(f"{file.name:32} {file.state:10} {file.detail}{f': {file.fix}' if file.fix else ''}")
    raise SystemExit(1 if any(file.state == "damaged" for file in data_files) else 0)


@app.command(epilog="Example: `./lab data tfrecords work/synthetic --train 5000`")
def tfrecords(
    folder: Annotated[Path | None, typer.Argument(help="the folder to write", show_default="data/synthetic")] = None,
    train: Annotated[int, typer.Option(help="number of training images")] = 2000,
    validation: Annotated[int, typer.Option(help="number of validation images")] = 500,
    size: Annotated[int, typer.Option(help="height and width of the images, in pixels")] = 64,
    seed: Annotated[int, typer.Option(help="seed of the images; the same seed gives the same files")] = 0,
) -> None:
    """Generate a small synthetic data set of ten classes, in the layout of ImageNet's TFRecords, for lab 08.

    An existing set with the same counts, size and seed is kept.
    """
    from labkit.data import synthetic

    # TensorFlow computes nothing here, so its notices (oneDNN's too) are noise. Errors are still printed.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    folder = folder or paths.writable(paths.DATA) / "synthetic"
    new = synthetic.write(folder, train, validation, size, seed=seed)
    verb = "wrote" if new else "already there:"
    print(f"{verb} {train:,} training and {validation:,} validation images in {paths.shown(folder)}")
    print("Next: ./lab start 08")
