"""What keeps a hub from coming up, as far as it can be seen in a moment: before anything is started or measured.

It imports nothing that takes long.
"""

import os
import socket
import sys
from pathlib import Path

from labkit.system import account_access, addresses
from labkit.system.errors import LabError

SYSTEM_PYTHON = Path("/usr/bin/python3")  # the distribution's, which all may read


def look(address: str, port: int, board_port: int, has_accounts: bool) -> None:
    """Refuse what would be found after minutes.

    Parameters
    ----------
    address : str
        Where students will reach the hub.
    port, board_port : int
        Its port, and that of the room's board; 0 for none.
    has_accounts : bool
        Whether students will have accounts of their own.

    Raises
    ------
    LabError
        When one of them can't be had, or other accounts can't read this kit and its Python; with the way out.
    """
    refuse_address(address)
    refuse_taken(address, port, board_port)
    if has_accounts and (problem := account_access.problem()):
        raise LabError(f"students' accounts can't use this environment: {problem}. {way_out()}")


def refuse_address(address: str) -> None:
    """Refuse an address at which nobody can listen."""
    try:
        if not address.strip("0123456789"):  # which the system takes for an address, and a browser for another
            raise ValueError
        socket.getaddrinfo(address, None)
    except (OSError, ValueError) as error:  # UnicodeError is one
        raise LabError(
            f"--address is one of this machine's, such as {addresses.own()}: not {address!r:.80}."
        ) from error


def refuse_taken(address: str, port: int, board_port: int) -> None:
    """Refuse an address that is not this machine's, and a port that is taken."""
    for number, option in ((port, "--port"), (board_port, "--board-port")):
        try:
            if number:
                addresses.listen(address, number).close()
        except OSError as error:
            raise LabError(
                f"cannot listen on {address}, port {number}: {os.strerror(error.errno or 0)}. Try another {option}."
            ) from error


def way_out() -> str:
    """Return how an environment is made that all accounts can use."""
    python = SYSTEM_PYTHON.with_name(f"python{sys.version_info.major}.{sys.version_info.minor}")
    system = f"Where all may read the kit itself, `UV_PYTHON={python} ./lab setup` will do. " if python.exists() else ""
    return f"{system}In any case: {account_access.REMEDY}."
