"""MNIST brought into the data folder from its mirrors: a whole file, or none."""

import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from labkit.data.mnist import REGISTRY, data_folder, is_intact, read_registry
from labkit.system.errors import LabError
from labkit.system.paths import shown

# pooch and requests are imported where they are used: the command line imports this module to list the data.

MAX_SILENCE_S = 10.0  # the time that a mirror has to answer, or to send its next bytes


def fetch(
    folder: Path | None = None, registry: Path = REGISTRY, max_silence_s: float = MAX_SILENCE_S, show: bool = True
) -> str:
    """Bring MNIST into the data folder, and return a line on what was done.

    The file appears under its name whole and checked, or not at all. A damaged one is replaced.

    Parameters
    ----------
    folder, registry : Path
        As for `load_digits`.
    max_silence_s : float
        Seconds for which a mirror may send nothing.
    show : bool
        Draw a progress bar on stderr.

    Raises
    ------
    LabError
        No mirror gave MNIST, or the folder cannot be written.
    """
    import pooch
    import requests

    folder, file = data_folder(folder), read_registry(registry)
    if is_intact(folder, file):
        return f"MNIST is in {shown(folder)}/, whole and intact."
    pooch.get_logger().setLevel("WARNING")  # its own words name the temporary folder
    download = pooch.HTTPDownloader(progressbar=show, timeout=max_silence_s)
    refusals = []
    try:
        # Whatever a killed download leaves behind is in a folder that git ignores and no lab reads.
        with tempfile.TemporaryDirectory(prefix="mnist-unfinished-", dir=folder) as staging:
            for mirror in file.mirrors:
                host = urlsplit(mirror).netloc
                if show:
                    print(f"{file.name} from {host}:", file=sys.stderr)
                try:
                    pooch.retrieve(mirror + file.name, f"sha256:{file.sha256}", file.name, staging, downloader=download)
                except requests.HTTPError as error:
                    refusals.append(f"{host} answered {error.response.status_code}")
                except requests.RequestException:
                    refusals.append(f"{host} cannot be reached, or broke off, or said nothing for {max_silence_s:g} s")
                except ValueError:  # pooch's word for another SHA-256
                    refusals.append(f"{host} sent another file")
                else:
                    whole = Path(staging, file.name)
                    whole.chmod(0o644)  # a temporary file is its owner's alone; this one may be for a class
                    whole.replace(folder / file.name)
                    return f"{file.name}: {file.size:,} bytes from {host}, SHA-256 as registered."
    except OSError as error:
        raise LabError(
            f"{shown(folder)} cannot be written ({error.strerror or error}): "
            "ask whoever keeps that folder, or set LAB_DATA to one of your own."
        ) from error
    raise LabError(
        f"No mirror gave MNIST ({', '.join(refusals)}). No network? Copy {file.name} to {shown(folder)}/ "
        f"by hand: its addresses, size and SHA-256 are in {shown(registry)}."
    )
