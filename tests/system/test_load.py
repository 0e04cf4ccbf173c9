"""Other work on the cores is noticed, and nothing else is."""

import contextlib
import os
import re
import subprocess
import sys
import time
import uuid

import psutil
import pytest
from test_machine import V1_CPU, V2, Tree

from labkit.mpi import launch
from labkit.system import cores, load
from labkit.system.load import BUSY_SHARE, TICK_S, observe, watch
from labkit_author import sources

SPIN = "import time; began = time.process_time()\nwhile time.process_time() - began < {}: pass"


@contextlib.contextmanager
def spinner():
    """A process that is not a child of this one, and uses as much of a core as it can."""
    detached = "import os, sys\nif os.fork(): sys.exit()\nos.setsid()\nprint(os.getpid(), flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", detached], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
    try:
        yield pid
    finally:
        os.kill(pid, 9)


def used_by(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


def spin(seconds: float) -> None:
    """Use this share of a core, however busy it is."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


@pytest.fixture(autouse=True)
def cores_of_these_tests(monkeypatch):
    """Isolate core reservations of these tests from other runs on this machine."""
    monkeypatch.setattr(cores, "NAME_PREFIX", f"labkit-test-{uuid.uuid4().hex}-")


# --- On this machine, however busy ---


@pytest.mark.slow
def test_a_busy_process_during_a_measurement_is_noticed_and_named(capsys):
    with spinner() as pid:
        before, began = used_by(pid), time.monotonic()
        with watch("section 7") as others:
            spin(0.4)
        took = (used_by(pid) - before) / (time.monotonic() - began) / len(os.sched_getaffinity(0))
    assert others.share > took - 0.1  # its share, plus any other work
    if took > 2 * BUSY_SHARE:  # on fewer than ten CPUs
        assert others.busy
        printed = capsys.readouterr().out
        assert printed.startswith(f"⚠ Meanwhile, other work took {others.share:.0%} of the cores (")
        assert "run section 7 again when the machine is quiet" in printed
        assert others.by


def ours(monkeypatch) -> list[float]:
    """Record the CPU seconds that each watch counts as ours."""
    seconds, compare = [], load._compare

    def note(others, machine, used, passed, before, after):
        seconds.append(after.seconds - before.seconds)
        compare(others, machine, used, passed, before, after)

    monkeypatch.setattr(load, "_compare", note)
    return seconds


def test_ranks_count_as_ours_and_the_run_reports_other_work(monkeypatch, tmp_path, capsys):
    seconds = ours(monkeypatch)
    (tmp_path / "spin.py").write_text(SPIN.format(0.5))
    with watch("section 3", show=False) as others:
        run = launch.run_ranks(2, tmp_path / "spin.py", show=False)
    assert 0.8 < seconds[0] < 5  # a second of spinning, plus two starts of Python on a busy machine
    assert len(seconds) == 1  # the run's watch, on the ranks' cores, counts for all enclosing ones
    assert (others.share, others.busy) == (run.others.share, run.others.busy)
    assert "⚠" not in capsys.readouterr().out


# --- On synthetic machines ---


class Busy(Tree):
    """A synthetic machine with this process, a clock, and other work on request."""

    def __init__(self, root, cpus, monkeypatch):
        super().__init__(root, cpus)
        self.now, self.ticks = 100.0, {cpu: [0] * 8 for cpu in range(cpus)}
        self.mine = {os.getpid(): 0}
        self.show()
        monkeypatch.setattr(load.time, "monotonic", lambda: self.now)

    def show(self) -> None:
        lines = [f"cpu{cpu} {' '.join(map(str, ticks))} 0 0" for cpu, ticks in self.ticks.items()]
        self.write("proc/stat", "\n".join(["cpu 0 0 0 0", *lines, "intr 1 2 3", "ctxt 5"]))
        for pid, ticks in self.mine.items():
            self.process(pid, 1, "python (3)", ticks)

    def process(self, pid: int, parent: int, name: str, ticks: int, of_ended: int = 0, started: int = 7) -> None:
        self.write(
            f"proc/{pid}/stat", f"{pid} ({name}) R {parent} {'0 ' * 9}{ticks} 0 {of_ended} 0 20 0 1 0 {started} 0"
        )

    def work(self, seconds: float, mine=0.0, others=0.0, stolen=0.0, cpus=None) -> None:
        """Advance the clock; the loads are averages in CPUs, spread over `cpus`."""
        cpus = cpus or list(self.ticks)
        for cpu in cpus:
            self.ticks[cpu][0] += round((mine + others) * seconds / TICK_S / len(cpus))
            self.ticks[cpu][7] += round(stolen * seconds / TICK_S / len(cpus))
            self.ticks[cpu][5] += round(seconds / TICK_S)  # interrupts belong to no process
        self.mine[os.getpid()] += round(mine * seconds / TICK_S)
        self.now += seconds
        self.show()


@pytest.fixture
def two(tmp_path, monkeypatch):
    return Busy(tmp_path, 2, monkeypatch)


def test_other_work_and_steal_add_up(two):
    with observe(root=two.root) as others:
        two.work(10, mine=1.2, others=0.5, stolen=0.3)
    assert others.share == pytest.approx(0.4)
    assert others.busy
    assert others.by == ("the hypervisor: steal",)


def test_the_top_processes_are_named_but_not_other_users(two, monkeypatch):
    two.process(50, 1, "sh", 100)
    two.process(51, 50, "stress", 100)
    two.process(52, 1, "secret", 100)
    two.process(53, 1, "idle", 100)
    with observe(root=two.root) as others:
        two.work(10, mine=0.5, others=1.5)
        two.process(51, 50, "stress", 1000)
        two.process(52, 1, "secret", 700)
        mine = os.geteuid()
        (two.root / "proc/52").chmod(0o755)
        if mine == 0:
            os.chown(two.root / "proc/52", 1234, 1234)
    assert others.by[0] == "stress"
    assert "idle" not in others.by
    if mine == 0:
        assert others.by == ("stress", "other users")
        assert "secret" not in str(others)


def test_a_few_ticks_in_a_short_watch_raise_no_alarm_but_half_a_core_does(two):
    with observe(root=two.root) as slightly:
        two.work(0.2, mine=1.5, others=0.2)  # 4 ticks of 40, within the sampling error
    with observe(root=two.root) as heavily:
        two.work(0.2, mine=1.2, others=0.8)
    assert (slightly.busy, heavily.busy) == (False, True)


def test_only_the_measured_cores_count(tmp_path, monkeypatch):
    big = Busy(tmp_path, 64, monkeypatch)
    with observe(root=big.root, cpus=[0, 1]) as partial:
        big.work(5, mine=2, cpus=[0, 1])
        big.now -= 5
        big.work(5, others=60, cpus=list(range(2, 64)))
    assert (partial.busy, partial.share) == (False, pytest.approx(0, abs=0.01))
    with observe(root=big.root) as whole:
        big.work(5, mine=4, others=50)
    assert whole.share == pytest.approx(50 / 64, abs=0.01)


def test_under_a_quota_other_work_may_use_the_remaining_cpus(tmp_path, monkeypatch):
    tree = Busy(tmp_path, 8, monkeypatch)
    tree.cgroup(V2, "0::/", {"sys/fs/cgroup/cpu.max": "200000 100000"})
    with observe(root=tree.root) as within_quota:
        tree.work(10, mine=2, others=5)
    with observe(root=tree.root) as beyond_quota:
        tree.work(10, mine=1, others=7)
    assert (within_quota.busy, within_quota.share) == (False, 0)
    assert beyond_quota.share == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("mount", "own", "file", "before", "after"),
    [
        (V2, "0::/", "sys/fs/cgroup/cpu.stat", "usage_usec 5\nthrottled_usec 1000000", "throttled_usec 6000000"),
        (
            V1_CPU,
            "4:cpu,cpuacct:/",
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat",
            "throttled_time 0",
            "nr_throttled 9\nthrottled_time 5000000000",
        ),
    ],
    ids=["v2", "v1"],
)
def test_throttling(two, mount, own, file, before, after):
    two.cgroup(mount, own, {file: before})
    with observe("section 2", root=two.root) as others:
        two.work(10, mine=1.5)
        two.write(file, after)
    assert others.throttled == pytest.approx(0.2)  # 5 of 25 CPU seconds available or throttled
    assert (others.busy, others.share) == (True, 0)
    assert "the CPU quota throttled it for 20% of the time" in str(others)
    assert "run section 2 again with fewer threads" in str(others)


def test_children_start_end_and_lose_their_parents(two):
    me = os.getpid()
    two.process(60, me, "sh", 0)
    two.process(61, 60, "works", 5000)
    two.process(62, me, "ends", 3000)
    with observe(root=two.root) as others:
        two.work(10, mine=1, others=1)
        two.mine[me] -= 500  # half of the work was done by children:
        two.process(61, 1, "works", 5400)  # one whose parent is gone,
        for pid in (60, 62):
            (two.root / f"proc/{pid}/stat").unlink()
        two.process(me, 1, "python", two.mine[me], of_ended=3100)  # and one that was waited for
    assert others.share == pytest.approx(0.5)


def test_unknown_contention_is_reported_and_raises_no_alarm(two, capsys):
    with observe("section 4", root=two.root) as sandboxed:  # where /proc/stat does not change
        two.mine[os.getpid()] += 1000
        two.now += 10
        two.show()
    with observe("section 4", root=two.root, cpus=[0, 7]) as unseen:
        two.work(10, others=2)
    (two.root / "proc/stat").unlink()
    with observe("section 4", root=two.root) as hidden:
        pass
    with observe("section 4", root=two.root, unknown="it is elsewhere") as elsewhere:
        pass
    two.show()
    (two.root / f"proc/{os.getpid()}/stat").unlink()
    with observe("section 4", root=two.root) as other_namespace:
        pass
    for others in (sandboxed, unseen, hidden, elsewhere, other_namespace):
        assert (others.share, others.busy) == (None, False)
        assert others.note == f"section 4: whether other work used the cores meanwhile is unknown: {others.why}."
    assert "does not count this process" in sandboxed.why
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("others_s", "share", "busy"), [(0, 0.0, False), (2, 0.1, True)])
def test_if_ticks_miss_short_work_other_processes_are_counted(two, others_s, share, busy):
    """For example, ranks that sleep while they wait for a wire: /proc/stat samples, /proc/PID/stat does not."""
    two.process(80, 1, "elsewhere", 500)
    two.process(14, 2, "ksoftirqd/0", 500)
    with observe(root=two.root) as others:
        for cpu in two.ticks:
            two.ticks[cpu][0] += round((3 + others_s / 2) / TICK_S)
        two.mine[os.getpid()] += round(10 / TICK_S)  # ticks saw 6 of them
        two.process(80, 1, "elsewhere", 500 + round(others_s / TICK_S))
        two.process(14, 2, "ksoftirqd/0", 500 + round(3 / TICK_S))
        two.now += 10
        two.show()
    assert (others.share, others.busy) == (pytest.approx(share), busy)


def test_nested_watches_are_weighted_and_an_unknown_one_makes_the_sum_unknown(two):
    with observe("section 5", root=two.root) as both:
        with observe(root=two.root):
            two.work(30, mine=2)
        with observe(root=two.root):
            two.work(10, mine=1, others=1)
    assert both.share == pytest.approx(0.125)
    assert both.busy
    with observe(root=two.root) as unknown:
        with observe(root=two.root):
            two.work(10, mine=1)
        with observe(root=two.root, unknown="it is elsewhere"):
            pass
    assert (unknown.share, unknown.why) == (None, "it is elsewhere")


# --- In the labs ---


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem[:2])
def test_labs_name_the_section_to_run_again(source):
    section, watched = "", []
    for line in source.read_text().splitlines():
        if heading := re.match(r"# ## (\d+) ·", line):
            section = f"section {heading[1]}"
        named = re.findall(r'"(section \d+)"', line)
        named += [f"section {number}" for number in re.findall(r"= measure\((\d+),", line)]  # lab 06
        watched += [(name, section) for name in named]
    assert [named for named, _ in watched] == [where for _, where in watched]
