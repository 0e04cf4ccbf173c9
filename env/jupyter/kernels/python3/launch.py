"""Start ipykernel as the labs need it, whatever server starts it: python launch.py -f CONNECTION_FILE

The kit's programs come first on the PATH, and only the rules of env/variables.txt decide what the kernel inherits.

Under `./lab start`, nothing of the kernel is within reach of other users: `KernelManager.transport = "ipc"` is for the
sockets that JupyterLab connects to. ipykernel 7.4.0 has more:

- the one at which it hears the processes that a cell forks: always on a port of loopback (`_setup_pipe_in` in
  ipykernel/iostream.py), here beside the others, as docs/upstream/ipykernel.patch would have it;
- JupyterLab's debugger: debugpy opens two ports of loopback, at which it runs code for whoever comes, and stays there
  when the debugger is switched off (it has no secret for its adapter's own ports). So there is none here until it can
  use a socket's file, https://github.com/ipython/ipykernel/issues/1258; `%debug` and `breakpoint()` need no port.

Temporary files are in a folder that only the owner can enter: ipykernel names some in a way that others can foresee.
"""

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

from labkit.system import environment, scratch


class IOPubThread(iostream.IOPubThread):
    """ipykernel's, which hears forked processes at a socket beside the kernel's others."""

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
        """Stop, and remove the socket: Jupyter removes those that it knows."""
        super().stop()
        if self._is_master_process():
            Path(self._pipe_address.removeprefix("ipc://")).unlink(missing_ok=True)


def iopub_thread(pub_socket: zmq.Socket, *args: Any, **options: Any) -> iostream.IOPubThread:
    """Return the thread for the kernel's transport: other servers than `./lab start` use TCP, as ipykernel does."""
    kind = IOPubThread if pub_socket.last_endpoint.startswith(b"ipc:") else iostream.IOPubThread
    return kind(pub_socket, *args, **options)


if sys.path[0] == str(Path(__file__).resolve().parent):
    del sys.path[0]  # a notebook imports from its own folder, not from this one
kernelapp.IOPubThread = iopub_thread
application.SYSTEM_CONFIG_DIRS.clear()  # /etc/ipython, which can run code in every kernel of the machine
# Without debugpy, ipykernel has no debugger, and says so to JupyterLab. Remove when it can be reached by ipc.
sys.modules["debugpy"] = None
importlib.import_module("ipykernel.debugger")
del sys.modules["debugpy"]
os.environ["LAB_CLEARED"] = " ".join(environment.settle(os.environ))  # `open_lab` prints them
os.environ["VIRTUAL_ENV"] = sys.prefix
os.environ["PATH"] = os.pathsep.join([f"{sys.prefix}/bin", os.environ.get("PATH", os.defpath)])
with scratch.folder() as private:
    os.environ["TMPDIR"] = tempfile.tempdir = str(private)
    os.environ["IPYTHONDIR"] = str(private / "ipython")  # not the user's settings
    kernelapp.launch_new_instance()
