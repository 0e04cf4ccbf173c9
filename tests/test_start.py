"""JupyterLab under `./lab start`: access to its kernels, their configuration, and errors after a restart."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import requests
from jupyter_client.blocking import BlockingKernelClient

from labkit.system import kernels, processes

pytestmark = pytest.mark.slow  # each starts JupyterLab or a kernel
NOBODY = 65534
# Users' own configuration, which must not affect the kit's programs.
OPEN_SERVER = {"token": "", "password": "", "allow_origin": "*", "disable_check_xsrf": True, "certfile": "/gone.pem"}
CONFIGURATION = {
    ".jupyter/jupyter_server_config.json": json.dumps({"ServerApp": OPEN_SERVER, "IdentityProvider": {"token": ""}}),
    ".jupyter/jupyter_notebook_config.py": "c.NotebookApp.token = ''",
    ".jupyter/lab/user-settings/@jupyterlab/apputils-extension/themes.jupyterlab-settings": "not JSON",
    ".ipython/profile_default/startup/00.py": "intruder = 1",
    ".ipython/profile_default/ipython_config.py": "c.InteractiveShell.ast_node_interactivity = 'all'",
    ".keras/keras.json": json.dumps({"backend": "torch", "floatx": "float16", "image_data_format": "channels_first"}),
    ".config/matplotlib/matplotlibrc": "text.usetex: True\nfigure.figsize: 1, 1",
}
VARIABLES = {"KERAS_BACKEND": "jax", "OMP_NUM_THREADS": "1", "PYTHONPATH": "/gone", "PMI_FD": "3", "MPLBACKEND": "pdf"}
VARIABLES |= {"http_proxy": "proxy.example.org:3128", "HTTPS_PROXY": "http://[", "ALL_PROXY": "socks5h://127.0.0.1:1"}
LAB = [sys.executable, "-c", "from labkit.cli import main; main()"]


class Lab:
    """A running `./lab start --no-browser`, accessed through its REST API."""

    def __init__(self, home: Path):
        home = home / ("long-" * 20)  # so long that a socket path in Jupyter's own folder would be too long
        (home / "labs").mkdir(parents=True)
        for name, text in CONFIGURATION.items():
            file = home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self.log, self.labs = home / "log", home / "labs"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*LAB, "start", "--no-browser", "--folder", self.labs],
                env={
                    **os.environ,
                    **VARIABLES,
                    "HOME": str(home),
                    "USER": "ada",
                    "SSH_CONNECTION": "192.0.2.7 40000 192.0.2.1 2222",
                },
                stdout=log,
                stderr=log,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which `nohup ./lab test` ignores
            )
        try:
            self._wait()
        except BaseException:
            self.end()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(StopIteration, ValueError, requests.ConnectionError):
                info = next(Path("/tmp").glob(f"lab-kernels-*/jpserver-{self.process.pid}.json"))
                self.folder, server = info.parent, json.loads(info.read_text())
                self.port, self.url, self.token = server["port"], server["url"], server["token"]
                self.request("GET", "status")
                return
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def request(self, method: str, endpoint: str, /, **body) -> dict:
        headers = {"Authorization": f"token {self.token}"}
        reply = requests.request(method, f"{self.url}api/{endpoint}", json=body, headers=headers, timeout=60)
        reply.raise_for_status()
        return reply.json() if reply.content else {}

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=60)


class Notebook:
    """An open notebook in `lab`, with its kernel."""

    def __init__(self, lab: Lab, name: str):
        self.lab = lab
        session = lab.request(
            "POST", "sessions", path=name, name=name, type="notebook", kernel={"name": kernels.KERNEL["name"]}
        )
        self.session, self.kernel = session["id"], session["kernel"]["id"]
        self.client = BlockingKernelClient(connection_file=str(lab.folder / f"kernel-{self.kernel}.json"))
        self.client.load_connection_file()
        self.client.start_channels()
        self._wait_for_kernel()

    def _wait_for_kernel(self) -> None:
        """Wait until the kernel answers; the client raises if it misses a heartbeat while starting."""
        deadline = time.monotonic() + 120
        while True:
            try:
                return self.client.wait_for_ready(timeout=60)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise

    def run(self, code: str) -> tuple[dict, str]:
        """Run a cell; return the kernel's reply and the output."""
        printed = []

        def on_output(message: dict) -> None:
            printed.append(message["content"].get("text", ""))

        return self.client.execute_interactive(code, timeout=60, output_hook=on_output)["content"], "".join(printed)

    def debug(self, command: str, arguments: dict) -> dict:
        """Send a message as JupyterLab's debugger does; return the kernel's reply."""
        content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
        channel = self.client.control_channel
        request = self.client.session.msg("debug_request", content)
        channel.send(request)
        while True:
            reply = channel.get_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                return reply["content"]

    def restart(self) -> None:
        self.lab.request("POST", f"kernels/{self.kernel}/restart")
        self._wait_for_kernel()

    def process(self) -> psutil.Process:
        return psutil.Process(int(self.run("import os; print(os.getpid())")[1]))

    def close(self) -> None:
        self.client.stop_channels()
        self.lab.request("DELETE", f"sessions/{self.session}")


