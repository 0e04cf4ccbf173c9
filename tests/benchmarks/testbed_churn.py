"""Has testbeds end in many ways at random moments, and looks for what is left of them.

    python tests/benchmarks/testbed_churn.py --times 200 --nodes 16 --seed 0

Two at a time, each in a process of its own, with ranks on its nodes part of the time. They end by being closed, by
signals to the process, or as their shell, a node's holder or mpirun is killed: while they are made, used or closed.
As root, half of them are another user's. All of it happens in namespaces of its own, which other runs on this machine
neither see nor disturb. What killed processes leave in the temporary folder and in /dev/shm is for the next run to
remove (`labkit.system.scratch`), and counts when it does not. Exit code 1 when anything was left or a testbed failed
before its end was due, 2 when none can be made here.
"""

import argparse
import contextlib
import json
import os
import pwd
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from labkit.system import account_access, cores, processes
from labkit.testbed.testbed import SLEEP_WHILE_WAITING
from labkit_author.testing import as_others_can

# Namespaces of this script's own; with their first process, all in them end.
WORLD = ("unshare", "--mount", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_USER = ("--user", "--map-current-user", "--keep-caps")
# A shell is the first process in them: it waits for orphans that have ended, as a machine's first process does.
BEGIN = 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && ip link set lo up && "$@"; exit $?'
BECOME = (
    "setpriv",
    f"--reuid={account_access.NOBODY}",
    f"--regid={account_access.NOBODY}",
    "--clear-groups",
    "--inh-caps=-all",
)

PATIENCE_S = 30.0  # the time in which all must be gone
END_S = 120.0  # the time that a process has to be through with its testbed, once it was told to close
RATE = "1 Gbit/s"
MOST_RANKS = 8

CLOSED, LIVES_ON = "closed", "SIGINT, lives on"  # the latter as a notebook's kernel does
SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL, "SIGINT": signal.SIGINT, LIVES_ON: signal.SIGINT}
VICTIMS = {"shell killed": "--norc", "holder killed": "cat /dev/fd/", "mpirun killed": "mpiexec.hydra"}
WAYS = (CLOSED, *SIGNALS, *VICTIMS)
MADE, USED, CLOSING = PHASES = ("made", "used", "closing")
IDLE, RANKS, COMMAND = USES = ("idle", "run_ranks", "mpirun")

RANK_SCRIPT = """
import sys, time
from mpi4py import MPI
end = time.monotonic() + float(sys.argv[1])
while MPI.COMM_WORLD.bcast(time.monotonic() < end):
    time.sleep(0.01)
"""
SWEEP = "from labkit.system import scratch\nwith scratch.folder(): pass"  # as the next run does


# A process with a testbed


def live(nodes: int, use: str, seconds: float, script: str, lives_on: bool) -> None:
    """Make a testbed, use it and close it, and say so; stay until told to end if it `lives_on`."""
    from labkit.mpi import run_ranks
    from labkit.system.errors import LabError
    from labkit.testbed import Testbed, command

    told, said = os.fdopen(os.dup(0)), os.dup(1)  # mpirun has the standard streams
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def say(*words: object) -> None:
        os.write(said, f"{' '.join(map(str, words))}\n".encode())

    ranks, failure = min(nodes, MOST_RANKS), None
    open_before = descriptors(os.getpid())
    say("begins")
    try:
        with Testbed(nodes, RATE) as wires:
            say("up")
            if use == RANKS:
                run_ranks(ranks, script, seconds, network=wires, show=False, timeout=60)
            elif use == COMMAND:
                command.run(wires, ["mpirun", "-n", str(ranks), sys.executable, script, str(seconds)])
            else:
                told.readline()
            say("closes")
    except (LabError, KeyboardInterrupt) as error:
        failure = error
        if not lives_on:
            raise
    while lives_on:
        # Another interrupt of several may come, after which a notebook's kernel goes on too.
        with contextlib.suppress(KeyboardInterrupt):
            say("over", json.dumps(sorted(set(descriptors(os.getpid())) - set(open_before))), repr(failure))
            while told.readline():
                pass
            return


