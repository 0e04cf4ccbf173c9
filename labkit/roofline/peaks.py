"""Measure matmuls, instructions and memory bandwidth: `python -m labkit.roofline.peaks ISA...`.

ISA are the names of `Machine.isa` whose instructions are measured too. A line is printed at the start of each
measurement, and finally the figures as a line of JSON. With `--quick`, matmuls and arrays are small, for tests.
`labkit.roofline.measure` runs it.
"""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit.roofline import instructions, readers, together
from labkit.system import load
from labkit.system.cores import usable_machine
from labkit.system.machine import Machine

SIZES = (512, 1024, 2048, 4096, 8192)  # n of n×n matrices
LONG_MATMUL_S = 0.1  # beyond this, a larger matmul is not faster
MIN_DURATION_S = 0.3  # for each size
MIN_RUNS = together.ROUNDS  # for each size
MEMORY_SHARE = 0.25  # of free memory, used at a time
DEFAULT_CACHE_BYTES = 2**26  # if the kernel doesn't report cache sizes
QUICK_ARRAY_BYTES = 2**24  # if figures may be wrong: such arrays may fit into caches
CHAIN_LENGTH = 8  # matmuls in a row
INSTRUCTIONS_LIMIT_S = 60.0  # normally about a second

# The libraries whose matmuls are tried, by dtype. TensorFlow's quantised matmul reached 330 GOP/s where OpenVINO's
# reached 890, on 2 cores of an AMD EPYC with AVX-512.
LIBRARIES = {"float32": ("TensorFlow", "OpenVINO"), "bfloat16": ("TensorFlow", "OpenVINO"), "int8": ("OpenVINO",)}

# Operations that read and write memory, one NumPy call each, and their bytes: 8 for each float64 read or written. Bytes
# are counted as in STREAM (https://www.cs.virginia.edu/stream/ref.html): a cache line that the CPU fetches only to
# overwrite does not count, so the memory itself may move up to half as much more. STREAM's triad moves as many bytes as
# its add, which is a single NumPy call. `readers` has the operations that only read.
STREAMS = {
    "copy": (16, lambda a, b, c: np.copyto(c, a)),
    "add": (24, lambda a, b, c: np.add(a, b, out=c)),
}
PASSES = 4  # through the arrays per timing: threads do not start at exactly the same moment


def main(isa: Sequence[str] = (), quick: bool = False) -> None:
    """Measure, and print the figures: GFLOP/s, or GOP/s for int8; GB/s; and other work on the cores."""
    sizes = SIZES[:1] if quick else SIZES
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # then TensorFlow doesn't import Keras, half of its start-up time
    machine = usable_machine()
    with load.observe() as others:
        print(f"Measuring memory bandwidth on {machine.usable_cores} threads …", flush=True)
        streams = bandwidth(machine, QUICK_ARRAY_BYTES if quick else None)
        print("Measuring instructions …", flush=True)
        figures = {
            "streams": {name: max(speeds) for name, speeds in streams.items()},
            "instructions": fastest_instructions(isa),
        }
        matmuls: dict[str, list[dict[str, Any]]] = {}
        runs = {"memory": max(streams.values(), key=max)}
        makers = {"TensorFlow": tensorflow_matmuls, "OpenVINO": openvino_matmuls}
        for dtype, libraries in LIBRARIES.items():
            matmuls[dtype] = []
            for library in libraries:
                print(f"Measuring {library} {dtype} matmuls …", flush=True)
                if make_matmul := makers[library](dtype, machine):
                    speeds, n = peak(make_matmul, machine, sizes)
                    matmuls[dtype].append({"library": library, "n": n, "speed": max(speeds)})
                    runs[dtype] = max(runs.get(dtype, [0.0]), speeds, key=max)
    print(json.dumps(figures | {"products": matmuls, "runs": runs, "others": others.as_dict()}))


