"""OpenVINO's core: an interrupt still reaches Python after networks are freed."""

import re
import subprocess
import sys

import pytest

from labkit_author import sources

INTERRUPTED = """
import gc
import os
import signal

import numpy as np
import openvino
from openvino import opset13 as ops

from labkit.models.openvino_core import openvino_core


def compiled():
    numbers = ops.parameter([1], np.float32)
    return openvino_core().compile_model(openvino.Model([ops.relu(numbers)], [numbers]), "CPU")


networks = [compiled() for _ in range(3)]
while networks:
    networks.pop(0)  # the first one created is freed first
    gc.collect()
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_reaches_python_after_networks_are_freed():
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "interrupted\n"), result.stderr


@pytest.mark.parametrize("lab", sources.labs(), ids=lambda source: source.stem)
def test_labs_create_no_openvino_core_in_their_kernel(lab):
    for cell in sources.read(lab).cells:
        if cell.cell_type == "code" and "%%writefile" not in cell.source:  # a script's core ends with its process
            assert not re.search(r"openvino\.(compile_model|Core)\(", cell.source), cell.source
