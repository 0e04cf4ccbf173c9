"""OpenVINO's core: networks come and go, and an interrupt still reaches Python."""

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
    networks.pop(0)  # the first that was made goes first
    gc.collect()
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_reaches_python_when_networks_have_gone():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@pytest.mark.parametrize("lab", sources.labs(), ids=lambda source: source.stem)
def test_a_lab_makes_no_core_of_its_own_in_its_kernel(lab):
    for cell in sources.read(lab).cells:
        if cell.cell_type == "code" and "%%writefile" not in cell.source:  # a script's core ends with its process
            assert not re.search(r"openvino\.(compile_model|Core)\(", cell.source), cell.source