def fastest_instructions(isa: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the output of `labkit.roofline.instructions`; empty without a compiler, or if it fails."""
    command = [sys.executable, "-m", instructions.__name__, *isa]
    try:
        done = subprocess.run(command, capture_output=True, timeout=INSTRUCTIONS_LIMIT_S)
        figures: dict[str, dict[str, Any]] = json.loads(done.stdout)
        return figures
    except (subprocess.TimeoutExpired, ValueError):
        return {}


MakeMatmul = Callable[[int], tuple[Callable[[], object], float]]  # by n


def peak(make_matmul: MakeMatmul, machine: Machine, sizes: Sequence[int] = SIZES) -> tuple[list[float], int]:
    """Return the runs of the fastest matmul of several sizes, in 1e9 operations/s, and its n.

    This measures a limit of the machine. Nothing makes a run faster than the limit, and many things make it slower, so
    the fastest run is closest. For comparing two figures, this would be wrong.

    Parameters
    ----------
    make_matmul : callable
        Returns a function that multiplies n×n matrices, and the number of operations.
    machine : Machine
        The machine; sizes that do not fit into a quarter of its free memory are skipped, except the first.
    sizes : sequence of int
        The n to try, in ascending order, up to the first slow one.
    """
    best = [0.0], 0
    for n in sizes:
        if n > sizes[0] and 16 * n**2 > machine.memory_free * MEMORY_SHARE:  # bytes; four float32 matrices
            break
        multiply, operations = make_matmul(n)
        multiply()  # the first run chooses kernels, and allocates memory
        seconds = run_times(multiply)
        best = max(best, ([operations / time_s / 1e9 for time_s in seconds], n), key=lambda runs: max(runs[0]))
        if min(seconds) > LONG_MATMUL_S:
            break
    return best


def run_times(run: Callable[[], object]) -> list[float]:
    """Return the seconds of at least `MIN_RUNS` runs that take at least `MIN_DURATION_S`."""
    times: list[float] = []
    while len(times) < MIN_RUNS or sum(times) < MIN_DURATION_S:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def tensorflow_matmuls(dtype: str, machine: Machine) -> MakeMatmul:
    """Return TensorFlow matmuls for `peak`, in float32 or bfloat16."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(machine.usable_cores)

    def make_matmul(n: int) -> tuple[Callable[[], object], float]:
        a, b = (tf.cast(tf.random.uniform([n, n]), dtype) for _ in range(2))
        return lambda: tf.matmul(a, b), 2 * n**3  # on a CPU, this returns when it is done

    return make_matmul


def openvino_matmuls(dtype: str, machine: Machine) -> MakeMatmul | None:
    """Return OpenVINO matmuls for `peak`, with constant weights as in a network; None if it would convert the dtype.

    OpenVINO lays out constant weights in advance, as AMX and VNNI need them. int8 matmuls accumulate in 32 bits, as in
    a quantised network. Each NUMA node has its own chain.
    """
    import openvino as ov

    core = ov.Core()
    hint = "bf16" if dtype == "bfloat16" else "f32"  # with int8, for the parts not in 8 bits
    if hint == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return None  # it would compute in float32
    chains = min(len(machine.numa), machine.usable_cores)
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": machine.usable_cores,
        "NUM_STREAMS": chains,
    }

    def make_matmul(n: int) -> tuple[Callable[[], object], float]:
        compiled = core.compile_model(chain(n, quantised=dtype == "int8"), "CPU", settings)
        requests = [compiled.create_infer_request() for _ in range(chains)]
        for request in requests:
            request.set_input_tensor(ov.Tensor(np.ones((2 * n, n), np.float32)))

        def multiply() -> None:
            for request in requests:
                request.start_async()
            for request in requests:
                request.wait()

        return multiply, chains * CHAIN_LENGTH * 2 * (2 * n) * n * n

    return make_matmul


def chain(n: int, quantised: bool) -> Any:
    """Return an OpenVINO model of `CHAIN_LENGTH` matmuls, (2n, n) by (n, n), in 8 bits if quantised.

    In a chain, converting the first input and the last output costs little.
    """
    import openvino as ov
    from openvino import opset13 as op

    weights = np.random.default_rng(0).integers(-127, 128, (n, n), np.int8)

    def in_8_bits(x: Any, highest: float) -> Any:
        low, high = (op.constant(np.float32(value)) for value in (0, highest))
        return op.fake_quantize(x, low, high, low, high, 256)

    source = op.parameter([2 * n, n], np.float32)
    x = in_8_bits(source, 2.55) if quantised else source
    for _ in range(CHAIN_LENGTH):
        if quantised:
            scaled = op.multiply(op.convert(op.constant(weights), np.float32), op.constant(np.float32(0.01)))
            x = in_8_bits(op.matmul(x, scaled, False, False), 255)
        else:
            x = op.matmul(x, op.constant(weights / np.float32(64 * n**0.5)), False, False)  # keeps the magnitude
    return ov.Model([op.reduce_max(x, op.constant(np.array([0, 1])), False)], [source], "chain")


def bandwidth(machine: Machine, each_bytes: int | None = None) -> dict[str, list[float]]:
    """Return GB/s of each of `STREAMS` and of each reader, round by round, on all usable cores.

    Each thread of `STREAMS` runs on memory that it touched first.

    Each of the three arrays of `STREAMS` has `each_bytes` bytes, by default `array_bytes`; the readers' array is as
    large as all three.
    """
    threads = machine.usable_cores
    size = each_bytes or array_bytes(machine, last_level_cache(machine.cpus))
    elements = size // 8 // threads

    def streams(place: int) -> together.Runs:
        arrays = [np.full(elements, value) for value in (1.0, 2.0, 0.0)]
        return {name: functools.partial(passes, run, arrays) for name, (_, run) in STREAMS.items()}

    def passes(run: Callable[..., object], arrays: list[np.ndarray]) -> None:
        for _ in range(PASSES):
            run(*arrays)

    gigabytes = {name: size * elements * threads * PASSES / 1e9 for name, (size, _) in STREAMS.items()}
    team = together.Team(machine, streams)
    speeds = together.rounds_of(lambda name: gigabytes[name] / team.seconds(name), STREAMS)
    return speeds | readers.Memory(machine, 3 * size).speeds(together.ROUNDS)


def array_bytes(machine: Machine, cache: int) -> int:
    """Return the size of each of three arrays: four times all last-level caches, as in STREAM, if memory allows."""
    return int(min(4 * cache, machine.memory_free * MEMORY_SHARE / 3))


def last_level_cache(cpus: Iterable[int], root: Path = Path("/")) -> int:
    """Return the total bytes of these CPUs' last-level caches, each counted once."""
    caches = {}
    for cpu in cpus:
        for folder in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            level, size, sharers = (
                (folder / name).read_text(encoding="utf-8").strip() for name in ("level", "size", "shared_cpu_list")
            )
            caches[int(level), sharers] = int(size.removesuffix("K")) * 1024
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or DEFAULT_CACHE_BYTES


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--quick"], quick="--quick" in sys.argv)