@pytest.fixture(scope="module")
def lab():
    """Start it in a folder that every account can enter."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        lab = Lab(Path(home))
        yield lab
        lab.end()


@pytest.fixture
def notebook(lab):
    notebook = Notebook(lab, "01_tensorflow_graphs.ipynb")
    yield notebook
    notebook.close()


def test_access_needs_the_token_despite_the_users_configuration(lab):
    assert lab.token
    for method, endpoint in (("GET", "contents"), ("POST", "terminals"), ("POST", "kernels")):
        assert requests.request(method, f"{lab.url}api/{endpoint}", timeout=60).status_code == 403
    reply = requests.get(f"{lab.url}api/contents?token={lab.token}", headers={"Origin": "http://x.test"}, timeout=60)
    assert reply.headers.get("Access-Control-Allow-Origin") != "*"


def test_the_users_configuration_does_not_affect_a_notebook(notebook):
    for code, value in {
        "'intruder' in globals()": False,
        "__import__('os').environ.get('PMI_FD')": None,
        "{'KERAS_BACKEND', 'OMP_NUM_THREADS'} <= {*__import__('os').environ['LAB_CLEARED'].split()}": True,
        "(keras.config.backend(), keras.config.floatx(), keras.config.image_data_format())": (
            *("tensorflow", "float32", "channels_last"),
        ),
        "(mpl.rcParams['text.usetex'], 'inline' in mpl.get_backend())": (False, True),
    }.items():
        start = "import keras, matplotlib as mpl; from labkit.display import plots; plots.use_style()\n"
        assert notebook.run(f"{start}print(repr({code}))")[1].strip() == repr(value)


def listeners(process: psutil.Process) -> list[tuple[str, int]]:
    return [tuple(connection.laddr) for connection in process.net_connections("inet") if not connection.raddr]


def sockets(process: psutil.Process) -> list[Path]:
    return [Path(connection.laddr) for connection in process.net_connections("unix") if connection.laddr]


def test_kernels_have_no_tcp_port_even_after_a_restart(lab, notebook):
    other = Notebook(lab, "00_welcome.ipynb")
    assert listeners(notebook.process()) == listeners(other.process()) == []
    other.close()
    notebook.restart()
    assert listeners(notebook.process()) == []
    assert listeners(psutil.Process(lab.process.pid)) == [("127.0.0.1", lab.port)]


def test_switching_on_the_debugger_opens_no_port(notebook):
    """debugpy's adapter runs code for any client, even after the debugger was switched off."""
    process = notebook.process()
    attach = {"initialize": {"clientID": "test", "adapterID": ""}, "attach": {}, "configurationDone": {}}
    replies = [notebook.debug(command, arguments) for command, arguments in attach.items()]
    marks = {"JPY_PARENT_PID": str(notebook.lab.process.pid), "JPY_SESSION_NAME": process.environ()["JPY_SESSION_NAME"]}
    # By its variables, as the adapter is not a child of the kernel.
    family = processes.find(lambda candidate: marks.items() <= processes.environ_of(candidate).items())
    assert process in family
    assert [listeners(member) for member in family] == [[]] * len(family), replies
    assert "debugger" not in notebook.client.kernel_info(reply=True, timeout=60)["content"]["supported_features"]


