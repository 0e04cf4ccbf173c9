"""Commands for students: set up, open the labs, check the machine, report results."""

import functools
import json
import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import LABS, SOMETIMES, LabNumber, StudentFolder
from labkit.system import account_access, files, paths, terminal
from labkit.system.errors import LabError

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel=LABS)
LOG = ".jupyterlab.log"  # in the student's folder


@app.command(rich_help_panel=SOMETIMES, epilog="Example: `./lab setup` or `./lab setup --from /media/stick/labs`")
def setup(
    source: Annotated[
        str | None, typer.Option("--from", help="Install offline from this folder, written by `./lab pack`.")
    ] = None,
    classroom: Annotated[
        bool, typer.Option("--classroom", help="Add the packages for teaching: guide, board and hub.")
    ] = False,
    author: Annotated[bool, typer.Option("--author", help="Add the packages for writing and testing labs.")] = False,
    torch: Annotated[
        bool, typer.Option("--torch", help="Add PyTorch for labs 03, 07, 08 and 11 (1 GB, half a minute).")
    ] = False,
) -> None:
    """Create or repair the environment. Other commands do this when needed.

    It goes into `.venv`, takes 3 GB, and needs a network and about two minutes. The log is `.lab/setup.log`. After an
    interruption, the same command resumes. The first command that needs the packages for teaching or for writing labs
    adds them; add them here before a day without a network. Only `--torch` adds PyTorch, in a separate folder.
    """
    from labkit.cli.setup import install_torch

    if torch:
        install_torch()
    print("The environment is ready. Next: ./lab start")  # the script `lab` has created it
    if os.geteuid() == 0 and (reason := account_access.problem()):
        print(f"Other accounts (a hub's students, say) can't use it: {reason}. For them, {account_access.REMEDY}.")


@command(epilog="Example: `./lab start 07 --no-browser --port 8899`")
def start(
    folder: StudentFolder,
    lab: Annotated[str, typer.Argument(help="The lab to open, such as 07.")] = "00",
    browser: Annotated[bool, typer.Option(help="Open a browser window.")] = True,
    port: Annotated[int, typer.Option(help="The first port to try.", min=1, max=65535)] = 8888,
) -> None:
    """Open the labs in JupyterLab, on this machine only and with a token.

    You work on copies in your own folder, which git ignores, so updating the kit never touches your work. Cells write
    their files to `work/` there. `AGENTS.md` there asks coding assistants to explain rather than solve; edit it if you
    like. Stop JupyterLab with Ctrl-C. If no browser opens, open the printed address.
    """
    from jupyter_core.paths import SYSTEM_CONFIG_PATH

    from labkit.exercises import catalogue, working_copies
    from labkit.system import kernels

    with kernels.without_proxies():
        from jupyterlab.labapp import LabApp

    notebook = working_copies.copy_path(catalogue.find(lab), folder)
    _report_copies(folder)
    os.environ["LAB_FOLDER"] = str(folder)  # for lab reset and lab report in JupyterLab's terminals
    os.environ.update(kernels.JUPYTER_VARIABLES)
    SYSTEM_CONFIG_PATH.clear()  # /etc/jupyter, which could start servers without a token
    options = [
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{notebook.name}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--KernelManager.transport={kernels.TRANSPORT}",
        "--ServerApp.answer_yes=True",  # Ctrl-C stops it without asking
        *([] if browser else ["--no-browser"]),
        *(["--allow-root"] if os.geteuid() == 0 else []),  # in containers, where Jupyter would refuse to start
    ]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # shut down cleanly when the terminal closes
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    log = folder / LOG
    with kernels.private_folder() as runtime, terminal.errors_to(log):
        os.environ["JUPYTER_RUNTIME_DIR"] = str(runtime)  # for the kernels' sockets, and a file with the token
        try:
            server = LabApp.initialize_server(argv=options)
        except SystemExit:
            raise LabError(f"JupyterLab did not start: see {paths.shown(log)}.") from None
        token = server.identity_provider.token
        if not token:
            raise LabError(
                f"JupyterLab would start without a token: delete what is in {os.environ['JUPYTER_CONFIG_DIR']}."
            )
        lines = [
            f"Address:   http://127.0.0.1:{server.port}/lab/tree/{notebook.name}?token={token}",
            f"To stop:   Ctrl-C (JupyterLab's log: {paths.shown(log)})",
        ]
        if forward := _forward_command(server.port):
            lines.append(f"By ssh:    run this on your own machine, then open the address there: {forward}")
        server.io_loop.add_callback(print, "\n".join(lines), flush=True)  # once it listens
        server.start()


