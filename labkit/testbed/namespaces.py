"""Linux namespaces (namespaces(7)), and a shell in them: what it makes is seen there alone, and ends with them.

Without root, they belong to a user namespace, in which this user may set up networks, and which gives no right to
anything outside (user_namespaces(7)).
"""

import contextlib
import fcntl
import itertools
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil

from labkit.system import processes, programs
from labkit.system.errors import LabError

PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
# Settings of the kernel, the value with which users may make no namespaces, and a better one. The first is Ubuntu's.
SETTINGS = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
    ("user.max_net_namespaces", "0", "10000"),
)
COMMAND_TIMEOUT_S = 15.0  # the limit for a command, which takes some milliseconds on an idle machine
SYSCTL = Path("/proc/sys")
ENDED = "this network, or one of its nodes, has ended: make another."

_OWN = ("--net", "--ipc", "--uts")  # namespaces of a node's own; UCX tells nodes by that of shared memory, IPC
_AS_USER = ("--map-current-user", "--keep-caps")  # the user's number stays, and so do the rights that come with it
_MARK = "labkit-status"


class NoTestbed(LabError):
    """No testbed can be made here: why not, and what somebody with root could do."""


class Shell:
    """A shell in namespaces of its own; they end when it is closed or forgotten, or when this process ends.

    Attributes
    ----------
    pid : int
        The shell's process.
    rootless : bool
        Whether the namespaces belong to a user namespace.

    Raises
    ------
    NoTestbed
        When the kernel does not allow it.
    """

    def __init__(self) -> None:
        missing = dict.fromkeys(package for program, package in PACKAGES.items() if not programs.which(program))
        if missing:
            raise NoTestbed(f"missing: {' '.join(missing)}. As root: `apt-get install {' '.join(missing)}`.")
        self._held = contextlib.ExitStack()
        weakref.finalize(self, self._held.close)  # an interrupt may come before whoever makes this has a name for it
        self._networks: set[int] = set()  # the numbers of the network namespaces
        self._count = itertools.count()  # numbers of the scripts: the output of an interrupted one is skipped
        self._shell: subprocess.Popen[bytes] | None = None
        try:
            self._begin()
        except BaseException:  # an interrupt too, after which this process may live on, as a notebook's does
            self.close()
            raise

    def _begin(self) -> None:
        # The processes that hold namespaces read this pipe, which comes to its end when this process ends, in any way.
        with _interrupts_wait():
            self._lifeline, writer = map(_above_standard_streams, os.pipe())
            for end in (self._lifeline, writer):
                self._held.callback(os.close, end)
        errors = []
        for rootless in (False, True) if os.geteuid() == 0 else (True,):
            self.rootless = rootless
            try:
                self._open()
            except LabError as error:
                errors.append(str(error))
            else:
                return
        raise NoTestbed(_explain(errors[-1]))

    def _open(self) -> None:
        with _interrupts_wait():
            self._shell = subprocess.Popen(
                ["unshare", *self._options, "bash", "--noprofile", "--norc"],
                cwd="/",
                env={"PATH": programs.search_path(), "LC_ALL": "C"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,  # without a buffer, which a forked process would write a second time
                pass_fds=[self._lifeline],
                start_new_session=True,  # out of an interrupt's reach
            )
            for pipe in (self._shell.stdin, self._shell.stdout):
                self._held.callback(pipe.close)  # type: ignore[union-attr]
        self.pid = self._shell.pid
        _open_ones.add(self)
        try:
            # Whatever this shell has started ends with this process too: a transfer would wait for half a minute for
            # one that has not begun.
            self.run(f"""
                {{ read -r -u {self._lifeline} || kill -s KILL 0; }} </dev/null >/dev/null 2>&1 &
                ip link set lo up
            """)
        except LabError:
            self._end_shell()
            raise
        self._keep(self.pid)

    @property
    def _options(self) -> tuple[str, ...]:
        return (*(_AS_USER if self.rootless else ()), *_OWN)

    def run(self, script: str, timeout: float | None = None) -> str:
        """Run commands, up to the first that fails; return what they print.

        They have `timeout` seconds, by default `COMMAND_TIMEOUT_S`.

        Raises
        ------
        LabError
            With what they print, when one fails; when they do not end.
        """
        assert self._shell
        assert self._shell.stdin
        assert self._shell.stdout
        if self._shell.stdin.closed:
            raise LabError(ENDED)
        number = next(self._count)
        begin, end = f"{_MARK}-{number}-begins\n", f"{_MARK}-{number}-ends "
        with contextlib.suppress(BrokenPipeError):
            lines = f"echo {begin}(set -e\n{script}\n) 2>&1\necho {end}$?\n"
            self._shell.stdin.write(lines.encode())
        timeout = timeout or COMMAND_TIMEOUT_S
        output, deadline = b"", time.monotonic() + timeout
        pipe, poll = self._shell.stdout.fileno(), select.poll()
        poll.register(pipe, select.POLLIN)
        while True:
            if not poll.poll(max(0.0, 1e3 * (deadline - time.monotonic()))):
                raise LabError(f"no end within {timeout:.0f} s of: {script.strip().splitlines()[-1]}")
            data = os.read(pipe, 1 << 16)
            output += data
            text, mark, status = output.decode(errors="replace").rpartition(begin)[2].partition(end)
            if mark and status.endswith("\n"):
                if status.strip() == "0":
                    return text
                raise LabError(text.strip() or f"exit status {status.strip()}")
            if not data:
                raise LabError(text.strip() or "the shell in the namespaces has ended")

    def spawn(self) -> int:
        """Start a process in further namespaces, which lie within these; return its number."""
        # The parent, this shell, keeps rights over them; any other process of this user enters them as their owner.
        options = " ".join(self._options)
        holder = f"unshare {options} sh -c 'echo $$; exec cat /dev/fd/{self._lifeline} >/dev/null 2>&1'"
        try:
            pid = int(self.run(f"read -r pid < <({holder})\necho $pid"))
        except LabError as error:
            raise NoTestbed(_explain(str(error))) from error
        self._keep(pid)
        return pid

    def _keep(self, pid: int) -> None:
        """Keep a process's network namespace open, so that no other gets its number before this is closed."""
        with _interrupts_wait():
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            self._held.callback(os.close, namespace)
            self._networks.add(os.fstat(namespace).st_ino)

    def enter(self, pid: int | None = None) -> list[str]:
        """Return the command under which another command runs in the namespaces, or in those of a spawned process.

        Raises
        ------
        LabError
            When they have ended.
        """
        self.check(pid)
        user = ["-U", "--preserve-credentials"] if self.rootless else []
        return ["nsenter", "-t", str(pid or self.pid), *user, "-n", "-i", "-u"]

    def check(self, pid: int | None = None) -> None:
        """Raise LabError when the namespaces, or those of a spawned process, have ended."""
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid or self.pid}/ns/net").stat().st_ino in self._networks:
                return
        raise LabError(ENDED)

    def close(self) -> None:
        """End all processes in the namespaces, and with the last of them the namespaces, despite interrupts."""
        processes.despite_interrupts(self._close)

    def _close(self) -> None:
        self._end_shell()
        processes.end_all(lambda: processes.find(self._holds))
        self._networks.clear()
        self._held.close()

    def _holds(self, process: psutil.Process) -> bool:
        """Whether a process is in one of the namespaces."""
        return Path(f"/proc/{process.pid}/ns/net").stat().st_ino in self._networks

    def _end_shell(self) -> None:
        if self._shell:
            self._shell.kill()
            self._shell.wait()
            for pipe in (self._shell.stdin, self._shell.stdout):
                pipe.close()  # type: ignore[union-attr]

    def leave(self) -> None:
        """Release the shell in a process that was forked meanwhile: it is the parent's, and ends with the parent."""
        self._networks.clear()
        self._held.close()


