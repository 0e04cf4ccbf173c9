"""Have nbval run the labs small, and reach its kernels as all others are reached.

It has options for neither (docs/contribute/upstream/nbval.patch).
"""

import contextlib

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager
from nbval.plugin import IPyNbCell

from labkit.system import kernels


def pytest_configure(config: pytest.Config) -> None:
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    folder = stack.enter_context(kernels.private_folder())
    nbval.kernel.KernelManager = lambda **others: KernelManager(**kernels.options(folder), **others)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a lab's parameter its value as Papermill does, behind its default; and compare words, not how they look."""
    for item in items:
        if isinstance(item, IPyNbCell):
            item.parent.skip_compare = {
                *item.parent.skip_compare,
                "text/html",
            }  # beside it is always text/plain
            if "parameters" in item.cell.metadata.get("tags", []):
                item.cell.source += "\nQUICK = True"