@app.command(rich_help_panel=SOMETIMES, epilog="Example: `./lab kernel` or `/opt/labs/lab kernel --folder ~/my-labs`")
def kernel(
    folder: StudentFolder,
    prefix: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Register in this server environment, for all its users."),
    ] = None,
) -> None:
    """Register the labs' kernel with your JupyterHub, Open OnDemand or VS Code, and make your copies.

    There, the notebooks in your folder open with the kernel *CPU labs*: this kit's Python, programs and settings, as
    under `./lab start`. If the kernel was registered with --prefix, each user runs this command without it to get
    copies. `docs/deploy/clusters.md` explains what differs on such servers, and how to remove the kernel.
    """
    from labkit.doctor import probes
    from labkit.system import kernels

    if prefix:
        os.umask(0o022)  # readable by the server's users
    spec = kernels.register(prefix)
    probe = probes.try_python("kernel.py", spec.parents[1])
    if probe.error:
        raise LabError(f"the kernel in {spec} does not start: {' '.join(probe.error.split())}. Run ./lab doctor.")
    print(f"The kernel {kernels.KERNEL['display_name']} works. Reload the server's page to see it: {spec}")
    if prefix is None:
        _report_copies(folder)
    elif reason := account_access.problem():
        print(f"Other accounts can't use it: {reason}. For them, {account_access.REMEDY}.")


def _forward_command(port: int) -> str:
    """Return the command that forwards this port to the user's own machine; empty outside an SSH session.

    `localhost` could resolve to ::1 first, where other users of this machine can listen on the same port.
    """
    user = os.environ.get("USER", "you")
    match os.environ.get("SSH_CONNECTION", "").split():  # ssh(1)
        case [_, _, address, "22"]:
            return f"ssh -N -L {port}:127.0.0.1:{port} {user}@{address}"
        case [_, _, address, ssh_port]:
            return f"ssh -N -L {port}:127.0.0.1:{port} -p {ssh_port} {user}@{address}"
    return ""


def _report_copies(folder: Path) -> None:
    """Update the student's copies and report the changes."""
    from labkit.exercises import working_copies

    update = working_copies.update(folder)
    print(f"Your labs: {paths.shown(folder)}")
    if update.refreshed:
        print(f"Updated to the kit's new version (you had not edited them): {', '.join(update.refreshed)}")
    for lab in update.outdated:
        print(f"Lab {lab} has a new version; your edited copy is unchanged. To get the new one too: ./lab reset {lab}")


@command(epilog="Example: `./lab doctor --json > machine.json`")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON, for programs.")] = False,
) -> None:
    """Check whether this machine can run each lab, and show how to fix what is missing.

    It prints a table, or all details with --json. Exit code 1 if a lab can't run.
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
    """Replace your copy of a lab with a fresh one; the old copy is kept as a backup.

    Backups are called `NN_topic.backup-1.ipynb`, then `-2`, and so on. Files in `work/` are kept.
    """
    from labkit.exercises import catalogue, working_copies

    info = catalogue.find(lab)
    backup = working_copies.reset(info, folder)
    copy = paths.shown(working_copies.copy_path(info, folder))
    print(f"{copy} is a fresh copy." + (f" Your old one: {paths.shown(backup)}" if backup else ""))


@command(epilog="Example: `./lab report --out my-report.html`")
def report(
    folder: StudentFolder,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("lab-report.html"),
    results: Annotated[
        Path | None, typer.Option("--from", help="The folder with the labs' results.", show_default="my-labs/work")
    ] = None,
    as_json: Annotated[
        Path | None,
        typer.Option("--json", help="Write this machine's results to this file instead, as JSON."),
    ] = None,
) -> None:
    """Create a one-page report to take home: your machine, measurements, plots and passed exercises.

    It marks figures that other work disturbed. If you are in a room with at least five machines, the table of guesses
    also shows the room's results, as median and range. The page is readable on a phone and prints on A4.

    With --json, it writes the closing tables and the machine's limits to a file, for comparison with other machines.
    Each of these labs must have run in full on an idle machine.
    """
    from labkit.exercises import classroom_link
    from labkit.report import machine, page

    if as_json:
        collected = machine.collect(results or folder / "work")
        files.write(as_json, json.dumps(collected, indent=1) + "\n")
        print(f"wrote {paths.shown(as_json)}: labs {', '.join(collected['labs'])}")
        return
    html = page.render(results or folder / "work", *classroom_link.results(folder))
    files.write(out, html, "name another file with --out")
    print(f"wrote {paths.shown(out)}: open it in a browser (works offline)")
