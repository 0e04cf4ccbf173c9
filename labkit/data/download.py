"""MNIST brought into the data folder from its mirrors: whole files only, within bounds of silence and time."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from labkit.data.mnist import (
    REGISTRY,
    Damaged,
    File,
    Form,
    data_folder,
    is_intact,
    is_whole,
    read_intact,
    read_registry,
)
from labkit.system.errors import LabError
from labkit.system.paths import shown

# pooch, requests and Rich are imported where they are used: the command line imports this module to say what is there.

MAX_SILENCE_S = 10.0  # that a mirror may take to answer, or to send its next bytes
MAX_FETCH_S = 600.0  # for one `fetch` in all: enough for mnist.npz at 20 kB/s


def fetch(
    folder: Path | None = None,
    registry: Path = REGISTRY,
    max_silence_s: float = MAX_SILENCE_S,
    max_s: float = MAX_FETCH_S,
    show: bool = True,
) -> list[str]:
    """Bring MNIST into the data folder, and return one line for each thing done.

    The first form that the mirrors give (`mnist.npz`, else the four IDX files) is enough. A file appears under its
    name whole and checked, or not at all. Damaged files are replaced, or deleted when another form made them needless.

    Parameters
    ----------
    folder, registry : Path
        As for `load_digits`.
    max_silence_s, max_s : float
        How long a mirror may send nothing, and how long all of it may take, in seconds.
    show : bool
        Draw a progress bar for each file on stderr.

    Raises
    ------
    LabError
        No mirror gave MNIST, or the folder cannot be written.
    """
    folder, forms = data_folder(folder), read_registry(registry)
    whole = any(is_whole(folder, form) for form in forms)
    try:
        done = (
            []
            if whole
            else _fetch_first(forms, folder, registry, _Bounds(max_silence_s, time.monotonic() + max_s), show)
        )
        done += _delete_damaged(folder, forms)
    except OSError as error:
        raise LabError(
            f"{shown(folder)} cannot be written ({error.strerror or error}): "
            "ask whoever keeps that folder, or set LAB_DATA to one of your own."
        ) from error
    return done or [f"MNIST is in {shown(folder)}/, whole and intact."]


class _Bounds(NamedTuple):
    max_silence_s: float
    deadline: float  # on the monotonic clock


class _NotServed(Exception):
    """Says why a mirror did not give a file, or why none of a file's mirrors did."""


def _fetch_first(forms: tuple[Form, ...], folder: Path, registry: Path, bounds: _Bounds, show: bool) -> list[str]:
    failures = []
    for form in forms:
        wanted = [file for file in form.files if not is_intact(folder, file)]
        try:
            return [_fetch_file(file, form.mirrors, folder, bounds, show) for file in wanted]
        except _NotServed as failure:
            failures.append(str(failure))
    raise LabError(
        f"No mirror gave MNIST ({'; '.join(failures)}). No network? Copy {forms[0].files[0].name} to {shown(folder)}/ "
        f"by hand: its addresses, size and SHA-256 are in {shown(registry)}."
    )


def _fetch_file(file: File, mirrors: tuple[str, ...], folder: Path, bounds: _Bounds, show: bool) -> str:
    """Bring one file from the first mirror that gives it intact; nothing under its name changes before."""
    import pooch
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    pooch.get_logger().setLevel("WARNING")  # the progress bar says it already
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    refusals = []
    with (
        # Whatever a killed download leaves behind is in a folder that git ignores and no lab reads.
        tempfile.TemporaryDirectory(prefix="mnist-unfinished-", dir=folder) as staging,
        Progress(*columns, console=Console(stderr=True), disable=not show) as progress,
    ):
        for mirror in mirrors:
            host = urlsplit(mirror).netloc
            task = progress.add_task(file.name, total=file.size)
            download = _Download(file.size, bounds, partial(progress.advance, task))
            try:
                pooch.retrieve(mirror + file.name, f"sha256:{file.sha256}", file.name, staging, downloader=download)
            except (_NotServed, ValueError) as refusal:
                progress.remove_task(task)
                # ValueError is pooch's word for another SHA-256.
                refusals.append(f"{host} {refusal if isinstance(refusal, _NotServed) else 'sent an altered file'}")
                continue
            whole = Path(staging, file.name)
            whole.chmod(0o644)  # a temporary file is its owner's alone; this one may be for a class
            whole.replace(folder / file.name)
            return f"{file.name}: {file.size:,} bytes from {host}, SHA-256 as registered."
    raise _NotServed(f"{file.name}: {', '.join(refusals)}")


@dataclass(frozen=True)
class _Download:
    """What pooch calls to download one file: within bounds of silence, time and size.

    pooch's own HTTPDownloader (1.9) takes requests' time-out, which bounds the silence between two reads: a mirror that
    drips byte by byte holds it for hours. It also unpacks a .gz that the server declares to be an encoding.
    """

    size: int
    bounds: _Bounds
    advance: Callable[[int], None]

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Write what is at `url` to `output_file`, or raise `_NotServed`."""
        import requests
        from urllib3.exceptions import HTTPError, TimeoutError

        if time.monotonic() > self.bounds.deadline:
            raise _NotServed("was not asked: no time left")
        try:
            with requests.get(url, stream=True, timeout=self.bounds.max_silence_s) as response:
                response.raise_for_status()
                with Path(output_file).open("wb") as output:
                    received = self._copy(response.raw, output)
        except requests.HTTPError as error:
            raise _NotServed(f"answered {error.response.status_code}") from error
        except (requests.Timeout, TimeoutError) as error:
            raise _NotServed(f"said nothing for {self.bounds.max_silence_s:g} s") from error
        except requests.RequestException as error:
            raise _NotServed("cannot be reached") from error
        except HTTPError as error:
            raise _NotServed("broke off") from error
        if received != self.size:
            raise _NotServed(f"sent {received:,} bytes instead of {self.size:,}")

    def _copy(self, source, output) -> int:
        received = 0
        # read1 gives whatever has come: the deadline holds against a mirror that sends byte by byte, too.
        while chunk := source.read1(2**16, decode_content=False):
            received += len(chunk)
            if received > self.size:
                raise _NotServed(f"sent more than {self.size:,} bytes")
            if time.monotonic() > self.bounds.deadline:
                raise _NotServed("was too slow")
            output.write(chunk)
            self.advance(len(chunk))
        return received


def _delete_damaged(folder: Path, forms: tuple[Form, ...]) -> list[str]:
    done = []
    for file in (file for form in forms for file in form.files):
        try:
            read_intact(folder, file)
        except Damaged as damage:
            (folder / file.name).unlink()
            done.append(f"{file.name}: deleted, it was damaged ({damage}) and is not needed.")
    return done
