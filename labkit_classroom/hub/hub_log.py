"""The hub's log: what its own processes say and, after the seat's name, what students' servers say.

A server's output is a named pipe that the hub reads: a student, who can write to it, has no way to the log itself. It
is named so that a server goes on without its hub, and is heard again by the next one.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit.system import terminal
from labkit_classroom.hub import settings
from labkit_classroom.hub.settings import State

LOG, LOG_LINES, RECENT_LINES = "hub.log", 8, 200
OUTPUT = "output"  # the folder of the pipes, among the hub's sockets; only the hub can enter
CHUNK, PAUSE_S = 1 << 16, 0.2  # bytes at a time, and seconds between: who writes more waits
MAX_LINE = 2000  # bytes of a line
ALLOWED, ALLOWED_S = 1 << 16, 3600.0  # bytes of each seat, in so many seconds: more would fill the disk
_heard: dict[Path, "_Output"] = {}


def last_words(folder: Path, seat: str = "") -> list[str]:
    """Return the kit's own last word in a hub's log, which says what to do; without one, the log's last lines.

    Of students' servers, that of `seat` alone is believed to have the kit's word: its student can write what they like.
    """
    with contextlib.suppress(OSError):
        lines = (folder / LOG).read_text(errors="replace").splitlines()
        starts = ("lab: ", *([f"{seat}: lab: "] if seat else []))
        own = [line for line in lines[-RECENT_LINES:] if line.startswith(starts)]
        return own[-1:] or lines[-LOG_LINES:]
    return []


def note(seat: str, lines: Iterable[bytes]) -> None:
    """Write what a seat's server has said to the log of this hub, which is its standard error."""
    text = "".join(f"{seat}: {terminal.harmless(line[:MAX_LINE].decode(errors='replace'))}\n" for line in lines)
    with contextlib.suppress(OSError):  # such as a full disk
        os.write(2, text.encode())


def set_records_apart() -> None:
    """Indent the further lines of this process's messages, so that none looks like several in the log."""
    logging.setLogRecordFactory(_Record)


class _Record(logging.LogRecord):
    def getMessage(self) -> str:
        return "\n  ".join(map(terminal.harmless, super().getMessage().split("\n")))


class Heard:
    """A spawner of processes of this machine, whose output the hub reads."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Hear a server again that has gone on without the hub."""
        super().load_state(state)  # type: ignore[misc]
        if self.pid:  # type: ignore[attr-defined]
            _hear(settings.own(), self.user.name)  # type: ignore[attr-defined]

    async def start(self) -> Any:
        """Start the server; of the hub's descriptors, it has none."""
        with _hear(settings.own(), self.user.name).writing() as output:  # type: ignore[attr-defined]
            self.popen_kwargs = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            return await super().start()  # type: ignore[misc]


def _hear(hub: State, seat: str) -> "_Output":
    """Return the pipe that a seat's server writes to, and copy it to the log from now on."""
    pipe = hub.runtime / OUTPUT / seat
    if pipe not in _heard:
        pipe.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(pipe, 0o600)
        _heard[pipe] = _Output(pipe, lambda lines: note(seat, lines))
    return _heard[pipe]


class _Output:
    """A pipe that is read at a moderate pace, and told on in whole lines, so many bytes an hour."""

    def __init__(self, pipe: Path, tell: Callable[[list[bytes]], None]) -> None:
        self._pipe, self._tell = pipe, tell
        self._rest = b""
        self._left, self._since = ALLOWED, time.monotonic()
        self._end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # with both ends here, it does not end with a server
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end, self._read)

    @contextlib.contextmanager
    def writing(self) -> Iterator[int]:
        """Yield the end to write to."""
        end = os.open(self._pipe, os.O_WRONLY)
        try:
            yield end
        finally:
            os.close(end)

    def _read(self) -> None:
        self._loop.remove_reader(self._end)
        self._loop.call_later(PAUSE_S, self._loop.add_reader, self._end, self._read)
        *lines, self._rest = (self._rest + os.read(self._end, CHUNK)).split(b"\n")
        if len(self._rest) > MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        self._tell(list(self._within_bounds(lines)))

    def _within_bounds(self, lines: list[bytes]) -> Iterator[bytes]:
        if time.monotonic() - self._since > ALLOWED_S:
            self._left, self._since = ALLOWED, time.monotonic()
        for line in lines:
            if self._left <= 0:
                return
            self._left -= min(len(line), MAX_LINE) + 1
            yield line if self._left > 0 else b"says too much: the rest of this hour is left out"
