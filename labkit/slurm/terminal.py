"""A terminal in a notebook, for Slurm's commands; without Slurm, it shows what was recorded."""

import os
import re
import subprocess
import time
from pathlib import Path

from labkit.measure import recorded
from labkit.slurm.cluster import Slurm

# Variables that describe a job, and those that change what Slurm's commands do. Some clusters need a few of these.
SETTINGS = re.compile("(.*_)?SLURM(?!_CONF$)|(SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SCANCEL|SACCT)_")
NEEDED = re.compile("[A-Z]+_(ACCOUNT|PARTITION|QOS|RESERVATION)")
TIMEOUT_S = 600.0  # of a command such as `sbatch --wait`
FILE_TIMEOUT_S = 60.0  # for a file that a node writes, which may appear late on a shared file system


class Terminal:
    """Type commands in the notebook's folder.

    Parameters
    ----------
    slurm : Slurm or None
        The Slurm that the commands talk to.
    recording : str
        The recording with their output, shown where there is no Slurm.
    **variables
        Environment variables, which jobs inherit.

    Attributes
    ----------
    lines : list of [str, str]
        Each command with its output.
    """

    def __init__(self, slurm: Slurm | None, recording: str, **variables: object) -> None:
        self.lines: list[list[str]] = []
        self._recorded: list[list[str]] | None = None
        is_real = slurm is not None and slurm.kind == "real"
        environ = {
            name: value
            for name, value in os.environ.items()
            if not SETTINGS.match(name) or (is_real and NEEDED.fullmatch(name))
        }
        environ.pop("TMPDIR", None)  # a kernel's temporary folder ends with the kernel
        self._environ = environ | {name: str(value) for name, value in variables.items()}
        if slurm:
            self._environ |= slurm.variables
        else:
            self._recorded = list(recorded(recording).data["lines"])

    def __call__(self, line: str) -> str:
        """Type a command, and show and return its output; an error is shown like any other output."""
        print(f"$ {line}", flush=True)
        output = self.output(line)
        self.lines.append([line, output])
        print(output)
        return output

    def output(self, line: str, timeout_s: float = TIMEOUT_S) -> str:
        """Return a command's output without showing it."""
        if self._recorded is not None:
            return self._replay(line)
        try:
            done = subprocess.run(
                line, shell=True, env=self._environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no answer within {timeout_s:g} s"
        return done.stdout.decode(errors="replace").strip()

    def read(self, path: Path, timeout_s: float = FILE_TIMEOUT_S, until: str = "") -> str:
        """Return a file that a job writes, once it contains a text; whatever it contains when the time is over."""
        deadline, text = time.monotonic() + timeout_s, ""
        while not text or until not in text:
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return text

    def _replay(self, line: str) -> str:
        """Return the next recorded output of a command."""
        assert self._recorded is not None
        for index, (typed, output) in enumerate(self._recorded):
            if typed == line:
                del self._recorded[index]
                return output
        return "(not recorded)"
