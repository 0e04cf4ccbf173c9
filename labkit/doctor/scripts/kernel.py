# python labkit/doctor/scripts/kernel.py
"""Print which Python answers when JupyterLab starts the kernel `python3`."""

import ast

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from labkit.system import kernels

NAME = "python3"
TIMEOUT_S = 50  # the time for the start, and for the answer


def main() -> None:
    """Print the kernelspec's folder; then start the kernel, and print its executable and its environment's folder."""
    print(KernelSpecManager().get_kernel_spec(NAME).resource_dir, flush=True)
    with kernels.private_folder() as folder:
        manager = KernelManager(kernel_name=NAME, **kernels.options(folder))
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=TIMEOUT_S)
            questions = {"python": "sys.executable", "prefix": "os.path.realpath(sys.prefix)"}
            reply = client.execute_interactive("import os, sys", user_expressions=questions, timeout=TIMEOUT_S)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    for answer in reply["content"]["user_expressions"].values():
        print(ast.literal_eval(answer["data"]["text/plain"]))


if __name__ == "__main__":
    main()
