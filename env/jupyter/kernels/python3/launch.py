"""Start ipykernel with the labs' settings, under any server: python launch.py -f CONNECTION_FILE

The kit's programs come first on the PATH, and env/variables.txt decides which variables the kernel inherits. On a
machine with measuring slots, libraries start as many threads as a slot has cores.

Under `./lab start`, other users can't reach any part of the kernel. `KernelManager.transport = "ipc"` covers the
sockets that JupyterLab connects to, but ipykernel 7.4.0 has more:

- one for the output of processes that a cell forks: always on a loopback port (`_setup_pipe_in` in
  ipykernel/iostream.py), here next to the other sockets, as in docs/contribute/upstream/ipykernel.patch;
- JupyterLab's debugger: debugpy opens two loopback ports, on which it runs code for any client, and keeps them open
  when the debugger is switched off (its adapter's own ports have no secret). So there is no debugger until it can use a
  socket file, https://github.com/ipython/ipykernel/issues/1258; `%debug` and `breakpoint()` need no port.

Temporary files go to a folder that only the owner can enter, as some of ipykernel's file names are predictable.
"""

import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import zmq
from ipykernel import iostream, kernelapp
from IPython.core import application
from zmq.eventloop.zmqstream import ZMQStream

from labkit.system import cores, files, kernels
from labkit.system.errors import LabError


class IOPubThread(iostream.IOPubThread):
    """An IOPubThread that receives forked processes' output on a socket next to the kernel's others."""

    def _setup_pipe_in(self) -> None:
        self._pipe_uuid = os.urandom(16)
        self._pipe_address = self.socket.last_endpoint.decode() + "-forked"
        pipe = self.socket.context.socket(zmq.PULL)
        pipe.linger = 0
        pipe.bind(self._pipe_address)
        self._pipe_in = ZMQStream(pipe, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def _setup_pipe_out(self) -> tuple[zmq.Context, zmq.Socket]:
        context = zmq.Context()  # a forked process can't use its parent's
        pipe = context.socket(zmq.PUSH)
        pipe.linger = 3000  # milliseconds
        pipe.connect(self._pipe_address)
        return context, pipe

    def stop(self) -> None:
        """Stop, and remove the socket; Jupyter removes only its own."""
        super().stop()
        if self._is_master_process():
            Path(self._pipe_address.removeprefix("ipc://")).unlink(missing_ok=True)


def iopub_thread(pub_socket: zmq.Socket, *args: Any, **options: Any) -> iostream.IOPubThread:
    """Return the thread for the kernel's transport; servers other than `./lab start` use TCP, ipykernel's default."""
    thread_class = IOPubThread if pub_socket.last_endpoint.startswith(b"ipc:") else iostream.IOPubThread
    return thread_class(pub_socket, *args, **options)


if sys.path[0] == str(Path(__file__).resolve().parent):
    del sys.path[0]  # a notebook imports from its own folder, not from this one
kernelapp.IOPubThread = iopub_thread
application.SYSTEM_CONFIG_DIRS.clear()  # /etc/ipython, which can run code in every kernel on the machine
# Without debugpy, ipykernel tells JupyterLab that it has no debugger. Remove this when debugpy supports ipc.
sys.modules["debugpy"] = None
importlib.import_module("ipykernel.debugger")
del sys.modules["debugpy"]
os.environ["LAB_CLEARED"] = " ".join(kernels.settle_environment(os.environ))  # `open_lab` prints them
with contextlib.suppress(LabError):  # unusable slots, which `open_lab` reports
    os.environ.update(cores.thread_variables())
os.environ["VIRTUAL_ENV"] = sys.prefix
os.environ["PATH"] = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", os.defpath)])
os.umask(0o077)  # under any server, only the user can read what a lab writes
with files.temporary_folder() as private:
    os.environ["TMPDIR"] = tempfile.tempdir = str(private)
    os.environ["IPYTHONDIR"] = str(private / "ipython")  # without the user's settings
    kernelapp.launch_new_instance()
