# python labkit/doctor/scripts/kernel.py [FOLDER]
"""Print the environment of the labs' kernel under `./lab start`, or on a server that finds kernels in FOLDER."""

import ast
import os
import sys

from jupyter_client.manager import KernelManager

from labkit.system import kernels

TIMEOUT_S = 50  # the time for the start, and for the answer


def main(server: list[str]) -> None:
    """Start the kernel, ask it, and print its answer."""
    os.environ.update({"JUPYTER_PATH": server[0], "PATH": os.defpath} if server else kernels.JUPYTER_VARIABLES)
    with kernels.private_folder() as folder:
        options = {} if server else kernels.options(folder)
        manager = KernelManager(kernel_name=kernels.KERNEL["name"], **options)
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
    main(sys.argv[1:])
