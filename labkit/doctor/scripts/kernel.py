# python labkit/doctor/scripts/kernel.py [FOLDER]
"""Print the environment of the labs' kernel under `./lab start`, or on a server whose kernels are in FOLDER."""

import ast
import os
import sys

from jupyter_client.manager import KernelManager

from labkit.system import kernels

TIMEOUT_S = 50  # for the start, and again for the reply


def main(args: list[str]) -> None:
    """Start the kernel and print the prefix of its Python."""
    os.environ.update({"JUPYTER_PATH": args[0], "PATH": os.defpath} if args else kernels.JUPYTER_VARIABLES)
    with kernels.private_folder() as folder:
        options = {} if args else kernels.options(folder)
        manager = KernelManager(kernel_name=kernels.KERNEL["name"], **options)
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=TIMEOUT_S)
            expressions = {"prefix": "os.path.realpath(sys.prefix)"}
            reply = client.execute_interactive("import os, sys", user_expressions=expressions, timeout=TIMEOUT_S)
        finally:
            client.stop_channels()
            manager.shutdown_kernel()  # not killed, so that it removes its temporary folder
    print(ast.literal_eval(reply["content"]["user_expressions"]["prefix"]["data"]["text/plain"]))


if __name__ == "__main__":
    main(sys.argv[1:])
