"""Each run gets cores that no other run has, whichever user started it and however it ends."""

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
from labkit.system.cores import RESERVED_VARIABLE, reserve_free

FOUR = ((0,), (1,), (2,), (3,))
SMT = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.fixture(autouse=True)
def isolated_names(monkeypatch):
    """Use names that nothing else uses, on a machine where every CPU is a core."""
    monkeypatch.setattr(cores, "NAME_PREFIX", f"labkit-test-{uuid.uuid4().hex}-")
    monkeypatch.setattr(cores, "siblings", lambda cpu: {cpu})


@pytest.fixture
def hold():
    """Return a function that makes another process, optionally of another user, reserve cores and returns it."""
    with contextlib.ExitStack() as until_over:

        def start(*cpus: int, user: int = 0) -> psutil.Process:
            ready, writer = os.pipe()
            if not (child := os.fork()):
                try:
                    if user:
                        os.setuid(user)
                    reservation = reserve_free(tuple((cpu,) for cpu in cpus), len(cpus), {})
                    os.write(writer, b"%d" % len(reservation.free))
                    signal.pause()
                finally:
                    os._exit(1)
            process = psutil.Process(child)
            until_over.callback(end, process)
            os.close(writer)
            with os.fdopen(ready, "rb") as reader:
                assert reader.read(1) == b"%d" % len(cpus)
            return process

        yield start


def end(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        process.wait()


def free(*, of=FOUR, minimum=1, environ=None) -> tuple:
    with contextlib.closing(reserve_free(of, minimum, environ or {})) as reservation:
        return reservation.free


def test_cores_of_another_process_are_not_free_until_it_is_killed(hold):
    assert free() == free() == FOUR
    holder = hold(0, 2)
    assert free() == ((1,), (3,))
    end(holder)
    assert free() == FOUR


@pytest.mark.skipif(os.geteuid() != 0, reason="CORES OF ANOTHER USER NOT TESTED HERE: only root can be another user")
def test_cores_of_another_user_are_not_free(hold):
    hold(1, user=65534)
    assert free() == ((0,), (2,), (3,))


def test_two_runs_in_one_process_share_no_cores():
    with contextlib.closing(reserve_free(FOUR[:2], 1, {})):
        assert free() == FOUR[2:]


def test_released_cores_are_free_for_others():
    with contextlib.closing(reserve_free(SMT, 1, {})) as reservation:
        reservation.keep_only([1, 5])
        assert free(of=SMT) == (SMT[0], *SMT[2:])


def test_too_few_free_cores_are_reported_but_not_held(hold):
    hold(0, 1, 2)
    with contextlib.closing(reserve_free(FOUR, 2, {})) as reservation:
        assert reservation.free == ((3,),)
        assert free() == ((3,),)


def test_one_hardware_thread_reserves_its_whole_core(monkeypatch):
    monkeypatch.setattr(cores, "siblings", lambda cpu: {cpu % 4, cpu % 4 + 4})
    with contextlib.closing(reserve_free(((4,),), 1, {})):  # this process may not use CPU 0, its sibling
        assert free(of=SMT) == SMT[1:]
        assert free(of=((0,), (1,))) == ((1,),)


@pytest.mark.parametrize(("inherited", "expected"), [("0,1", FOUR[:2]), ("0", ((0,),)), ("", ()), ("x,-1,,²", ())])
def test_a_rank_may_use_the_cores_of_its_run(hold, inherited, expected):
    hold(0, 1, 2, 3)
    assert free(environ={RESERVED_VARIABLE: inherited}) == expected


def test_half_a_reserved_core_is_not_the_whole_core(hold):
    hold(4)
    assert free(of=SMT, environ={RESERVED_VARIABLE: "0"}) == SMT[1:]


def test_child_processes_hold_no_cores():
    with contextlib.closing(reserve_free(FOUR, 4, {})):
        child = subprocess.Popen(["sleep", "100"], close_fds=False)
    try:
        assert free() == FOUR
    finally:
        child.kill()
        child.wait()


def test_concurrent_runs_never_share_a_core_and_all_get_one():
    machine, in_use = tuple((cpu,) for cpu in range(8)), set()

    def run(_: int) -> None:
        with contextlib.closing(reserve_free(machine, 2, {})) as reservation:
            cpus = {core[0] for core in reservation.free[:2]}
            reservation.keep_only(cpus)
            assert len(cpus) == 2
            assert not cpus & in_use
            in_use.update(cpus)
            names = Path("/proc/net/unix").read_text()
            assert all(f"@{cores.NAME_PREFIX}{cpu}\n" in names for cpu in cpus)
            in_use.difference_update(cpus)

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(run, range(100)))) == 100
