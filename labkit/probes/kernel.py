# python labkit/probes/kernel.py
"""Which Python answers when JupyterLab starts the kernel `python3`?"""

import ast

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import start_new_kernel

NAME = "python3"
PATIENCE = 50  # seconds, for the start and for the answer


def main() -> None:
    """Print the kernelspec's folder; then start the kernel, and print its executable and its environment's folder."""
    print(KernelSpecManager().get_kernel_spec(NAME).resource_dir, flush=True)
    manager, client = start_new_kernel(kernel_name=NAME, startup_timeout=PATIENCE)
    try:
        questions = {"python": "sys.executable", "prefix": "os.path.realpath(sys.prefix)"}
        reply = client.execute_interactive("import os, sys", user_expressions=questions, timeout=PATIENCE)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    for answer in reply["content"]["user_expressions"].values():
        print(ast.literal_eval(answer["data"]["text/plain"]))


if __name__ == "__main__":
    main()
