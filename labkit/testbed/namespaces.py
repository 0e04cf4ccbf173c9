"""Linux namespaces (namespaces(7)), and a shell inside: anything it creates is visible only there, and ends with them.

Without root, they belong to a user namespace, in which this user may set up networks, and which grants no rights
outside (user_namespaces(7)).
"""

import contextlib
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

from labkit.system import processes
from labkit.system.errors import LabError

PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
# Kernel settings, with the value that keeps users from making namespaces, and one that doesn't. The first is Ubuntu's.
SETTINGS = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
    ("user.max_net_namespaces", "0", "10000"),
)
COMMAND_TIMEOUT_S = 15.0  # per command, which takes milliseconds on an idle machine
SYSCTL = Path("/proc/sys")
ENDED = "this testbed, or one of its nodes, has ended: make a new one."

_OWN = ("--net", "--ipc", "--uts")  # a node's namespaces; UCX distinguishes nodes by the IPC one, of shared memory
_AS_USER = ("--map-current-user", "--keep-caps")  # keeps the user's id, and the capabilities in the new namespace
_MARK = "labkit-status"


class Shell:
    """A shell in new namespaces; they end when it is closed or garbage-collected, or when this process ends.

    Attributes
    ----------
    pid : int
        The shell's process.
    rootless : bool
        Whether the namespaces belong to a user namespace.

    Raises
    ------
    LabError
        If the kernel does not allow it.
    """

    def __init__(self) -> None:
        missing = dict.fromkeys(package for program, package in PACKAGES.items() if not processes.which(program))
        if missing:
            raise LabError(f"missing: {' '.join(missing)}. As root: `apt-get install {' '.join(missing)}`.")
        self._held = contextlib.ExitStack()
        weakref.finalize(self, self._held.close)  # an interrupt may arrive before the caller has a reference
        self._networks: set[int] = set()  # the inodes of the network namespaces
        self._count = itertools.count()  # numbers the scripts: output of an interrupted one is skipped
        self.rootless = os.geteuid() != 0
        self._shell: subprocess.Popen[bytes] | None = None
        try:
            self._begin()
        except BaseException:  # including an interrupt, which a notebook's process survives
            self.close()
            raise

    def _begin(self) -> None:
        # The processes that hold namespaces read this pipe, which closes when this process ends, however it ends.
        with _interrupts_wait():
            self._lifeline, writer = os.pipe()
            for end in (self._lifeline, writer):
                self._held.callback(os.close, end)
        with _interrupts_wait():
            self._shell = subprocess.Popen(
                ["unshare", *self._options, "bash", "--noprofile", "--norc"],
                cwd="/",
                env={"PATH": processes.search_path(), "LC_ALL": "C"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,  # a forked process would write a buffer a second time
                pass_fds=[self._lifeline],
                start_new_session=True,  # out of an interrupt's reach
            )
            for pipe in (self._shell.stdin, self._shell.stdout):
                self._held.callback(pipe.close)  # type: ignore[union-attr]
        self.pid = self._shell.pid
        try:
            # All descendants of this shell end with this process too: a transfer would wait half a minute for a peer
            # that has not started.
            self.run(f"""
                {{ read -r -u {self._lifeline} || kill -s KILL 0; }} </dev/null >/dev/null 2>&1 &
                ip link set lo up
            """)
        except LabError as error:
            raise LabError(_explain(str(error))) from error
        self._keep(self.pid)

    @property
    def _options(self) -> tuple[str, ...]:
        return (*(_AS_USER if self.rootless else ()), *_OWN)

    def run(self, script: str, timeout: float | None = None) -> str:
        """Run commands, up to the first that fails; return their output.

        The limit is `timeout` seconds, by default `COMMAND_TIMEOUT_S`.

        Raises
        ------
        LabError
            If one fails, with their output, or if they do not end in time.
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
                raise LabError(f"timed out after {timeout:.0f} s: {script.strip().splitlines()[-1]}")
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
        """Start a process in further namespaces, nested in these; return its id."""
        # The parent, this shell, keeps its capabilities over them; other processes of this user enter as their owner.
        options = " ".join(self._options)
        holder = f"unshare {options} sh -c 'echo $$; exec cat /dev/fd/{self._lifeline} >/dev/null 2>&1'"
        try:
            pid = int(self.run(f"read -r pid < <({holder})\necho $pid"))
        except LabError as error:
            raise LabError(_explain(str(error))) from error
        self._keep(pid)
        return pid

    def _keep(self, pid: int) -> None:
        """Keep a process's network namespace open, so that its inode is not reused before this is closed."""
        with _interrupts_wait():
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            self._held.callback(os.close, namespace)
            self._networks.add(os.fstat(namespace).st_ino)

    def enter(self, pid: int | None = None) -> list[str]:
        """Return the command prefix that runs a command in the namespaces, or in those of a spawned process.

        Raises
        ------
        LabError
            If they have ended.
        """
        pid = pid or self.pid
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/ns/net").stat().st_ino in self._networks:
                user = ["-U", "--preserve-credentials"] if self.rootless else []
                return ["nsenter", "-t", str(pid), *user, "-n", "-i", "-u"]
        raise LabError(ENDED)

    def close(self) -> None:
        """End all processes in the namespaces, and so the namespaces, despite interrupts."""
        processes.despite_interrupts(self._close)

    def _close(self) -> None:
        self._end_shell()
        processes.end_all(lambda: processes.find(self._holds))
        self._networks.clear()
        self._held.close()

    def _holds(self, process: psutil.Process) -> bool:
        """Return whether a process is in one of the namespaces."""
        return Path(f"/proc/{process.pid}/ns/net").stat().st_ino in self._networks

    def _end_shell(self) -> None:
        if self._shell:
            self._shell.kill()
            self._shell.wait()
            for pipe in (self._shell.stdin, self._shell.stdout):
                pipe.close()  # type: ignore[union-attr]


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Delay an interrupt until the end of the block, so that resources opened in it are not lost."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # not interruptible
        yield
        return
    pending: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pending.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pending:
            signal.raise_signal(signal.SIGINT)


def _explain(error: str) -> str:
    """Return why there are no namespaces here, and the remedy."""

    def setting(name: str) -> str:
        with contextlib.suppress(OSError):
            return (SYSCTL / name.replace(".", "/")).read_text(encoding="utf-8").strip()
        return ""

    for name, value, better in SETTINGS:
        if setting(name) == value:
            return f"the kernel does not let users make namespaces. As root: `sysctl -w {name}={better}`."
    text = error.splitlines()[-1] if error else "no message from unshare"
    if "No space left on device" in error:  # unshare(2)
        return (
            "the kernel allows no more namespaces. As root: "
            "`sysctl -w user.max_user_namespaces=10000 user.max_net_namespaces=10000`."
        )
    return (
        f"the kernel does not let this user make network namespaces ({text}). In a container: `--cap-add SYS_ADMIN "
        "--cap-add NET_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined`."
    )
