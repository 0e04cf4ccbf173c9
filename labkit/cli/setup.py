"""The second half of set-up, run in the new environment: Horovod and bytecode; on request PyTorch.

The script `lab` creates the environment with all packages except Horovod, then runs `python -m labkit.cli.setup`.
Compiling Horovod takes longest; independent steps run concurrently.
"""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.system import paths, processes
from labkit.system.errors import LabError

VENV = paths.ROOT / ".venv"
COMPILER_PATHS = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH")  # modules name another MPI in them
SITE = VENV / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
WHEELS = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lab"]["wheels"]
PLATFORM = ("--python-platform", WHEELS[platform.machine()])
TORCH = paths.ENV / "torch"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Optional Debian packages, with the programs that labs use from them.
USEFUL = {"numactl": ("numactl",), "iproute2": ("ip", "tc"), "slurm-wlm munge": ("sbatch",)}
MAX_UPDATE_S = 60  # for apt-get update, even without a network


class Step(NamedTuple):
    """A set-up step that runs in the background, in its own session."""

    text: str
    log: Path
    process: subprocess.Popen[bytes]


def main() -> None:
    """Run the rest of set-up, printing each step with its seconds; exit with code 2 if one fails."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    packages = useful_packages()
    try:
        run(
            launch("Horovod, compiled for this TensorFlow", "setup", compile_horovod()),
            launch("Bytecode, for fast imports", "setup-bytecode", bytecode(sys.executable)),
            *([launch("Optional system packages", "setup-apt", install(packages))] if packages else []),
        )
        keep_mpi_here()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# Steps


def launch(text: str, log_name: str, script: str) -> Step:
    """Start a shell script in the kit's folder, with its output in `.lab/LOG_NAME.log`."""
    log = paths.STATE / f"{log_name}.log"
    with log.open("ab" if log_name == "setup" else "wb") as output:  # the script `lab` created setup.log
        process = subprocess.Popen(
            ["sh", "-c", script],
            cwd=paths.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Step(text, log, process)


def run(*steps: Step) -> None:
    """Wait for each step, showing elapsed seconds on a terminal. No step outlives this call, even after an interrupt.

    Raises
    ------
    LabError
        If a step fails; the end of its log is printed first.
    """
    try:
        for step in steps:
            _follow(step)
    finally:
        sessions = {step.process.pid for step in steps}
        processes.despite_interrupts(
            lambda: processes.end_all(lambda: processes.find(lambda process: os.getsid(process.pid) in sessions))
        )


def _follow(step: Step) -> None:
    start, live = time.monotonic(), sys.stdout.isatty()

    def show(before: str = "", after: str = "") -> None:
        print(f"{before}  {step.text:44} {time.monotonic() - start:4.0f} s", end=after, flush=True)

    while step.process.poll() is None:
        if live:
            show(before="\r")
        time.sleep(processes.POLL_INTERVAL_S)
    show("\r" if live else "", "\n")
    if step.process.returncode:
        print(*step.log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:], sep="\n", file=sys.stderr)
        again = os.environ.get("LAB_AGAIN", "./lab setup")
        raise LabError(f'set-up stopped at "{step.text}". The full log is {paths.shown(step.log)}; {again} resumes.')


# The steps' commands


def compile_horovod() -> str:
    """Return the script that compiles and installs Horovod, or installs the wheel that uv has cached.

    MPICH and TensorFlow print compiler flags that are split at blanks, and shells interpret other characters. If the
    kit's path contains one, compile through a symlink without them, then reinstall the wheel, whose scripts would
    otherwise point to the link.
    """
    install = f"{_sync_horovod(paths.ROOT)} && {_words(sys.executable, '-m', 'compileall', '-q', SITE / 'horovod')}"
    if re.fullmatch(r"[\w./+-]*", str(paths.ROOT), re.ASCII):
        return install
    link = Path(tempfile.mkdtemp()) / "kit"
    link.symlink_to(paths.ROOT)
    remove = _words(processes.uv(), "pip", "uninstall", "--python", VENV, "horovod")
    return f"trap {shlex.quote(_words('rm', '-r', link.parent))} EXIT; {_sync_horovod(link)} && {remove} && {install}"


