"""The kernel that `lab kernel` registers, started the way other servers do."""

import json
import os
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from test_cli import run

from labkit.doctor import probes
from labkit.exercises import catalogue
from labkit.system import account_access, kernels, paths

BIN = str(Path(sys.prefix, "bin"))
# Variables that a server passes on: none of the kit's, and many of other programs.
FOREIGN = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    **dict.fromkeys(("PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX", "VIRTUAL_ENV", "MATPLOTLIBRC"), "/gone"),
    **{"PYTHONWARNINGS": "error", "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1", "PMI_FD": "9", "MPLBACKEND": "pdf"},
}
EXPECTED = {  # values of expressions in a cell
    "sys.prefix": sys.prefix,
    "os.environ['VIRTUAL_ENV']": sys.prefix,
    "shutil.which('python')": f"{BIN}/python",
    "shutil.which('mpirun')": f"{BIN}/mpirun",
    "subprocess.getoutput('python -c \"import labkit; print(labkit.__path__[0])\"')": str(paths.ROOT / "labkit"),
    "subprocess.getoutput('mpirun -n 2 python -c \"import mpi4py.MPI as M; print(M.COMM_WORLD.size)\"')": "2\n2",
    "os.environ.get('PYTHONPATH')": None,
    "get_ipython().getoutput('which python')": [f"{BIN}/python"],
}


@pytest.fixture
def data(monkeypatch, tmp_path) -> Path:
    """Return a new Jupyter data folder for this user."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def unchecked(monkeypatch) -> None:
    """Don't start the registered kernel."""
    monkeypatch.setattr(probes, "try_python", lambda *args: probes.ProbeResult(sys.prefix))


def test_other_servers_run_the_same_kernel_as_lab_start(data):
    """The kernel has two names under `lab start`, and the display name of the copies."""
    commands = set()
    for folder in (kernels.register(None), *kernels.SPECS.iterdir()):
        argv = KernelSpec.from_resource_dir(str(folder)).argv
        argv = [argument.replace("{resource_dir}", str(folder)) for argument in argv[1:]]
        commands.add((*(os.path.normpath(argument) for argument in argv),))
    assert len(commands) == 1, commands
    spec = json.loads((data / "kernels" / kernels.KERNEL["name"] / "kernel.json").read_text())
    assert spec["argv"][0] == sys.executable
    assert not any("resource_dir" in argument for argument in spec["argv"])
    assert {name: spec[name] for name in ("display_name", "language")} == dict(list(kernels.KERNEL.items())[1:])


@pytest.mark.slow
def test_a_registered_kernel_runs_a_lab_in_any_environment_and_folder(data, tmp_path, monkeypatch, capfd):
    assert run(monkeypatch, "kernel", "--folder", str(tmp_path / "mine")) == 0
    assert "The kernel CPU labs works" in capfd.readouterr().out
    copy = json.loads((tmp_path / "mine" / catalogue.find("00").notebook.name).read_text())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    manager = KernelManager(kernel_name=copy["metadata"]["kernelspec"]["name"])
    manager.start_kernel(cwd=str(elsewhere), env={**FOREIGN, "HOME": str(tmp_path)})
    client = manager.client()
    client.start_channels()
    printed = []
    try:
        client.wait_for_ready(timeout=120)

        def execute(code: str, **expressions: str) -> dict:
            hook = lambda message: printed.append(message["content"].get("text", ""))  # noqa: E731
            reply = client.execute_interactive(code, timeout=120, user_expressions=expressions, output_hook=hook)
            return reply["content"]

        for cell in [cell for cell in copy["cells"] if cell["cell_type"] == "code"][:2]:
            assert execute("".join(cell["source"]))["status"] == "ok", printed
        assert "KERAS_BACKEND OMP_NUM_THREADS" in "".join(printed)
        client.execute(
            "import os\nif not (pid := os.fork()):\n    print('a forked process', flush=True)\n    os._exit(0)"
        )
        # The output may arrive after the cell has ended, when `execute_interactive` no longer reads it.
        while "a forked process" not in client.get_iopub_msg(timeout=120)["content"].get("text", ""):
            pass
        expressions = dict(zip("abcdefgh", EXPECTED, strict=True))
        reply = execute("import shutil, subprocess, sys; os.waitpid(pid, 0)", **expressions)
        values = [reply["user_expressions"][letter] for letter in "abcdefgh"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert [value.get("data", value).get("text/plain") for value in values] == [
        repr(value) for value in EXPECTED.values()
    ]
    assert (elsewhere / "work").is_dir()


def test_a_kernel_for_all_users_makes_no_copies_and_warns_about_unreachable_folders(
    data, tmp_path, monkeypatch, capsys, unchecked
):
    monkeypatch.setattr(account_access, "problem", lambda: "Python is below /root")
    os.umask(0o077)
    assert run(monkeypatch, "kernel", "--prefix", str(tmp_path), "--folder", str(tmp_path / "mine")) == 0
    spec = tmp_path / "share/jupyter/kernels" / kernels.KERNEL["name"] / "kernel.json"
    assert spec.stat().st_mode & 0o004
    assert all(folder.stat().st_mode & 0o005 == 0o005 for folder in list(spec.parents)[:4]), "others can read it"
    assert not data.exists()
    assert not (tmp_path / "mine").exists()
    assert "Other accounts can't use it: Python is below /root." in capsys.readouterr().out


def test_a_kernel_that_does_not_start_is_reported_in_one_line(data, monkeypatch, capsys):
    monkeypatch.setattr(probes, "try_python", lambda *args: probes.ProbeResult(error="failed\nImportError: no zmq"))
    assert run(monkeypatch, "kernel") == 2
    error = capsys.readouterr().err
    assert "does not start: failed ImportError: no zmq. Run ./lab doctor" in error
    assert error.count("\n") == 1


def test_registering_again_replaces_an_outdated_kernel(data, tmp_path, monkeypatch, unchecked):
    old = data / "kernels" / kernels.KERNEL["name"]
    old.mkdir(parents=True)
    (old / "kernel.json").write_text('{"argv": ["/gone/python"]}')
    assert run(monkeypatch, "kernel", "--folder", str(tmp_path / "mine")) == 0
    assert json.loads((old / "kernel.json").read_text())["argv"][0] == sys.executable
