"""Each run gets cores that no other has, whoever started that one, and however it ends."""

import contextlib
import os
import signal
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from labkit.system import cores
from labkit.system.cores import LENT_VARIABLE, borrow

FOUR = ((0,), (1,), (2,), (3,))
SMT = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.fixture(autouse=True)
def of_this_test(monkeypatch):
    """Have names that nobody else uses, and a machine whose every CPU is a core."""
    monkeypatch.setattr(cores, "NAME_PREFIX", f"labkit-test-{uuid.uuid4().hex}-")
    monkeypatch.setattr(cores, "siblings", lambda cpu: {cpu})


@pytest.fixture
def hold():
    """Have another process borrow cores, of another user's if wanted, and give it."""
    with contextlib.ExitStack() as until_over:

        def start(*cpus: int, user: int = 0) -> psutil.Process:
            ready, tell = os.pipe()
            if not (child := os.fork()):
                try:
                    if user:
                        os.setuid(user)
                    loan = borrow(tuple((cpu,) for cpu in cpus), len(cpus), {})
                    os.write(tell, b"%d" % len(loan.free))
                    signal.pause()
                finally:
                    os._exit(1)
            process = psutil.Process(child)
            until_over.callback(end, process)
            os.close(tell)
            with os.fdopen(ready, "rb") as told:
                assert told.read(1) == b"%d" % len(cpus)
            return process

        yield start


def end(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        process.wait()


def free(*, of=FOUR, least=1, environ=None) -> tuple:
    with contextlib.closing(borrow(of, least, environ or {})) as loan:
        assert not loan.failure
        return loan.free


def test_all_are_free_and_free_again_afterwards():
    assert free() == free() == FOUR


def test_what_another_process_has_is_not_free_until_it_is_killed(hold):
    holder = hold(0, 2)
    assert free() == ((1,), (3,))
    end(holder)
    assert free() == FOUR


@pytest.mark.skipif(os.geteuid() != 0, reason="CORES OF ANOTHER USER NOT TESTED HERE: only root can be another user")
def test_what_another_user_has_is_not_free(hold):
    hold(1, user=65534)
    assert free() == ((0,), (2,), (3,))


def test_a_run_in_the_same_process_is_another():
    with contextlib.closing(borrow(FOUR[:2], 1, {})):
        assert free() == FOUR[2:]


def test_what_is_not_kept_is_free_for_others():
    with contextlib.closing(borrow(SMT, 1, {})) as loan:
        loan.keep_only([1, 5])
        assert free(of=SMT) == (SMT[0], *SMT[2:])


def test_too_few_are_reported_and_none_is_held(hold):
    hold(0, 1, 2)
    with contextlib.closing(borrow(FOUR, 2, {})) as loan:
        assert loan.free == ((3,),)
        assert free() == ((3,),)


def test_someone_who_has_all_on_purpose_makes_nobody_wait(hold):
    hold(0, 1, 2, 3)
    assert free(least=1) == ()


def test_one_hardware_thread_has_its_whole_core(monkeypatch):
    monkeypatch.setattr(cores, "siblings", lambda cpu: {cpu % 4, cpu % 4 + 4})
    with contextlib.closing(borrow(((4,),), 1, {})):  # this process may not use CPU 0, its sibling
        assert free(of=SMT) == SMT[1:]
        assert free(of=((0,), (1,))) == ((1,),)


def test_who_does_not_see_the_siblings_does_not_get_them(monkeypatch):
    with contextlib.closing(borrow(((6,),), 1, {})):  # in a container where /sys is hidden
        monkeypatch.setattr(cores, "siblings", lambda cpu: {cpu % 4, cpu % 4 + 4})
        assert free(of=SMT) == (*SMT[:2], SMT[3])


@pytest.mark.parametrize(("lent", "expected"), [("0,1", FOUR[:2]), ("0", ((0,),)), ("", ()), ("x,-1,,²", ())])
def test_a_rank_has_what_its_run_has_borrowed(hold, lent, expected):
    hold(0, 1, 2, 3)
    assert free(environ={LENT_VARIABLE: lent}) == expected


def test_half_a_core_that_was_lent_is_not_all_of_it(hold):
    hold(4)
    assert free(of=SMT, environ={LENT_VARIABLE: "0"}) == SMT[1:]


def test_what_is_started_meanwhile_holds_nothing():
    with contextlib.closing(borrow(FOUR, 4, {})):
        child = subprocess.Popen(["sleep", "100"], close_fds=False)
    try:
        assert free() == FOUR
    finally:
        child.kill()
        child.wait()


def test_where_the_kernel_lends_no_names_all_count_as_free(monkeypatch):
    def refuse(name: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cores, "_bind", refuse)
    with contextlib.closing(borrow(FOUR, 4, {})) as loan:
        assert (loan.free, loan.failure) == (FOUR, "Permission denied")


def test_many_at_once_never_have_the_same_core_and_all_get_theirs():
    machine, had = tuple((cpu,) for cpu in range(8)), set()

    def one(_: int) -> None:
        with contextlib.closing(borrow(machine, 2, {})) as loan:
            mine = {core[0] for core in loan.free[:2]}
            loan.keep_only(mine)
            assert len(mine) == 2
            assert not mine & had
            had.update(mine)
            names = Path("/proc/net/unix").read_text()
            assert all(f"@{cores.NAME_PREFIX}{cpu}\n" in names for cpu in mine)
            had.difference_update(mine)

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(one, range(100)))) == 100
