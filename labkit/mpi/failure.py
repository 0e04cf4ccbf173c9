"""The error of a failed run of ranks: which rank failed first, how, and what it had printed."""

import math
import signal

from labkit.mpi.mpirun import Rank
from labkit.system import processes
from labkit.system.errors import LabError

QUOTED_LINES = 15  # last lines of a failed rank in its error


class RankError(LabError):
    """A run in which a rank failed, or that timed out.

    Attributes
    ----------
    rank : int or None
        The rank that failed first; None if unknown, or after a timeout.
    lines : tuple of str
        The last lines it printed; after a timeout, the state of each rank in a line.
    """

    def __init__(
        self,
        message: str,
        lines: tuple[str, ...],
        rank: int | None = None,
        mpi: tuple[str, ...] = (),
    ) -> None:
        super().__init__("\n  ".join([message, *(line[:500] for line in (*lines, *mpi[-QUOTED_LINES:]))]))
        self.lines, self.rank = lines, rank


def first_failure(ranks: list[Rank], abort_status: int | None, remarks: tuple[str, ...]) -> RankError | None:
    """Return the error of the rank that failed first; None if all succeeded."""
    if not any(rank.started or rank.lines for rank in ranks):
        return RankError("mpirun started no rank. It reported:", remarks[-QUOTED_LINES:], mpi=quote_mpi(ranks))
    # A rank that reports no end was killed with its runner, possibly by mpirun; its script may have finished.
    failed = [rank for rank in ranks if rank.exit_code or (rank.exit_code is None and not rank.finished_at)]
    failed.sort(key=_ended_at)
    if not failed and abort_status is None:
        return None
    culprit = next((rank for rank in failed if rank.aborted), None) or _first_killed(failed)
    if culprit is None and abort_status is not None and not any(rank.exit_code for rank in failed):
        lines = tuple(f"rank {rank.number}: {rank.lines[-1]}" for rank in ranks if rank.lines)
        text = f"A rank called MPI_Abort with exit status {abort_status}. The last line of each:"
        return RankError(text, lines, mpi=quote_mpi(ranks))
    return _rank_error(culprit or failed[0], ranks)


def _first_killed(failed: list[Rank]) -> Rank | None:
    """Return the first rank that a signal killed at about the time of the first failure, which then did not cause it.

    While a process is being killed, other ranks already fail to reach it, and report that before it is reported killed;
    or they crash in MPI, but never with SIGKILL. Ranks that mpirun kills report nothing.
    """
    early = [rank for rank in failed if _ended_at(rank) - _ended_at(failed[0]) < 1]
    by_signal = [rank for rank in early if rank.exit_code and rank.exit_code < 0 and rank.exit_code != -signal.SIGABRT]
    return min(by_signal, key=lambda rank: rank.exit_code != -signal.SIGKILL, default=None)


def _ended_at(rank: Rank) -> float:
    return math.inf if rank.ended_at is None else rank.ended_at


def _rank_error(rank: Rank, ranks: list[Rank]) -> RankError:
    code = -signal.SIGKILL if rank.exit_code is None and rank.gone_at else rank.exit_code
    if code is None:
        how = "ended without a message"
    else:
        how = f"{'failed with' if code > 0 else 'was'} {processes.describe_exit(code)}"
    when = "" if rank.ended_at is None else f", {rank.ended_at:.1f} s after the start"
    lines = tuple(rank.lines[-QUOTED_LINES:])
    last = "Its last lines:" if lines else "It had printed nothing."
    text = f"Rank {rank.number} {how}{when}; all were ended. {last}"
    return RankError(text, lines, rank.number, quote_mpi(ranks))


def timeout_error(timeout: float, ranks: list[Rank], now: float, remarks: tuple[str, ...]) -> RankError:
    """Return the error for a timeout, with the state of each rank."""

    def state(rank: Rank) -> str:
        last = f"its last line: {rank.lines[-1]}" if rank.lines else "it had printed nothing"
        if rank.finished_at or rank.exit_code == 0:
            return f"rank {rank.number} had finished after {rank.finished_at or rank.ended_at:.1f} s; {last}"
        if not rank.started:
            return f"rank {rank.number} had not started"
        return f"rank {rank.number} was silent for {now - rank.last_output_at:.1f} s; {last}"

    return RankError(
        f"Timed out after {timeout:g} s, and all ranks were ended. Did one wait in a collective operation that another "
        "never reached? If not, increase timeout=.",
        (*map(state, ranks), *(() if all(rank.started for rank in ranks) else remarks[-QUOTED_LINES:])),
        mpi=quote_mpi(ranks),
    )


def quote_mpi(ranks: list[Rank]) -> tuple[str, ...]:
    """Return the lines of MPI libraries on the ranks."""
    return tuple(f"[{rank.number}] MPI: {line}" for rank in ranks for line in rank.mpi_lines)
