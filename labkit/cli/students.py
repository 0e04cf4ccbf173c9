"""Commands for students: the labs, the machine, the room."""

import functools
import json
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import LabNumber, StudentFolder
from labkit.system import account_access, files, huge_pages, paths, terminal
from labkit.system.errors import LabError

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="The labs")


@command(epilog="Example: `./lab setup` or `./lab setup --from /media/stick/labs`")
def setup(
    source: Annotated[
        str | None, typer.Option("--from", help="the folder of a pack (`./lab pack`): needs no network")
    ] = None,
    classroom: Annotated[
        bool, typer.Option("--classroom", help="bring what teaching takes too: guide, board, hub")
    ] = False,
    author: Annotated[bool, typer.Option("--author", help="bring what writing and testing labs takes too")] = False,
    torch: Annotated[
        bool, typer.Option("--torch", help="add PyTorch for CPUs, for labs 03 and 11: 1 GB, half a minute")
    ] = False,
    openmp: Annotated[
        bool,
        typer.Option("--openmp", help="add TensorFlow of 2023 with OpenMP, for a section of lab 03: 1.2 GB"),
    ] = False,
) -> None:
    """Make the environment, or repair it. Every command does it when needed.

    It is in `.venv`: 3 GB, about two minutes, over the network. The log is `.lab/setup.log`. If set-up was interrupted,
    the same command resumes. Packages for teaching and writing labs are added by the first command that needs them, or
    here, before a day without a network. PyTorch and the TensorFlow of 2023 are added only with `--torch` and
    `--openmp`, in folders of their own.
    """
    from labkit.cli.setup import install_openmp, install_torch

    if torch:
        install_torch()
    if openmp:
        install_openmp()
    print("The environment is ready. Next: ./lab start")  # ./lab has made it, or this could not run
    if os.geteuid() == 0 and (reason := account_access.problem()):
        print(f"Other accounts, as of a hub's students, can't use it: {reason}. For those, {account_access.REMEDY}.")


@command(epilog="Example: `./lab start 07 --no-browser --port 8899`")
def start(
    folder: StudentFolder,
    lab: Annotated[str, typer.Argument(help="the lab to open, such as 07")] = "00",
    browser: Annotated[bool, typer.Option(help="open a browser window")] = True,
    port: Annotated[int, typer.Option(help="the first port to try", min=1, max=65535)] = 8888,
    with_huge_pages: Annotated[
        bool, typer.Option("--huge-pages", help="give the kernels, and what they start, pages of 2 MB (lab 03)")
    ] = False,
) -> None:
    """Open the labs in JupyterLab, on this machine only and with a token.

    You work in copies in your own folder, which git ignores: an update of the kit never meets your work. What cells
    write goes into `work/` there. `AGENTS.md` there tells coding assistants to explain, not to solve; it is yours to
    change. It runs until Ctrl-C; without a browser on this machine, open the printed address.
    """
    from jupyter_core.paths import SYSTEM_CONFIG_PATH
    from jupyterlab.labapp import LabApp

    from labkit.exercises import catalogue, working_copies
    from labkit.system import kernels

    notebook = working_copies.copy_path(catalogue.find(lab), folder)
    _report_copies(folder)
    os.environ["LAB_FOLDER"] = str(folder)  # for lab reset and lab report in JupyterLab's terminals
    os.environ.update(kernels.JUPYTER_VARIABLES)
    SYSTEM_CONFIG_PATH.clear()  # /etc/jupyter, which could start servers without a token
    if with_huge_pages and (reason := huge_pages.problem()):
        print(f"--huge-pages changes nothing here: {reason}.")
    elif with_huge_pages:
        os.environ.update(huge_pages.VARIABLES)
        print("The kernels have pages of 2 MB: what they measure may differ from what they measured without.")
    options = [
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{notebook.name}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--KernelManager.transport={kernels.TRANSPORT}",
        *([] if browser else ["--no-browser"]),
        *(["--allow-root"] if os.geteuid() == 0 else []),  # containers; Jupyter refuses to start otherwise
    ]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # a terminal that is closed ends JupyterLab in good order
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with kernels.private_folder() as runtime:
        os.environ["JUPYTER_RUNTIME_DIR"] = str(runtime)  # for the kernels' sockets, and a file that has the token
        server = LabApp.initialize_server(argv=options)
        if not server.identity_provider.token:
            raise LabError(
                f"JupyterLab would start without a token: delete what is in {os.environ['JUPYTER_CONFIG_DIR']}."
            )
        if forward := _forward_command(server.port):
            told = f"\n    Have this run on your own machine, and open the last address there:\n        {forward}\n"
            server.io_loop.add_callback(print, told, flush=True)  # below the address, which the start prints
        server.start()


