"""The kernel that `lab kernel` registers, started as other people's servers start it."""

import functools
import json
import os
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from labkit import cli
from labkit.doctor import probes
from labkit.exercises import catalogue
from labkit.system import account_access, kernels, paths

BIN = str(Path(sys.prefix, "bin"))
# What a server passes on: nothing of the kit's, and much of other programs.
FOREIGN = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    **dict.fromkeys(("PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX", "VIRTUAL_ENV", "MATPLOTLIBRC"), "/gone"),
    **{"PYTHONWARNINGS": "error", "KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1", "PMI_FD": "9", "MPLBACKEND": "pdf"},
}
SEEN = {  # in a cell there
    "sys.prefix": sys.prefix,
    "os.environ['VIRTUAL_ENV']": sys.prefix,
    "shutil.which('python')": f"{BIN}/python",
    "shutil.which('mpirun')": f"{BIN}/mpirun",
    "subprocess.getoutput('python -c \"import labkit; print(labkit.__path__[0])\"')": str(paths.ROOT / "labkit"),
    "subprocess.getoutput('mpirun -n 2 python -c \"import mpi4py.MPI as M; print(M.COMM_WORLD.size)\"')": "2\n2",
    "os.environ.get('PYTHONPATH')": None,
    "get_ipython().getoutput('which python')": [f"{BIN}/python"],
}


def lab(monkeypatch, *arguments: str) -> int:
    """Run a command line as `./lab` does; return its exit code."""
    monkeypatch.setattr("sys.argv", ["lab", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code or 0


@pytest.fixture
def data(monkeypatch, tmp_path) -> Path:
    """Return this user's data folder of Jupyter, a new one."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def unchecked(monkeypatch) -> None:
    """Don't start what was registered."""
    monkeypatch.setattr(probes, "try_python", lambda *args: probes.ProbeResult(sys.prefix))


def test_the_kernel_of_other_servers_is_that_of_lab_start(data):
    """Both of its names there, with the same display name as in the copies."""
    starts = set()
    for folder in (kernels.register(None), *kernels.SPECS.iterdir()):
        argv = KernelSpec.from_resource_dir(str(folder)).argv
        argv = [argument.replace("{resource_dir}", str(folder)) for argument in argv[1:]]
        starts.add((*(os.path.normpath(argument) for argument in argv),))
    assert len(starts) == 1, starts
    spec = json.loads((data / "kernels" / kernels.KERNEL["name"] / "kernel.json").read_text())
    assert spec["argv"][0] == sys.executable
    assert not any("resource_dir" in argument for argument in spec["argv"])
    assert {name: spec[name] for name in ("display_name", "language")} == dict(list(kernels.KERNEL.items())[1:])


@pytest.mark.slow
def test_a_registered_kernel_runs_a_lab_from_a_foreign_environment_and_folder(data, tmp_path, monkeypatch, capfd):
    assert lab(monkeypatch, "kernel", "--folder", str(tmp_path / "mine")) == 0
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

        def run(code: str, **questions: str) -> dict:
            hook = lambda message: printed.append(message["content"].get("text", ""))  # noqa: E731
            return client.execute_interactive(code, timeout=120, user_expressions=questions, output_hook=hook)[
                "content"
            ]

        opening = [cell for cell in copy["cells"] if cell["cell_type"] == "code"][:2]
        for cell in opening:
            assert run("".join(cell["source"]))["status"] == "ok", printed
        assert "KERAS_BACKEND OMP_NUM_THREADS" in "".join(printed)
        client.execute(
            "import os\nif not (pid := os.fork()):\n    print('a forked process', flush=True)\n    os._exit(0)"
        )
        # It may arrive after the cell has ended, where `execute_interactive` passes over it.
        while "a forked process" not in client.get_iopub_msg(timeout=120)["content"].get("text", ""):
            pass
        answers = run("import shutil, subprocess, sys; os.waitpid(pid, 0)", **dict(zip("abcdefgh", SEEN, strict=True)))
        found = [answers["user_expressions"][letter] for letter in "abcdefgh"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert [answer.get("data", answer).get("text/plain") for answer in found] == [
        repr(value) for value in SEEN.values()
    ]
    assert (elsewhere / "work").is_dir()


def test_for_all_users_of_a_server_it_makes_no_copies_and_says_whom_it_leaves_out(
    data, tmp_path, monkeypatch, capsys, unchecked, request
):
    monkeypatch.setattr(account_access, "problem", lambda: "Python is below /root")
    request.addfinalizer(functools.partial(os.umask, os.umask(0o077)))
    assert lab(monkeypatch, "kernel", "--prefix", str(tmp_path), "--folder", str(tmp_path / "mine")) == 0
    spec = tmp_path / "share/jupyter/kernels" / kernels.KERNEL["name"] / "kernel.json"
    assert spec.stat().st_mode & 0o004
    assert all(folder.stat().st_mode & 0o005 == 0o005 for folder in list(spec.parents)[:4]), "others can read it"
    assert not data.exists()
    assert not (tmp_path / "mine").exists()
    assert "Other accounts can't use it: Python is below /root." in capsys.readouterr().out


def test_a_kernel_that_does_not_start_is_one_line_and_exit_code_2(data, monkeypatch, capsys):
    monkeypatch.setattr(probes, "try_python", lambda *args: probes.ProbeResult(error="failed\nImportError: no zmq"))
    assert lab(monkeypatch, "kernel") == 2
    error = capsys.readouterr().err
    assert "does not start: failed ImportError: no zmq. See ./lab doctor" in error
    assert error.count("\n") == 1


def test_registering_again_replaces_what_was_registered_by_a_kit_that_has_moved(data, tmp_path, monkeypatch, unchecked):
    old = data / "kernels" / kernels.KERNEL["name"]
    old.mkdir(parents=True)
    (old / "kernel.json").write_text('{"argv": ["/gone/python"]}')
    assert lab(monkeypatch, "kernel", "--folder", str(tmp_path / "mine")) == 0
    assert json.loads((old / "kernel.json").read_text())["argv"][0] == sys.executable
