"""Cores lent to one run at a time: each run borrows its own, whoever started the others.

A CPU is lent to the process that has bound a Unix socket to the CPU's name in Linux's abstract namespace (unix(7)).
One process alone can have a name; asking for it never waits; and the kernel frees it as soon as its holder ends, even
by SIGKILL. A lock file for each core would need a folder that all users share, and protection against what others put
there: links, pipes, files that cannot be read. A name has no owner, mode or content, and as the socket does not listen,
nobody can connect to it.

The process that asks for a run holds the names, and it alone: what it starts does not inherit the sockets (PEP 446), so
nothing that a rank leaves behind can keep cores. Should that process be killed, mpirun and the ranks die within
moments (`labkit.system.lifetime`). Ranks learn from `LENT_VARIABLE` which CPUs are theirs already: a run inside a rank
shares out those, and has nobody to wait for.

Names belong to a network namespace: containers with networks of their own do not see each other's runs. Neither are
runs seen that others start without this kit. Whoever holds all names on purpose makes others run unbound, not wait.
"""

import contextlib
import errno
import os
import random
import socket
import time
from collections.abc import Iterable, Mapping

from labkit.system.machine import siblings

LENT_VARIABLE = "LABKIT_LENT_CPUS"  # the variable that tells ranks which CPUs their run has borrowed

NAME_PREFIX = "labkit-cpu"  # the beginning of the sockets' names, before the CPU's number
MAX_TRIES = 20  # tries: another process that looks for free cores has them all for a moment
MAX_PAUSE_S = 0.05  # the longest pause between two tries

Core = tuple[int, ...]  # the CPUs of one core: SMT siblings are lent together


class Loan:
    """Cores that are this process's until it closes the loan, or ends.

    Attributes
    ----------
    free : tuple of tuple of int
        The cores that nobody else has.
    failure : str
        The reason why the kernel binds no names here, so that nobody knows which cores are free; empty when it does.
    """

    def __init__(self, cores: Iterable[Core], own: Iterable[int] = ()) -> None:
        self.failure = ""
        self._held: dict[int, socket.socket] = {}
        self.free = tuple(core for core in cores if set(core) <= set(own) or self._take(core))

    def _take(self, core: Core) -> bool:
        """Take all CPUs of a core, also those that this process may not use; return whether they were free."""
        for cpu in sorted(set(core).union(*map(siblings, core))):
            try:
                self._held[cpu] = _bind(f"\0{NAME_PREFIX}{cpu}")
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    self._release(core)
                    return False
                self.failure = error.strerror or str(error)
        return True

    def _release(self, core: Core) -> None:
        for cpu in set(core).union(*map(siblings, core)) & self._held.keys():
            self._held.pop(cpu).close()

    def keep_only(self, cpus: Iterable[int]) -> None:
        """Release the cores that have none of these CPUs."""
        for core in self.free:
            if not set(core) & set(cpus):
                self._release(core)

    def close(self) -> None:
        """Release all of them."""
        self.keep_only(())


def _bind(name: str) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        bound = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        bound.bind(name)
        on_failure.pop_all()
    return bound


def borrow(cores: Iterable[Core], minimum: int, environ: Mapping[str, str] = os.environ) -> Loan:
    """Borrow all of these cores that are free; when those are fewer than `minimum`, name them, but hold none.

    Parameters
    ----------
    cores : iterable of tuple of int
        The cores that this process may use.
    minimum : int
        The number of cores that the run needs.
    environ : mapping of str to str
        The variables, with those that its run has borrowed when this process is a rank.
    """
    own = {int(cpu) for cpu in environ.get(LENT_VARIABLE, "").split(",") if cpu.isdecimal()}
    for wait in (*(random.uniform(0, MAX_PAUSE_S) for _ in range(MAX_TRIES - 1)), 0):
        loan = Loan(cores, own)
        if len(loan.free) >= minimum:
            break
        loan.close()
        time.sleep(wait)
    return loan
