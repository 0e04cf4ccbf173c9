"""Exclusive use of CPU cores: each run borrows cores that no other run has, whichever user started it.

A CPU is lent to the process that has bound a Unix socket to the CPU's name in Linux's abstract namespace (unix(7)).
Only one process can have a name; binding never blocks; and the kernel frees the name as soon as its holder ends, even
by SIGKILL. Lock files, one per core, would need a folder that all users share, protected against links, pipes and
unreadable files that others put there. A name has no owner, mode or content, and as the socket does not listen, no one
can connect to it.

Only the process that requests a run holds the names: its children do not inherit the sockets (PEP 446), so nothing that
a rank leaves behind can keep cores. If that process is killed, mpirun and the ranks die within moments
(`labkit.system.lifetime`). `LENT_VARIABLE` tells ranks which CPUs they already have: a run inside a rank divides those,
and never waits.

Names belong to a network namespace, so containers with separate networks do not see each other's runs. Runs started
without this kit are not seen either. Holding all names on purpose makes other runs unbound; it does not block them.
"""

import contextlib
import errno
import os
import random
import socket
import time
from collections.abc import Iterable, Mapping

from labkit.system.machine import siblings

LENT_VARIABLE = "LABKIT_LENT_CPUS"  # tells ranks which CPUs their run has borrowed

NAME_PREFIX = "labkit-cpu"  # the prefix of the sockets' names, before the CPU's number
MAX_TRIES = 20  # another process that looks for free cores holds them all for a moment
MAX_PAUSE_S = 0.05  # the longest pause between two tries

Core = tuple[int, ...]  # the CPUs of one core: SMT siblings are lent together


class Loan:
    """Cores that this process holds until it closes the loan, or ends.

    Attributes
    ----------
    free : tuple of tuple of int
        The cores that no other run has.
    failure : str
        The reason why the kernel binds no names here, so that free cores are unknown; empty if it does.
    """

    def __init__(self, cores: Iterable[Core], lent: Iterable[int] = ()) -> None:
        self.failure = ""
        self._held: dict[int, socket.socket] = {}
        self.free = tuple(core for core in cores if set(core) <= set(lent) or self._take(core))

    def _take(self, core: Core) -> bool:
        """Take all CPUs of a core, including any that this process may not use; return whether they were free."""
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
        """Release the cores without any of these CPUs."""
        for core in self.free:
            if not set(core) & set(cpus):
                self._release(core)

    def close(self) -> None:
        """Release all cores."""
        self.keep_only(())


def _bind(name: str) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        bound = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        bound.bind(name)
        on_failure.pop_all()
    return bound


def borrow(cores: Iterable[Core], minimum: int, environ: Mapping[str, str] = os.environ) -> Loan:
    """Borrow all free cores among these; if they are fewer than `minimum`, list them but hold none.

    Parameters
    ----------
    cores : iterable of tuple of int
        The cores that this process may use.
    minimum : int
        The number of cores that the run needs.
    environ : mapping of str to str
        The environment; in a rank, it lists the CPUs that the run has borrowed.
    """
    lent = {int(cpu) for cpu in environ.get(LENT_VARIABLE, "").split(",") if cpu.isdecimal()}
    for wait in (*(random.uniform(0, MAX_PAUSE_S) for _ in range(MAX_TRIES - 1)), 0):
        loan = Loan(cores, lent)
        if len(loan.free) >= minimum:
            break
        loan.close()
        time.sleep(wait)
    return loan