_open_ones: weakref.WeakSet[Shell] = weakref.WeakSet()


def _leave_all() -> None:
    for shell in list(_open_ones):
        shell.leave()


os.register_at_fork(after_in_child=_leave_all)


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Have an interrupt wait for the end of the block: what the block gets hold of has a name by then."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # where none comes
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _above_standard_streams(descriptor: int) -> int:
    """Return a duplicate above 2: without stdin in this process, a pipe may be 0, which a shell has for itself."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(descriptor)
    return moved


def _explain(error: str) -> str:
    """Return why there are no namespaces here, and what to do about it."""

    def setting(name: str) -> str:
        with contextlib.suppress(OSError):
            return (SYSCTL / name.replace(".", "/")).read_text(encoding="utf-8").strip()
        return ""

    for name, value, better in SETTINGS:
        if setting(name) == value:
            return f"the kernel keeps namespaces from users. As root: `sysctl -w {name}={better}`."
    text = error.splitlines()[-1] if error else "no word from unshare"
    if "No space left on device" in error:  # unshare(2)
        return (
            "the kernel allows no more namespaces. As root: "
            "`sysctl -w user.max_user_namespaces=10000 user.max_net_namespaces=10000`."
        )
    if "unrecognized option" in error:
        return "unshare of util-linux 2.36 or later is needed (`unshare --version`)."
    return (
        f"the kernel does not let this user make network namespaces ({text}). In a container: `--cap-add SYS_ADMIN "
        "--cap-add NET_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`."
    )
