"""Have nbval reach its kernels as all others are reached; it has no option for that (docs/upstream/nbval.patch)."""

import contextlib

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager

from labkit.system import kernels


def pytest_configure(config: pytest.Config) -> None:
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    folder = stack.enter_context(kernels.private_folder())
    nbval.kernel.KernelManager = lambda **others: KernelManager(**kernels.options(folder), **others)
