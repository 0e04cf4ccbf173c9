"""The second half of set-up, run by the new environment: Horovod and bytecode; on request PyTorch and OpenMP.

The script `lab` makes the environment with all packages but Horovod and starts `python -m labkit.cli.setup`. Horovod's
compilation takes longest; what does not depend on it runs at the same time.
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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.system import paths, processes, programs
from labkit.system.errors import LabError

VENV = paths.ROOT / ".venv"
SITE = VENV / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
WHEELS = "x86_64-manylinux_2_28" if platform.machine() == "x86_64" else "aarch64-manylinux_2_35"
PLATFORM = ("--python-platform", WHEELS)  # as in the script `lab`
TORCH = paths.ENV / "torch"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Debian's packages that labs can use, and do without, with their programs.
USEFUL = {"numactl": ("numactl",), "iproute2": ("ip", "tc"), "slurm-wlm munge": ("sbatch",)}
MAX_UPDATE_S = 60  # for apt-get update, without a network too


class Step(NamedTuple):
    """A part of set-up that runs in the background, in a session of its own."""

    text: str
    log: Path
    process: subprocess.Popen[bytes]


def main() -> None:
    """Run the rest of set-up; print each part with its seconds, and end with exit code 2 when one fails."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    packages = useful_packages()
    try:
        run(
            launch("Horovod, compiled for this TensorFlow", "setup", compile_horovod()),
            launch("Bytecode, so that imports are fast", "setup-bytecode", bytecode(sys.executable)),
            *([launch("System packages that labs can use", "setup-apt", install(packages))] if packages else []),
        )
        keep_mpi_here()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


# Steps


def launch(text: str, log_name: str, script: str) -> Step:
    """Start a shell script, in the kit's folder, with its output in `.lab/LOG_NAME.log`."""
    log = paths.STATE / f"{log_name}.log"
    with log.open("ab" if log_name == "setup" else "wb") as output:  # `lab` has begun that one
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
    """Wait for each step, with the seconds so far on a terminal; then, or after an interrupt, none is left.

    Raises
    ------
    LabError
        When one fails, after the end of its log.
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
        raise LabError(
            f'set-up stopped at "{step.text}". The whole story is in {paths.shown(step.log)}; {again} resumes.'
        )


# What the steps run


def compile_horovod() -> str:
    """Return the script that compiles and installs Horovod, or installs uv's wheel of it.

    MPICH and TensorFlow print flags that are split at blanks, and shells read other characters. If the kit's path has
    one, a plain link is compiled in, and the wheel then installed again, as its programs would name the link.
    """
    install = f"{_sync_horovod(paths.ROOT)} && {_words(sys.executable, '-m', 'compileall', '-q', SITE / 'horovod')}"
    if re.fullmatch(r"[\w./+-]*", str(paths.ROOT), re.ASCII):
        return install
    link = Path(tempfile.mkdtemp()) / "kit"
    link.symlink_to(paths.ROOT)
    remove = _words(programs.uv(), "pip", "uninstall", "--python", VENV, "horovod")
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
    groups = paths.STATE / "groups"
    wanted = sorted(set(groups.read_text(encoding="utf-8").split())) if groups.exists() else []
    sync = (programs.uv(), "sync", "--locked", *PLATFORM, *(f"--group={group}" for group in wanted))
    return _words("env", *(f"{name}={value}" for name, value in variables.items()), *sync)


def bytecode(python: str | Path) -> str:
    """Return the command that compiles what the kit imports in the environment of this Python."""
    return _words("nice", python, paths.ENV / "bytecode.py")


def useful_packages() -> list[str]:
    """Return the system packages that labs can use and that can be installed here: as root, on Debian, online."""
    if os.geteuid() != 0 or not shutil.which("apt-get") or "UV_OFFLINE" in os.environ:
        return []
    return [package for package, names in USEFUL.items() if not all(map(programs.which, names))]


def install(packages: Sequence[str]) -> str:
    """Return the script that installs system packages, each on its own: one that is not available stops no other."""
    apt = "DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends -y"
    each = [f"{apt} {package} || echo going on without {package}" for package in packages]
    return "; ".join([f"timeout {MAX_UPDATE_S} apt-get update", *each])


def keep_mpi_here() -> None:
    """Restrict UCX to shared memory, unless a variable allows more, and have `mpirun` be the kit's wrapper.

    By themselves, MPI's programs listen on all of a machine's addresses (docs/upstream.md). A Python that srun starts
    on several nodes gets all of UCX's transports from the .pth file (`site`, in Python's library).
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
    """Install PyTorch for CPUs in `env/torch/packages`, or leave what was there.

    It comes from where uv and pip are configured to look, else from PyTorch's own index. Raises LabError when it is in
    neither.
    """
    part, packages, requirements = TORCH / ".packages.part", TORCH / "packages", TORCH / "requirements.txt"
    shutil.rmtree(part, ignore_errors=True)
    links = [word for place in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", place)]
    command = (programs.uv(), "pip", "install", "--python", VENV, "--target", part, "--no-deps", "-r", requirements)
    index = ("--index", TORCH_INDEX, "--index-strategy", "unsafe-best-match")  # versions and sums say what a file is
    # Its import leaves the bytecode, without which each rank would take twice as long to start.
    variables = ("env", "PYTHONDONTWRITEBYTECODE=", f"PYTHONPATH={part}")
    trial = (*variables, sys.executable, "-c", "import torch.distributed.fsdp, torch._dynamo")
    script = f"{{ {_words(*command, *links)} || {_words(*command, *links, *index)}; }} && {_words(*trial)}"
    os.environ["LAB_AGAIN"] = "with its wheel in a folder, UV_FIND_LINKS=FOLDER ./lab setup --torch"
    run(launch("PyTorch for CPUs, for labs 03 and 11: 1 GB", "setup-torch", script))
    shutil.copy(requirements, part)
    shutil.rmtree(packages, ignore_errors=True)
    part.rename(packages)


def install_openmp() -> None:
    """Make the environment with the TensorFlow of 2023 that was built with OpenMP, in `env/openmp/.venv`.

    Where there is no Python for it, print that it is left out. Raises LabError when its packages can't be installed.
    """
    if platform.machine() != "x86_64":
        print("TensorFlow of 2023 is left out: it has no package for Arm.")
        return
    uv, project = programs.uv(), paths.ENV / "openmp"
    find, fetch = (_words(uv, "python", verb, "3.11") for verb in ("find", "install"))
    if processes.run(["sh", "-c", f"{find} || {fetch}"]).failure:
        print("TensorFlow of 2023 is left out: it needs Python 3.11, which is not here, and uv could not download it.")
        return
    os.environ["LAB_AGAIN"] = "./lab setup --openmp"
    sync = _words(uv, "sync", "--locked", *PLATFORM, "--project", project)
    script = f'{sync} --python "$({find})" && {bytecode(paths.OPENMP_PYTHON)}'
    run(launch("TensorFlow of 2023 with OpenMP: 1.2 GB", "setup-openmp", script))


def _words(*words: str | Path) -> str:
    return shlex.join(map(str, words))


if __name__ == "__main__":
    main()
