"""One OpenVINO core per process, so that interrupts still reach Python after networks are freed."""

import functools
from concurrent.futures import ThreadPoolExecutor

import openvino


@functools.cache
def openvino_core() -> openvino.Core:
    """Return this process's OpenVINO core, whose CPU plugin was loaded by a thread that has ended.

    `openvino.compile_model` would create a core for each network. A core's plugin gives the thread that loads it a
    signal-handler stack, and frees it when unloaded, whether that thread still uses it or not: the next interrupt then
    ends the process with a segmentation fault (docs/contribute/upstream.md).
    """
    core = openvino.Core()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(core.get_property, "CPU", "FULL_DEVICE_NAME").result()
    return core