@command(epilog="Example: `./lab kernel` or `/opt/labs/lab kernel --folder ~/my-labs`")
def kernel(
    folder: StudentFolder,
    prefix: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="the environment of a server, for all its users"),
    ] = None,
) -> None:
    """Register the labs' kernel for a JupyterHub, Open OnDemand or VS Code run by others, and make your copies.

    There, the notebooks in your folder open with the kernel *CPU labs*: this kit's Python, programs and settings, as
    under `./lab start`. With --prefix, each user makes copies by the same command without it. `docs/machines.md` says
    what differs on such servers, and how to remove the kernel.
    """
    from labkit.doctor import probes
    from labkit.system import kernels

    if prefix:
        os.umask(0o022)  # others are to read it
    spec = kernels.register(prefix)
    probe = probes.try_python(probes.SCRIPTS / "kernel.py", spec.parents[1])
    if probe.error:
        raise LabError(f"the kernel in {spec} does not start: {' '.join(probe.error.split())}. See ./lab doctor.")
    print(f"The kernel {kernels.KERNEL['display_name']} works. Servers find it after their page is reloaded: {spec}")
    if prefix is None:
        _report_copies(folder)
    elif reason := account_access.problem():
        print(f"Other accounts can't use it: {reason}. For those, {account_access.REMEDY}.")


def _forward_command(port: int) -> str:
    """Return what leads from the machine of whoever came by ssh to this port here; nothing for others.

    `localhost` would be ::1 first, where other users of this machine can listen at the same port.
    """
    user = os.environ.get("USER", "you")
    match os.environ.get("SSH_CONNECTION", "").split():  # ssh(1)
        case [_, _, address, "22"]:
            return f"ssh -N -L {port}:127.0.0.1:{port} {user}@{address}"
        case [_, _, address, ssh_port]:
            return f"ssh -N -L {port}:127.0.0.1:{port} -p {ssh_port} {user}@{address}"
    return ""


def _report_copies(folder: Path) -> None:
    """Bring the student's copies up to date, and print what became of them."""
    from labkit.exercises import working_copies

    update = working_copies.update(folder)
    print(f"Your labs are in {paths.shown(folder)}")
    if update.refreshed:
        print(f"Refreshed, since the kit has a new version and you had not edited yours: {', '.join(update.refreshed)}")
    for lab in update.outdated:
        print(f"Lab {lab} has a new version, and yours is kept. To get the new one beside yours: ./lab reset {lab}")


@command(epilog="Example: `./lab doctor --json > machine.json`")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print all results as JSON, for programs")] = False,
) -> None:
    """Check whether this machine can run each lab, and say what to do if not.

    It prints a table; with --json, all that it found. Exit code 1 when a lab can't run.
    """
    from labkit.doctor import checks, view

    report = checks.examine()
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        view.render(report, terminal.console())
    raise SystemExit(0 if report.ok else 1)


@command(epilog="Example: `./lab reset 07`")
def reset(
    lab: LabNumber,
    folder: StudentFolder,
) -> None:
    """Put a fresh copy of a lab in your folder; yours is kept beside it, numbered.

    It is kept as `NN_topic.backup-1.ipynb`, then `-2`, and so on. What its cells wrote into `work/` stays.
    """
    from labkit.exercises import catalogue, working_copies

    info = catalogue.find(lab)
    kept = working_copies.reset(info, folder)
    copy = paths.shown(working_copies.copy_path(info, folder))
    print(f"{copy} is fresh." + (f" Yours: {paths.shown(kept)}" if kept else ""))


@command(epilog="Example: `./lab report --out my-report.html`")
def report(
    folder: StudentFolder,
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("lab-report.html"),
    results: Annotated[
        Path | None, typer.Option("--from", help="where the labs left their results", show_default="my-labs/work")
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="write this machine's results there instead, for data/machines/")
    ] = None,
) -> None:
    """Make one page to take home: the machine, what you measured, the pictures, the exercises passed.

    It says which figures were disturbed by other work. If you are in a room, the table of guesses also has the room's
    results: median and range, from five machines on. The page reads on a phone and prints on A4.

    With --json, it writes the closing tables and the machine's limits to a file that others can compare with. The labs
    that were run must have run in full on an idle machine.
    """
    from labkit.exercises import classroom_link
    from labkit.report import machine, page

    if as_json:
        collected = machine.collect(results or folder / "work")
        files.write(as_json, json.dumps(collected, indent=1) + "\n")
        print(f"wrote {paths.shown(as_json)} with labs {', '.join(collected['labs'])}")
        return
    html = page.render(results or folder / "work", *classroom_link.results(folder))
    files.write(out, html, "name another file with --out")
    print(f"wrote {paths.shown(out)}: open it in a browser; it needs no network")
