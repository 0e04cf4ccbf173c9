"""OpenVINO's core: one for a process, so that an interrupt reaches Python when networks have gone."""

import functools
from concurrent.futures import ThreadPoolExecutor

import openvino


@functools.cache
def openvino_core() -> openvino.Core:
    """Return this process's OpenVINO core, whose plugin for CPUs was loaded by a thread that has ended.

    `openvino.compile_model` would make a core for each network. A core's plugin gives the thread that loads it a stack
    for signal handlers, and frees it at its own end, whether that thread still has it or not: then the next interrupt
    ends the process by a segmentation fault (docs/upstream.md).
    """
    core = openvino.Core()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(core.get_property, "CPU", "FULL_DEVICE_NAME").result()
    return core
