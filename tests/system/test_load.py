"""Work of others on the cores is noticed, and nothing else is."""

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

from labkit.mpi import launch, planning
from labkit.system import cores, load
from labkit.system.load import BUSY_SHARE, TICK_S, observe, watch
from labkit_author import sources

SPIN = "import time; began = time.process_time()\nwhile time.process_time() - began < {}: pass"


@contextlib.contextmanager
def spinner():
    """A process that is no child of this one, and takes what it can get of a core."""
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
    """Take so much of a core, however much of the time others have it."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


@pytest.fixture(autouse=True)
def cores_of_these_tests(monkeypatch):
    """Have runs of ranks borrow cores among themselves, whatever else runs on this machine."""
    monkeypatch.setattr(cores, "NAME_PREFIX", f"labkit-test-{uuid.uuid4().hex}-")


# --- On this machine, whatever else it does ---


@pytest.mark.slow
def test_a_spinner_beside_a_measurement_is_noticed_and_named(capsys):
    with spinner() as pid:
        before, began = used_by(pid), time.monotonic()
        with watch("section 7") as others:
            spin(0.4)
        took = (used_by(pid) - before) / (time.monotonic() - began) / len(os.sched_getaffinity(0))
    assert others.share > took - 0.1  # all that it took, and perhaps others beside it
    if took > 2 * BUSY_SHARE:  # on fewer than ten CPUs
        assert others.busy
        told = capsys.readouterr().out
        assert told.startswith(f"⚠ Meanwhile, other work took {others.share:.0%} of the cores (")
        assert "run section 7 again when the machine is quiet" in told
        assert others.by


def ours(monkeypatch) -> list[float]:
    """Note the CPU seconds that each watch takes for ours."""
    noted, compare = [], load._compare

    def note(others, machine, used, passed, before, after):
        noted.append(after.seconds - before.seconds)
        compare(others, machine, used, passed, before, after)

    monkeypatch.setattr(load, "_compare", note)
    return noted


def test_the_work_of_ranks_is_ours_and_the_run_tells_of_others(monkeypatch, tmp_path, capsys):
    noted = ours(monkeypatch)
    (tmp_path / "spin.py").write_text(SPIN.format(0.5))
    with watch("section 3", show=False) as others:
        run = launch.run_ranks(2, tmp_path / "spin.py", show=False)
    assert 0.8 < noted[0] < 5  # a second of spinning, and what two starts of Python take on a busy machine
    assert len(noted) == 1  # what the run saw, on the ranks' own cores, counts for all that is around it
    assert (others.share, others.busy) == (run.others.share, run.others.busy)
    assert "⚠" not in capsys.readouterr().out


def test_ranks_that_slurm_starts_are_not_judged(monkeypatch, tmp_path):
    (tmp_path / "nothing.py").write_text("")
    planned = planning.plan(1, "nothing.py", machine=launch.usable_machine(), environ={"SLURM_JOB_ID": "1"})
    with launch._watch_cores(planned) as others:
        pass
    assert (others.share, others.busy, others.why) == (None, False, "the ranks are of a Slurm job")


# --- On synthetic machines ---


class Busy(Tree):
    """A synthetic machine with this process on it, a clock, and others who work when told."""

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
        """Let time pass; give the CPUs that are at work on average, spread over `cpus`."""
        cpus = cpus or list(self.ticks)
        for cpu in cpus:
            self.ticks[cpu][0] += round((mine + others) * seconds / TICK_S / len(cpus))
            self.ticks[cpu][7] += round(stolen * seconds / TICK_S / len(cpus))
            self.ticks[cpu][5] += round(seconds / TICK_S)  # interrupts are nobody's
        self.mine[os.getpid()] += round(mine * seconds / TICK_S)
        self.now += seconds
        self.show()


@pytest.fixture
def two(tmp_path, monkeypatch):
    return Busy(tmp_path, 2, monkeypatch)


def test_others_and_steal_add_up(two):
    with observe(root=two.root) as others:
        two.work(10, mine=1.2, others=0.5, stolen=0.3)
    assert others.share == pytest.approx(0.4)
    assert others.busy
    assert others.by == ("the hypervisor: steal",)


def test_those_who_took_most_are_named_but_not_other_users(two, monkeypatch):
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


def test_a_short_look_is_no_reason_for_an_alarm_but_half_a_core_is(two):
    with observe(root=two.root) as little:
        two.work(0.2, mine=1.5, others=0.2)  # 4 ticks of 40, within what a sample of ticks may be off
    with observe(root=two.root) as much:
        two.work(0.2, mine=1.2, others=0.8)
    assert (little.busy, much.busy) == (False, True)


def test_only_the_cores_that_are_measured_on_count(tmp_path, monkeypatch):
    big = Busy(tmp_path, 64, monkeypatch)
    with observe(root=big.root, cpus=[0, 1]) as few:
        big.work(5, mine=2, cpus=[0, 1])
        big.now -= 5
        big.work(5, others=60, cpus=list(range(2, 64)))
    assert (few.busy, few.share) == (False, pytest.approx(0, abs=0.01))
    with observe(root=big.root) as every:
        big.work(5, mine=4, others=50)
    assert every.share == pytest.approx(50 / 64, abs=0.01)


def test_under_a_quota_others_may_have_the_cpus_that_it_does_not_pay_for(tmp_path, monkeypatch):
    tree = Busy(tmp_path, 8, monkeypatch)
    tree.cgroup(V2, "0::/", {"sys/fs/cgroup/cpu.max": "200000 100000"})
    with observe(root=tree.root) as beside:
        tree.work(10, mine=2, others=5)
    with observe(root=tree.root) as instead:
        tree.work(10, mine=1, others=7)
    assert (beside.busy, beside.share) == (False, 0)
    assert instead.share == pytest.approx(0.5)


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
    assert others.throttled == pytest.approx(0.2)  # 5 of 25 CPU seconds that it could have had or waited for
    assert (others.busy, others.share) == (True, 0)
    assert "the CPU quota held it back for 20% of the time" in str(others)
    assert "run section 2 again with fewer threads" in str(others)


def test_children_come_go_and_lose_their_parents(two):
    me = os.getpid()
    two.process(60, me, "sh", 0)
    two.process(61, 60, "works", 5000)
    two.process(62, me, "ends", 3000)
    with observe(root=two.root) as others:
        two.work(10, mine=1, others=1)
        two.mine[me] -= 500  # half of that was done by children:
        two.process(61, 1, "works", 5400)  # whose parent is gone,
        for pid in (60, 62):
            (two.root / f"proc/{pid}/stat").unlink()
        two.process(me, 1, "python", two.mine[me], of_ended=3100)  # and who was waited for
    assert others.share == pytest.approx(0.5)


def test_processes_started_elsewhere_can_be_ours(two):
    two.process(70, 1, "supervisor", 0)
    two.process(71, 70, "slurmstepd", 0)
    for also, share in (([], 0.5), ([70], 0.0)):
        with observe(root=two.root, also=also) as others:
            two.work(10, others=1)
            two.process(71, 70, "slurmstepd", round(10 / TICK_S) if also else 0)
        assert others.share == pytest.approx(share)


def test_what_cannot_be_told_is_said_so_and_is_no_alarm(two, capsys):
    with observe("section 4", root=two.root) as sandboxed:  # where /proc/stat stands still
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
        assert others.note == f"section 4: whether other work had the cores meanwhile is not known: {others.why}."
    assert "does not count what this process does" in sandboxed.why
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("others_s", "share", "busy"), [(0, 0.0, False), (2, 0.1, True)])
def test_where_ticks_miss_short_work_the_other_processes_count(two, others_s, share, busy):
    """As of ranks that sleep while they wait for a wire: /proc/stat samples, /proc/PID/stat does not."""
    two.process(80, 1, "elsewhere", 500)
    two.process(14, 2, "ksoftirqd/0", 500)
    with observe(root=two.root) as others:
        for cpu in two.ticks:
            two.ticks[cpu][0] += round((3 + others_s / 2) / TICK_S)
        two.mine[os.getpid()] += round(10 / TICK_S)  # of which ticks saw 6
        two.process(80, 1, "elsewhere", 500 + round(others_s / TICK_S))
        two.process(14, 2, "ksoftirqd/0", 500 + round(3 / TICK_S))
        two.now += 10
        two.show()
    assert (others.share, others.busy) == (pytest.approx(share), busy)


def test_interrupts_that_the_kernel_counts_as_ours_too_leave_it_known(two):
    with observe(root=two.root) as others:
        two.work(10, mine=0.5)
        two.mine[os.getpid()] += round(3 / TICK_S)  # of the seconds that each CPU spent on interrupts
        two.show()
    assert (others.share, others.busy) == (0.0, False)


def test_watches_inside_count_by_their_weight_and_one_that_knows_nothing_spoils_all(two):
    with load.combine("section 5") as both:
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
def test_a_lab_tells_the_section_to_run_again_and_marks_what_it_measured(source):
    section, watched = "", []
    for line in source.read_text().splitlines():
        if heading := re.match(r"# ## (\d+) ·", line):
            section = f"section {heading[1]}"
        # An entry of `consistency.repeated` names an earlier section: `("section 1", …)`.
        named = re.findall(r'(?:(?<!\()|(?<=watch\()|(?<=combine\())"(section \d+)"', line)
        watched += [(name, section) for name in named]
    assert [named for named, _ in watched] == [where for _, where in watched]
    assert bool(watched) == ("results.table(" in source.read_text())
