"""`lab data`: fetch and check the labs' data."""

import typer

app = typer.Typer(help="Fetch and check the labs' data.", no_args_is_help=True)


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