def _sync_horovod(kit: Path) -> str:
    """Return the command that completes the environment of a checkout; env/horovod/README.md has the reasons."""
    variables = {
        "UV_PROJECT_ENVIRONMENT": kit / ".venv",
        "VIRTUAL_ENV": kit / ".venv",
        "PATH": f"{kit / '.venv/bin'}:{os.environ['PATH']}",  # CMake's, MPICH's and Hydra's programs
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        "CMAKE_TOOLCHAIN_FILE": kit / "env/horovod/toolchain.cmake",
    }
    groups = os.environ.get("LAB_GROUPS", "").split()
    sync = (processes.uv(), "sync", "--locked", *PLATFORM, *(f"--group={name}" for name in groups))
    unset = (f"--unset={name}" for name in COMPILER_PATHS)
    return _words("env", *unset, *(f"{name}={value}" for name, value in variables.items()), *sync)


def bytecode(python: str | Path) -> str:
    """Return the command that compiles the kit's imports to bytecode in this Python's environment."""
    return _words("nice", python, paths.ENV / "bytecode.py")


def useful_packages() -> list[str]:
    """Return the missing optional packages, if they can be installed: as root, on Debian, online."""
    if os.geteuid() != 0 or not shutil.which("apt-get") or "UV_OFFLINE" in os.environ:
        return []
    return [package for package, names in USEFUL.items() if not all(map(processes.which, names))]


def install(packages: Sequence[str]) -> str:
    """Return the script that installs system packages one by one, so that an unavailable one doesn't stop the rest."""
    apt = "DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends -y"
    installs = [f"{apt} {package} || echo continuing without {package}" for package in packages]
    return "; ".join([f"timeout {MAX_UPDATE_S} apt-get update", *installs])


def keep_mpi_here() -> None:
    """Restrict UCX to shared memory, unless a variable allows more, and make `mpirun` the kit's wrapper.

    By default, MPI programs listen on all of a machine's addresses (docs/contribute/upstream.md). When srun starts
    Python on several nodes, the .pth file enables all UCX transports (`site`, in Python's library).
    """
    configuration = VENV / "lib/etc/ucx/ucx.conf"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    configuration.write_text("UCX_TLS=sm,self\n", encoding="utf-8")
    (SITE / "labkit-mpi.pth").write_bytes(
        b'import os; os.environ.get("SLURM_STEP_NUM_NODES", "1") == "1" or os.environ.setdefault("UCX_TLS", "all")\n'
    )
    for name in ("mpirun", "mpiexec"):
        (VENV / "bin" / name).unlink(missing_ok=True)
        (VENV / "bin" / name).symlink_to("../../labkit/mpi/mpirun.sh")


def install_torch() -> None:
    """Install PyTorch for CPUs in `env/torch/packages`; if that fails, leave the folder unchanged.

    It comes from the index set for uv or pip or, failing that, from PyTorch's own. Raise LabError if neither has it.
    """
    part, packages, requirements = TORCH / ".packages.part", TORCH / "packages", TORCH / "requirements.txt"
    shutil.rmtree(part, ignore_errors=True)
    links = [word for place in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", place)]
    command = (processes.uv(), "pip", "install", "--python", VENV, "--target", part, "--no-deps", "-r", requirements)
    index = ("--index", TORCH_INDEX, "--index-strategy", "unsafe-best-match")  # safe: versions and hashes are pinned
    # This import writes the bytecode, without which each rank would take twice as long to start.
    variables = ("env", "PYTHONDONTWRITEBYTECODE=", f"PYTHONPATH={part}")
    trial = (*variables, sys.executable, "-c", "import torch.distributed.fsdp, torch._dynamo")
    script = f"{{ {_words(*command, *links)} || {_words(*command, *links, *index)}; }} && {_words(*trial)}"
    os.environ["LAB_AGAIN"] = "./lab setup --torch (with its wheel in FOLDER: UV_FIND_LINKS=FOLDER ./lab setup --torch)"
    run(launch("PyTorch for CPUs, for labs 03, 07, 08 and 11: 1 GB", "setup-torch", script))
    shutil.copy(requirements, part)
    shutil.rmtree(packages, ignore_errors=True)
    part.rename(packages)


def _words(*words: str | Path) -> str:
    return shlex.join(map(str, words))


if __name__ == "__main__":
    main()
