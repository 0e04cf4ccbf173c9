"""`lab data`: the files that the labs read."""

import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.system import paths

app = typer.Typer(help="Fetch and check the data that the labs read.", no_args_is_help=True)


@app.command(epilog="Example: `./lab data fetch`")
def fetch() -> None:
    """Fetch MNIST, so that the labs use it instead of the built-in digits. Do it before the day.

    It goes into `data/`, or the folder in the variable LAB_DATA: only a whole file, whose checksum is right.
    """
    from labkit.data import mnist

    print(mnist.fetch())


@app.command(epilog="Example: `./lab data status`")
def status() -> None:
    """List the data files, and whether they are intact.

    They are looked for in `data/`, or the folder in the variable LAB_DATA. Exit code 1 when one is damaged.
    """
    from labkit.data import mnist

    data_files = mnist.status()
    for file in data_files:
        print(f"{file.name:32} {file.state:10} {file.detail}{f': {file.fix}' if file.fix else ''}")
    raise SystemExit(1 if any(file.state == "damaged" for file in data_files) else 0)


@app.command(epilog="Example: `./lab data tfrecords work/synthetic --train 5000`")
def tfrecords(
    folder: Annotated[Path | None, typer.Argument(help="the folder to make", show_default="data/synthetic")] = None,
    train: Annotated[int, typer.Option(help="how many images to train on")] = 2000,
    validation: Annotated[int, typer.Option(help="how many to evaluate on")] = 500,
    size: Annotated[int, typer.Option(help="their height and width, in pixels")] = 64,
    seed: Annotated[int, typer.Option(help="of the images; the same one gives the same files")] = 0,
) -> None:
    """Write a small synthetic set of ten classes, in the layout of ImageNet's TFRecords, for lab 08.

    What is there already, of the same numbers, size and seed, is kept.
    """
    from labkit.data import synthetic

    # TensorFlow computes nothing here, so its notices, of oneDNN too, are of no use. Errors are still printed.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    folder = folder or paths.own(paths.DATA) / "synthetic"
    new = synthetic.write(folder, train, validation, size, seed=seed)
    place = paths.shown(folder)
    print(f"{place}: {train:,} training and {validation:,} validation images{'' if new else ' are there already'}")
    print("Next: ./lab start 08")