def test_a_kernels_temporary_files_are_private_and_removed_with_it(lab):
    notebook = Notebook(lab, "00_welcome.ipynb")
    folder = Path(notebook.run("import tempfile; print(tempfile.gettempdir())")[1].strip())
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    assert notebook.run("!echo $TMPDIR")[1].strip() == str(folder)
    cell = notebook.run("print((lambda: 0).__code__.co_filename)")[1]  # the file that ipykernel names for a cell
    assert Path(cell).is_relative_to(folder)
    notebook.close()
    assert not folder.exists()


def test_start_prints_where_the_labs_are_the_address_and_how_to_stop(lab):
    """Over ssh, the forwarding command too; `localhost` in it could lead to what another user has at ::1."""
    address = f"127.0.0.1:{lab.port}"
    assert processes.wait_until(lambda: lab.log.read_text().count("\n") == 4, 60), lab.log.read_text()
    labs, link, stop, ssh = lab.log.read_text().splitlines()
    assert labs == f"Your labs: {lab.labs}"
    assert requests.get(link.removeprefix("Address:").strip(), timeout=60).status_code == 200
    assert "Ctrl-C" in stop
    assert ssh.endswith(f"ssh -N -L {lab.port}:{address} -p 2222 ada@192.0.2.1")


def test_jupyterlabs_log_which_has_the_token_is_its_owners_alone(lab):
    log = lab.labs / ".jupyterlab.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert lab.token in log.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="ANOTHER USER'S LABS NOT TESTED HERE: only root can be another user")
def test_another_user_cannot_read_the_labs(lab, notebook):
    notebook.run("from labkit.exercises import open_lab; open_lab('01', globals()).check(1, print)")
    subprocess.run([*LAB, "report", "--folder", lab.labs, "--out", lab.labs / "report.html"], check=True)
    files = [path for path in lab.labs.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {"00_welcome.ipynb", "results-01.json", "report.html"} <= {path.name for path in files}
    os.seteuid(NOBODY)
    try:
        assert [path for path in files if os.access(path, os.R_OK, effective_ids=True)] == []
    finally:
        os.seteuid(0)


def test_all_sockets_of_a_kernel_are_in_a_private_folder(lab, notebook):
    assert {path.parent for path in sockets(notebook.process())} == {lab.folder}
    assert lab.folder.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(lab.folder.stat().st_mode) & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="ANOTHER USER'S KERNEL NOT TESTED HERE: only root can be another user")
def test_another_user_cannot_connect_to_a_kernel(lab, notebook):
    known = sockets(notebook.process())
    assert len(known) >= 5
    for path in known:
        with socket.socket(socket.AF_UNIX) as mine, socket.socket(socket.AF_UNIX) as theirs:
            mine.connect(str(path))
            os.seteuid(NOBODY)
            try:
                with pytest.raises(PermissionError):
                    theirs.connect(str(path))
            finally:
                os.seteuid(0)


def test_closing_its_terminal_ends_jupyterlab_and_leaves_nothing(tmp_path):
    lab = Lab(tmp_path)
    try:
        kernel = Notebook(lab, "00_welcome.ipynb").process()
    finally:
        status = lab.end(signal.SIGHUP)
    assert status == 0
    assert psutil.wait_procs([kernel], timeout=10)[1] == []
    assert not lab.folder.exists()


def test_after_a_restart_a_name_error_says_to_run_the_cells_above(notebook):
    notebook.restart()
    reply, _ = notebook.run("make_graph = check(1, make_graph)")
    assert reply["ename"] == "NameError"  # for JupyterLab, which stops there when it runs all cells
    assert "Run All Above Selected Cell" in "".join(reply["traceback"])
    reply, _ = notebook.run("def f():\n    check += 1\n\nf()")  # an unbound local variable
    assert "Run All Above" not in "".join(reply["traceback"])


def test_a_notebook_has_no_names_but_its_cells_own(notebook):
    """Explaining errors and starting the kernel add no names to ipykernel's."""
    _, printed = notebook.run("print(sorted(name for name in dir() if not name.startswith('_')))")
    assert printed == "['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']\n"
    assert notebook.run("import sys; print('' in sys.path, 'launch' in sys.modules)")[1] == "True False\n"
    assert notebook.run("import launch")[0]["ename"] == "ModuleNotFoundError"
