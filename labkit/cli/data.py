"""`lab data`: fetch the labs' data."""

import typer

app = typer.Typer(help="Fetch the labs' data.", no_args_is_help=True)


@app.command(epilog="Example: `./lab data fetch`")
def fetch() -> None:
    """Download MNIST, which the labs then use instead of 5,000 of its digits. Do it before the workshop.

    It goes into `data/`, or the folder that LAB_DATA names; an incomplete or wrong download is never kept.
    """
    from labkit.data import mnist

    print(mnist.fetch())
