"""`python -m labkit.cli`: the commands of `./lab`, by this Python."""

from labkit.cli import main

main()
