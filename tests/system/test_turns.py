"""One measurement in a slot at a time, first come, first served, however each ends; with real processes."""

import contextlib
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.system import load, locks, processes, slots, turns
from labkit.system.errors import LabError
from labkit.system.slots import Division

OWN = os.sched_getaffinity(0)
needs_two = pytest.mark.skipif(len(OWN) < 2, reason="TWO MEASURING SLOTS NOT TESTED HERE: they need two CPUs")
TIMEOUT_S = 30


@pytest.fixture
def divide(monkeypatch):
    """Divide this machine into so many slots of a CPU each, in a folder that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="lab slots ") as folder:
        Path(folder).chmod(0o755)
        place = Path(folder) / "slots"
        monkeypatch.setenv(slots.FOLDER_VARIABLE, str(place))
        monkeypatch.setattr(turns, "PATIENCE_S", 2 * TIMEOUT_S)  # on a busy machine, who is slow is not stopped

        def write(count: int = 1, limit_s: float = TIMEOUT_S) -> Path:
            cpus = sorted(OWN)[:count]
            slots.write(Division(tuple(OWN), tuple((cpu,) for cpu in cpus), 1, 8, limit_s), place)
            return place

        yield write


class Contender:
    """A process that takes a slot, writes when it enters and leaves and on which CPUs, and ends.

    Parameters
    ----------
    name : str
        What it writes.
    log : Path
        The file to write to.
    seconds : float
        For how long it has the slot.
    user : int
        The user that it becomes first, if not 0.
    """

    def __init__(self, name: str, log: Path, seconds: float = 0.0, user: int = 0) -> None:
        self.name, self._log = name, log
        writing = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            status = 1
            try:
                if user:
                    os.setgroups([])
                    os.setgid(user)
                    os.setuid(user)
                with turns.take():
                    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
                    os.write(writing, f"enter {name} {time.monotonic()} {cpus}\n".encode())
                    time.sleep(seconds)
                    os.write(writing, f"leave {name} {time.monotonic()} {cpus}\n".encode())
                status = 0
            except KeyboardInterrupt:
                status = 130
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writing)

    def has_entered(self) -> bool:
        return any(line[:2] == ["enter", self.name] for line in events(self._log))

    def wait(self) -> int:
        """Return its exit status, or minus the signal that ended it."""
        status = 0

        def has_ended() -> bool:
            nonlocal status
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            return bool(ended)

        assert processes.wait_until(has_ended, TIMEOUT_S)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


@pytest.fixture
def contend(tmp_path, divide):
    """Start contenders, each when the one before is in the queue or in a slot."""
    place = slots.folder()
    with contextlib.ExitStack() as until_over:

        def start(name: str, seconds: float = 0.0, user: int = 0) -> Contender:
            before = tickets(place)
            contender = Contender(name, tmp_path / "log", seconds, user)
            until_over.callback(contender.kill)
            assert processes.wait_until(lambda: contender.has_entered() or tickets(place) - before, TIMEOUT_S)
            time.sleep(0.02)  # the kernel dates files by its clock's ticks, of 10 ms at most
            return contender

        yield start


def tickets(place: Path) -> set[str]:
    return {path.name for path in (place / slots.QUEUE).glob("[!.]*")}


def events(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def intervals(log: Path) -> dict[str, list[tuple[float, float, str]]]:
    """Return when each slot was in use, and by whom: (entered, left, name) by CPUs, in their order."""
    found: dict[str, list[tuple[float, float, str]]] = {}
    left = {name: float(at) for what, name, at, _ in events(log) if what == "leave"}
    for what, name, at, cpus in events(log):
        if what == "enter":
            found.setdefault(cpus, []).append((float(at), left[name], name))
    return found


def order(log: Path) -> list[str]:
    return [name for what, name, *_ in events(log) if what == "enter"]


def assert_no_overlap(log: Path) -> None:
    for users in intervals(log).values():
        for (_, left, _), (entered, _, _) in itertools.pairwise(users):
            assert left <= entered


def is_free(place: Path, number: int = 0) -> bool:
    return not locks.is_locked(place / slots.slot_file(number))


def forever(contend: Callable[..., Contender]) -> Contender:
    return contend("holder", 1000)


# Taking turns


@pytest.mark.slow
def test_eight_on_one_slot_have_it_one_after_the_other_in_their_order(divide, contend, tmp_path):
    divide()
    holder = forever(contend)
    queue = [contend(str(number), 0.02) for number in range(8)]
    holder.kill()
    assert [one.wait() for one in queue] == [0] * 8
    assert order(tmp_path / "log") == ["holder", *map(str, range(8))]


@pytest.mark.slow
@needs_two
def test_eight_on_two_slots_never_overlap_and_nobody_is_overtaken_twice(divide, contend, tmp_path):
    place = divide(2)
    log = tmp_path / "log"
    queue = [contend(str(number), 0.3) for number in range(8)]
    assert [one.wait() for one in queue] == [0] * 8
    assert len(intervals(log)) == 2  # both slots were used
    assert_no_overlap(log)
    entered = list(map(int, order(log)))
    assert sorted(entered) == list(range(8))
    assert all(abs(number - at) < 2 for at, number in enumerate(entered))  # two that become free at once are a tie
    assert not tickets(place)


def test_a_slot_is_free_as_soon_as_its_holder_is_killed(divide, contend, tmp_path):
    place = divide()
    holder, waiter = forever(contend), contend("waiter")
    assert not is_free(place)
    holder.kill()
    assert waiter.wait() == 0


def test_a_killed_waiter_is_skipped(divide, contend, tmp_path):
    place = divide()
    holder, killed, waiter = forever(contend), contend("killed"), contend("waiter")
    killed.kill()
    holder.kill()
    assert waiter.wait() == 0
    assert order(tmp_path / "log") == ["holder", "waiter"]
    assert not tickets(place)


def test_a_stopped_waiter_is_passed_over_and_has_its_turn_later(divide, contend, monkeypatch, tmp_path):
    monkeypatch.setattr(turns, "PATIENCE_S", 0.2)
    divide()
    holder, stopped, waiter = forever(contend), contend("stopped"), contend("waiter")
    os.kill(stopped.pid, signal.SIGSTOP)
    holder.kill()
    assert waiter.wait() == 0
    os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.wait() == 0
    assert order(tmp_path / "log") == ["holder", "waiter", "stopped"]


def test_an_interrupted_waiter_leaves_the_queue(divide, contend, tmp_path):
    place = divide()
    holder, waiter = forever(contend), contend("waiter")
    os.kill(waiter.pid, signal.SIGINT)
    assert waiter.wait() == 130
    assert not tickets(place)
    holder.kill()
    assert order(tmp_path / "log") == ["holder"]


def test_a_notebooks_cell_that_is_interrupted_says_that_it_left_the_queue(divide, contend, monkeypatch, capsys):
    place = divide()
    forever(contend)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt), turns.take():
        pass
    assert "\rLeft the queue after " in capsys.readouterr().out
    assert not tickets(place)


def test_who_waits_goes_on_when_the_machine_is_no_longer_divided(divide, contend, tmp_path):
    place = divide()
    holder, waiter = forever(contend), contend("waiter")
    slots.remove(place)
    assert waiter.wait() == 0
    holder.kill()
    assert not place.exists()


def test_slots_in_use_are_not_divided_again(divide, contend):
    divide()
    forever(contend)
    with pytest.raises(LabError, match="in use"):
        divide()


# Different users


@pytest.fixture
def other_users():
    """Return two users that are not this one."""
    if os.geteuid():
        pytest.skip("TURNS OF DIFFERENT USERS WERE NOT TESTED HERE: only root can become another user")
    return 65533, 65534


def test_users_take_turns_in_their_order(divide, contend, other_users, tmp_path):
    one, other = other_users
    place = divide()
    holder = contend("holder", 1000, user=one)
    queue = [contend("a", 0.02, user=other), contend("b", 0.02), contend("c", 0.02, user=one)]
    holder.kill()
    assert [each.wait() for each in queue] == [0, 0, 0]
    assert order(tmp_path / "log") == ["holder", "a", "b", "c"]
    assert not tickets(place)


def test_a_user_can_neither_delete_nor_overtake_anothers_ticket(divide, contend, other_users, tmp_path):
    one, other = other_users
    place = divide()
    holder, waiter = forever(contend), contend("waiter", user=one)
    (ticket,) = (place / slots.QUEUE).glob("[!.]*")

    def refused(*actions: Callable[[], object]) -> int:
        child = os.fork()
        if not child:
            os.setuid(other)
            for number, action in enumerate(actions, start=1):
                with contextlib.suppress(PermissionError):
                    action()
                    os._exit(number)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    mine = place / slots.QUEUE / "0"
    allowed = refused(
        ticket.unlink,
        lambda: ticket.rename(mine),
        lambda: ticket.write_text("x"),
        lambda: os.utime(ticket),
        (place / slots.slot_file(0)).unlink,
        lambda: (place / slots.slot_file(0)).chmod(0o600),
        (place / slots.FILE).unlink,
        lambda: (place / slots.FILE).write_text("{}"),
    )
    assert allowed == 0
    # A locked file that is dated back, a link and a pipe in the queue are not before it.
    for make in (mine.touch, lambda: os.mkfifo(mine.with_name("1")), lambda: mine.with_name("2").symlink_to("/")):
        assert refused(make) == 1
    os.utime(mine, (0, 0))
    with mine.open() as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        holder.kill()
        assert waiter.wait() == 0


# In a turn


def test_all_threads_are_on_the_slots_cores_and_back_afterwards(divide):
    place = divide()
    over, masks = threading.Event(), {}

    def note(when: str) -> None:
        masks[when] = {
            os.sched_getaffinity(int(thread.name)) == {min(OWN)} for thread in Path("/proc/self/task").iterdir()
        }

    threads = [threading.Thread(target=over.wait, daemon=True)]
    threads[0].start()
    with turns.take():
        threads.append(threading.Thread(target=over.wait, daemon=True))
        threads[1].start()
        child = subprocess.Popen(["sleep", "60"])
        note("inside")
        assert not is_free(place)
        assert os.sched_getaffinity(child.pid) == {min(OWN)}
    assert masks["inside"] == {True}
    assert is_free(place)
    assert all(os.sched_getaffinity(thread.native_id) == OWN for thread in threads)
    assert os.sched_getaffinity(0) == os.sched_getaffinity(child.pid) == OWN
    child.kill()
    child.wait()
    over.set()


def test_processes_that_measure_too_are_moved_with_all_under_them(divide):
    divide()
    tree = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    pids = [tree.pid, int(tree.stdout.readline())]
    for also, inside in (((), OWN), ([tree.pid], {min(OWN)})):
        with turns.take(also):
            assert [os.sched_getaffinity(pid) for pid in pids] == [inside, inside]
        assert [os.sched_getaffinity(pid) for pid in pids] == [OWN, OWN]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    tree.communicate()


def test_what_a_holder_starts_uses_its_slot(divide):
    place = divide()
    code = (
        "import os; from labkit.system import load, locks, turns\n"
        "with turns.take(), load.watch(): print(turns.in_slot(), sorted(os.sched_getaffinity(0)))"
    )
    with load.watch(show=False):
        ticket_free = tickets(place)
        with turns.take():
            inner = processes.run([sys.executable, "-c", code], timeout=TIMEOUT_S)
        assert not is_free(place)  # the inner one gives nothing back
    assert inner.lines == (f"True {[min(OWN)]}",)
    assert not ticket_free
    assert is_free(place)


def test_a_killed_holders_slot_is_not_free_while_what_it_left_behind_runs(divide):
    place = divide()
    code = (
        "from labkit.system import processes, turns\n"
        "def say(line): print(line, flush=True)\n"
        "with turns.take(): processes.run(['sh', '-c', 'sleep 1000 & echo $!; wait'], on_line=say)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    left_behind = int(holder.stdout.readline())
    holder.kill()
    holder.communicate()
    assert not is_free(place)
    os.kill(left_behind, signal.SIGKILL)
    assert processes.wait_until(lambda: is_free(place), TIMEOUT_S)


def test_a_fork_that_ends_like_its_holder_gives_nothing_back(divide):
    place = divide()
    turn = turns.take()
    turn.__enter__()
    if not (child := os.fork()):
        try:
            turn.__exit__(None, None, None)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not is_free(place)
    turn.__exit__(None, None, None)
    assert is_free(place)


def test_a_slot_is_given_back_after_an_interrupt(divide):
    place = divide()
    with pytest.raises(KeyboardInterrupt), turns.take():
        signal.raise_signal(signal.SIGINT)
    assert is_free(place)
    assert os.sched_getaffinity(0) == OWN
    assert not turns.in_slot()


def test_a_measurement_beyond_the_limit_is_ended_with_one_line(divide):
    place = divide(limit_s=0.3)
    with pytest.raises(LabError) as ended, turns.take():
        time.sleep(TIMEOUT_S)
    assert str(ended.value).startswith("The measuring slot was given back after 0 s")
    assert "\n" not in str(ended.value)
    assert is_free(place)
    assert os.sched_getaffinity(0) == OWN


def test_what_goes_on_beyond_the_limit_does_so_on_other_cores(divide, monkeypatch, capsys):
    monkeypatch.setattr(turns, "GRACE_S", 0.2)
    place = divide(limit_s=0.2)
    with turns.take():
        deadline = time.monotonic() + TIMEOUT_S
        while not is_free(place) and time.monotonic() < deadline:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(0.01)
        assert is_free(place)
        assert os.sched_getaffinity(0) == OWN
    assert "its time limit" in capsys.readouterr().err


def test_without_slots_nothing_happens(divide, monkeypatch):
    monkeypatch.setattr(os, "sched_setaffinity", None)
    monkeypatch.setattr(turns, "_wait", None)

    def state() -> tuple[object, ...]:
        return len(list(Path("/proc/self/fd").iterdir())), dict(os.environ), threading.active_count()

    before = state()
    with turns.take():
        assert state() == before
        assert turns.inherited() == []
    assert not slots.folder().exists()


def test_a_damaged_division_is_one_line_for_whoever_measures(divide):
    (divide() / slots.FILE).write_text("{")
    with pytest.raises(LabError) as refused, load.watch():
        pass
    assert "\n" not in str(refused.value)


def test_a_slot_of_cores_that_this_process_may_not_use_is_refused_and_free(divide):
    place = divide()
    slots.write(Division(tuple(OWN), ((max(OWN) + 4096,),), 1, 8), place)
    with pytest.raises(LabError, match="may not use the cores of its measuring slot"), turns.take():
        pass
    assert is_free(place)
    assert os.sched_getaffinity(0) == OWN
    assert not turns.in_slot()


# What is said


@pytest.mark.parametrize(
    ("place", "count", "duration", "text"),
    [
        (3, 2, 27.0, "3rd in the queue for a measuring slot, about 40 s"),
        (1, 1, 0.2, "1st in the queue for a measuring slot, about 5 s"),
        (12, 1, 60.0, "12th in the queue for a measuring slot, about 12 min"),
        (22, 1, None, "22nd in the queue for a measuring slot"),
    ],
)
def test_the_place_in_the_queue_is_said_with_the_time_that_it_takes(place, count, duration, text):
    assert turns.describe(place, count, duration) == text


def test_the_waiting_is_estimated_from_the_measurements_before(divide, contend, monkeypatch, capsys):
    place = divide()
    (place / slots.DURATIONS).write_bytes(b"60.0\n" * 30 + b"20.0\n" * 20 + b"-1\nnan\n\xff\n1e9\n")
    holder = forever(contend)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)  # as in a notebook
    threading.Timer(0.5, os.kill, [holder.pid, signal.SIGKILL]).start()
    with turns.take():
        pass
    told = capsys.readouterr().out
    assert "\r1st in the queue for a measuring slot, about 20 s " in told
    assert told.count("in the queue") == 1  # in place, and not again and again
    assert "\rWaited " in told
    assert told.endswith("\n")