def descriptors(pid: int) -> dict[str, str]:
    """Return what a process has open, by descriptor and file."""
    found = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(each.readlink())
            if target != f"/proc/{pid}/fd":
                found[f"{each.name} {target}"] = target
    return found


@dataclass
class Life:
    """A process with a testbed, and how it is to end.

    Attributes
    ----------
    number, nodes : int
        Its number, and its testbed's nodes.
    use, way, phase : str
        What its testbed is used for, how it ends, and what is going on then.
    fraction : float
        The part of that phase, from 0 to 1, after which it ends.
    seconds : float
        How long ranks run.
    interrupts : int
        How many interrupts it gets, if any.
    user : int
        Whose it is.
    """

    number: int
    nodes: int
    use: str
    way: str
    phase: str
    fraction: float
    seconds: float
    interrupts: int
    user: int
    process: subprocess.Popen[str] = field(init=False)
    made_in: float | None = None
    trouble: str = ""
    struck: bool = False
    reached: bool = False  # the phase in which its end was due

    def __str__(self) -> str:
        """Return what is to happen, in a line."""
        return f"{name_of(self.user)}'s {self.nodes} nodes, {self.use}: {self.way} while {self.phase}"

    def start(self, folder: Path) -> None:
        """Start it."""
        self._errors = tempfile.TemporaryFile("w+", dir=folder)  # noqa: SIM115
        options = (self.nodes, self.use, self.seconds, folder / "ranks.py", int(self.way == LIVES_ON))
        self.process = subprocess.Popen(
            [*as_user(self.user), sys.executable, __file__, "--live", *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd="/",
            start_new_session=True,
        )
        self._words: queue.Queue[str] = queue.Queue()
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            self._words.put(line.strip())
        self._words.put("")

    def hear(self, word: str, seconds: float) -> str:
        """Return the line that begins with a word; empty when the process ended before, or the time is up."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while not self._ended:
                line = self._words.get(timeout=max(0.0, deadline - time.monotonic()))
                self._ended = not line
                if line.startswith(word):
                    return line
        return ""

    def tell(self, end: bool = False) -> None:
        """Tell the process to close its testbed, or to end."""
        with contextlib.suppress(OSError):
            if end:
                self.process.stdin.close()
            else:
                self.process.stdin.write("close\n")
                self.process.stdin.flush()

    def run(self, pace: float, randoms: random.Random) -> None:
        """Live up to the moment, be struck, and end or, if it lives on, be through with the testbed."""
        if self.hear("begins", END_S):
            began = time.monotonic()
            if self.phase == MADE:
                self.reached = True
                time.sleep(self.fraction * pace * (3 + self.nodes))
            elif self.hear("up", END_S):
                self.made_in = time.monotonic() - began
                if self.phase == USED:
                    self.reached = True
                    time.sleep(self.fraction * (0.3 if self.use == IDLE else 1.0 + self.seconds))
                else:
                    self.tell()
                    self.reached = bool(self.hear("closes", END_S))
                    time.sleep(self.fraction * 0.2)
            self._strike(randoms)
        self.tell()
        self._come_to_an_end()

    def _strike(self, randoms: random.Random) -> None:
        if self.way in VICTIMS:
            processes.wait_until(lambda: self.process.poll() is not None or self._kill_victim(randoms), 2.0)
        elif self.way in SIGNALS:
            for each in range(self.interrupts if SIGNALS[self.way] == signal.SIGINT else 1):
                time.sleep(randoms.uniform(0, 0.2) * (each > 0))
                self.struck = self.struck or self.process.poll() is None
                with contextlib.suppress(OSError):
                    if SIGNALS[self.way] == signal.SIGINT:
                        os.killpg(self.process.pid, signal.SIGINT)  # as a terminal does
                    else:
                        self.process.send_signal(SIGNALS[self.way])

    def _kill_victim(self, randoms: random.Random) -> bool:
        """Kill one of the processes that the way to end is about; return whether there was one."""
        with contextlib.suppress(OSError):
            pipes = {file for file in descriptors(self.process.pid).values() if file.startswith("pipe:")}

            def is_victim(process: psutil.Process) -> bool:
                if VICTIMS[self.way] not in " ".join(process.cmdline()) or process.pid == self.process.pid:
                    return False
                if self.way == "shell killed":
                    return process.ppid() == self.process.pid
                ours = self.way == "mpirun killed" and os.getsid(process.pid) in self._sessions()
                return ours or bool(pipes & set(descriptors(process.pid).values()))

            if found := processes.find(is_victim):
                processes.kill([randoms.choice(sorted(found, key=lambda process: process.pid))])
                self.struck = True
        return self.struck

    def _sessions(self) -> set[int]:
        """Return the sessions of what the process itself has started."""
        with contextlib.suppress(psutil.Error):
            return {os.getsid(each.pid) for each in psutil.Process(self.process.pid).children()} | {self.process.pid}
        return set()

    def _come_to_an_end(self) -> None:
        if self.way == LIVES_ON:
            over = self.hear("over", END_S)
            if over:
                left, _ = json.JSONDecoder().raw_decode(over.partition(" ")[2])
                if left:
                    self.trouble = f"descriptors {left}"
                return
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.trouble = f"the process itself, {END_S:g} s after it was told to close"
            self.process.kill()

    @property
    def failed(self) -> bool:
        """Whether it did not come as far as it should."""
        return not self.reached or (self.way == CLOSED and self.process.returncode != 0)

    @property
    def rests(self) -> bool:
        """Whether its process lives."""
        return self.process.poll() is None

    def end(self) -> None:
        """Have its process end, if it has lived on."""
        self.tell(end=True)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.trouble = self.trouble or "the process itself"
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def errors(self) -> str:
        """Return what it said on stderr."""
        self._errors.seek(0)
        return self._errors.read().strip()


def as_user(user: int) -> tuple[str, ...]:
    """Return the command under which another is this user's."""
    return () if user == os.geteuid() else BECOME


def name_of(user: int) -> str:
    """Return a user's name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


# What is there


Things = dict[tuple[str, str], int]  # a kind and a thing of it, and whose it is; -1: nobody knows


def look(folder: Path, lives: Iterable[Life] = (), files: bool = True) -> Things:
    """Return what is there, without `lives`' processes and the first two of this world."""
    found: Things = {}
    known = {1, os.getpid(), *(life.process.pid for life in lives)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in known and process.status() != psutil.STATUS_ZOMBIE:
                line = f"{process.pid} {' '.join(process.cmdline()) or process.name()}"
                found["process", line] = process.uids().real
        with contextlib.suppress(psutil.Error, OSError):
            for name, user in namespaces_of(process):
                found["namespace", name] = user
    for name in (line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]):
        found["interface", name] = -1
    for kind, place in (("host's interface", "/sys/class/net"), ("ip netns", "/run/netns")):
        for name in os.listdir(place) if os.path.isdir(place) else ():  # noqa: PTH112, PTH208
            found[kind, name] = -1
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        found["mount", line.split(" - ")[0]] = -1
    for line in Path("/proc/net/unix").read_text().splitlines():
        if f"@{cores.NAME_PREFIX}" in line:
            found["loan of a core", line.split()[-1]] = -1
    for kind in ("shm", "sem", "msg"):
        for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
            found["shared memory", f"{kind} {' '.join(line.split()[:2])}"] = -1
    if files:
        for kind, top in (("file", folder / "tmp"), ("shared memory", Path("/dev/shm"))):
            for path in top.rglob("*"):
                with contextlib.suppress(OSError):
                    found[kind, str(path.relative_to(top))] = path.lstat().st_uid
    return found


def namespaces_of(process: psutil.Process) -> Iterator[tuple[str, int]]:
    """Yield the namespaces that a process is in or has open, and whose it is."""
    for path in (*Path(f"/proc/{process.pid}/ns").iterdir(), *Path(f"/proc/{process.pid}/fd").iterdir()):
        with contextlib.suppress(OSError):
            target = str(path.readlink())
            if target.startswith(("net:", "ipc:", "uts:", "user:", "mnt:", "pid:")):
                yield target, process.uids().real


def wait_for(before: Things, see: Callable[[], Things]) -> Things:
    """Return what there is beyond `before`, once it is nothing, or patience is over."""
    left: Things = {}

    def nothing() -> bool:
        left.clear()
        left.update({thing: user for thing, user in see().items() if thing not in before})
        return not left

    processes.wait_until(nothing, PATIENCE_S)
    return left


# Many of them


class Churn:
    """So many lives, two at a time, and what was left after each two."""

    def __init__(self, options: argparse.Namespace, folder: Path, users: list[int]) -> None:
        self.options, self.folder, self.users = options, folder, users
        self.randoms = random.Random(options.seed)
        self.pace = 0.3  # seconds to make a testbed, for each of its nodes and 3 more
        self.ways: list[str] = []
        self.lives: list[Life] = []
        self.left: dict[str, Counter[str]] = defaultdict(Counter)  # by way to end, what

    def plan(self, number: int) -> Life:
        """Return the next life."""
        pick = self.randoms
        self.ways = self.ways or pick.sample(WAYS, len(WAYS))  # each as often, in any order
        way = self.ways.pop()
        return Life(
            number,
            nodes=pick.randint(2, self.options.nodes),
            use=pick.choice((RANKS, COMMAND) if way == "mpirun killed" else USES),
            way=way,
            phase=USED if way in (CLOSED, "mpirun killed") else pick.choice(PHASES),
            fraction=pick.random(),
            seconds=pick.uniform(0.1, 1.5),
            interrupts=pick.choice((1, 1, 2, 3)),
            user=pick.choice(self.users),
        )

    def begin(self) -> str:
        """Have each user make and close one testbed; return why that cannot be."""
        for user in self.users:
            life = Life(0, 2, RANKS, CLOSED, USED, 1.0, 0.1, 1, user)
            self.live([life])
            if life.process.returncode:
                return life.errors() or f"exit status {life.process.returncode}"
        return ""

    def run(self) -> None:
        """Have all of them live and end, and tell of each two."""
        began = time.monotonic()
        while len(self.lives) < self.options.times:
            two = [self.plan(len(self.lives) + each + 1) for each in range(2)][: self.options.times - len(self.lives)]
            before = look(self.folder)
            self.live(two)
            left = self.look_after(two, before)
            self.lives += two
            progress = f"{len(self.lives):4}/{self.options.times} {time.monotonic() - began:5.0f} s"
            print(f"{progress}  {'; '.join(map(str, two))}", flush=True)
            for life in two:
                # What belongs to a user is that user's life's, else it may be of either.
                mine = {thing: user for thing, user in left.items() if user in (-1, life.user)}
                self.left[life.way].update(kind for kind, _ in mine)
                if life.trouble:
                    self.left[life.way]["in the process"] += 1
                    print(f"          LEFT by {life.number}: {life.trouble}", flush=True)
                if life.failed:
                    print(f"          {life.number} failed by itself: {life.errors()[-300:]}", flush=True)
                elif life.trouble or mine:
                    print(f"          {life.number} said: {life.errors()[-2000:]}", flush=True)
            for (kind, thing), user in left.items():
                print(
                    f"          LEFT: {kind} {thing[:200]} of {name_of(user) if user >= 0 else 'anybody'}", flush=True
                )

    def live(self, lives: list[Life]) -> None:
        """Have them live at the same time, up to their ends."""
        for life in lives:
            life.start(self.folder)
        with ThreadPoolExecutor(len(lives)) as pool:
            # Each with numbers of its own, as threads draw them in any order.
            for done in [pool.submit(life.run, self.pace, random.Random(life.fraction)) for life in lives]:
                done.result()
        for life in lives:
            if life.made_in:
                self.pace += 0.3 * (life.made_in / (3 + life.nodes) - self.pace)

    def look_after(self, lives: list[Life], before: Things) -> Things:
        """Wait for all to be gone, beside what lives on and then when that has ended too; return what is left."""
        left: Things = {}
        if resting := [life for life in lives if life.rests]:
            left = wait_for(before, lambda: look(self.folder, resting, files=False))
        for life in lives:
            life.end()
        left |= wait_for(before, lambda: look(self.folder, files=False))
        self.sweep(before)
        left |= wait_for(before, lambda: look(self.folder))
        stay = {int(thing.split()[0]) for kind, thing in left if kind == "process"}
        processes.end_all(lambda: processes.find(lambda process: process.pid in stay))  # none for those to come
        return left

    def sweep(self, before: Things) -> None:
        """Do what the next run of each user does first, where there is something to do."""
        if set(look(self.folder)) - set(before):
            for user in self.users:
                subprocess.run([*as_user(user), sys.executable, "-c", SWEEP], cwd="/", check=True)

    def table(self) -> str:
        """Return how they ended, how often, and what was left."""
        rows = [
            ("how ended", "times", *(f"while {phase}" for phase in PHASES), "as another", "too late", "failed", "left")
        ]
        for way in WAYS:
            those = [life for life in self.lives if life.way == way]
            phases = Counter(life.phase for life in those)
            another = sum(life.user != os.geteuid() for life in those)
            left = ", ".join(f"{count} × {kind}" for kind, count in sorted(self.left[way].items())) or "nothing"
            late = sum(not life.struck for life in those if life.way != CLOSED)
            failed = sum(life.failed for life in those)
            rows.append((way, len(those), *(phases[phase] for phase in PHASES), another, late, failed, left))
        return "\n".join(
            f"{name!s:18}" + "".join(f"{value!s:>15}" for value in values) + f"   {left}"
            for name, *values, left in rows
        )


def why_no_other() -> str:
    """Return why no other user can make testbeds here; empty when one can."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        return "this takes root and setpriv"
    if reason := account_access.problem():
        return reason
    done = subprocess.run([*BECOME, "unshare", "--map-current-user", "--net", "true"], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


def churn(options: argparse.Namespace) -> int:
    """Have it all happen in the folder named; return the exit code."""
    folder, users = Path(options.inside), [os.geteuid()]
    if options.users > 1:
        if reason := why_no_other():
            print(f"WITH ONE USER ONLY, as no other can make testbeds here: {reason}", flush=True)
        else:
            users.append(account_access.NOBODY)
    (folder / "ranks.py").write_text(RANK_SCRIPT)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    os.environ |= {"TMPDIR": str(folder / "tmp"), **SLEEP_WHILE_WAITING}
    made = Churn(options, folder, users)
    if reason := made.begin():
        print(f"No testbed can be made here: {reason}", file=sys.stderr)
        return 2
    try:
        made.run()
    finally:
        print(made.table(), flush=True)
    return 1 if any(made.left.values()) or any(life.failed for life in made.lives) else 0


def enter(options: argparse.Namespace) -> int:
    """Run this script in namespaces of its own, with a temporary folder that goes with it; return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="lab-churn-") as folder:
        Path(folder).chmod(0o755)
        own = [*WORLD, *(AS_USER if os.geteuid() else ())]
        around = [*as_others_can(), *own, "bash", "-c", BEGIN, "bash"]
        done = subprocess.run([*around, "true"], capture_output=True, text=True)
        if done.returncode:
            print(f"No namespaces for this can be made here: {done.stderr.strip()}", file=sys.stderr)
            return 2
        names = ("times", "nodes", "seed", "users")
        arguments = [f"--{name}={getattr(options, name)}" for name in names]
        return subprocess.run([*around, sys.executable, __file__, *arguments, f"--inside={folder}"]).returncode


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="testbeds, two at a time (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=16, help="the most of one; the least is 2 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what happens when (default: %(default)s)")
    parser.add_argument("--users", type=int, choices=(1, 2), default=2, help="(default: %(default)s)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--live", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.live:
        nodes, use, seconds, script, lives_on = options.live
        live(int(nodes), use, float(seconds), script, bool(int(lives_on)))
        return 0
    if not 2 <= options.nodes <= 64 or options.times < 1:
        parser.error("--nodes is from 2 to 64, and --times from 1")
    return churn(options) if options.inside else enter(options)


if __name__ == "__main__":
    raise SystemExit(main())
