# python labkit/doctor/scripts/kernel.py
"""Print the folder of the environment in which JupyterLab's kernel `python3` runs."""

import ast
import os

from jupyter_client.manager import KernelManager

from labkit.system import kernels

NAME = "python3"
TIMEOUT_S = 50  # the time for the start, and for the answer


def main() -> None:
    """Start the kernel as `./lab start` does, ask it, and print its answer."""
    os.environ.update(kernels.JUPYTER_VARIABLES)
    with kernels.private_folder() as folder:
        manager = KernelManager(kernel_name=NAME, **kernels.options(folder))
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=TIMEOUT_S)
            question = {"prefix": "os.path.realpath(sys.prefix)"}
            reply = client.execute_interactive("import os, sys", user_expressions=question, timeout=TIMEOUT_S)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    print(ast.literal_eval(reply["content"]["user_expressions"]["prefix"]["data"]["text/plain"]))


if __name__ == "__main__":
    main()
