import subprocess
import sys
from pathlib import Path

import pytest

from labkit.display import onednn
from labkit.system.errors import LabError
from labkit.system.machine import this_machine

LOGS = Path(__file__).with_name("logs")  # one training step of the MNIST CNN, in the formats of both versions


def log(version: str) -> list[str]:
    return (LOGS / f"onednn-{version}.log").read_text().splitlines()


@pytest.mark.parametrize(
    ("version", "threads", "implementation", "blocked"),
    [
        ("3.2.1", "OpenMP,nthr:2", "jit:avx512_core", "Acdb16a"),
        ("3.7.3", "threadpool,nthr:2", "brg_conv_fwd:avx512_core", "Adcb16a"),
    ],
)
def test_both_formats_give_the_same_table(version, threads, implementation, blocked):
    lines = log(version[:3])
    assert onednn.describe(lines)["version"] == version
    assert onednn.describe(lines)["threads"] == threads
    table = onednn.read_log(lines)
    assert len(table) == sum(",exec," in line for line in lines) >= 20
    first = table[table.primitive == "convolution"].iloc[0].to_dict()
    assert first.pop("ms") > 1
    assert first == {
        "primitive": "convolution",
        "implementation": implementation,
        "direction": "forward_training",
        "type": "f32",
        "src": "acdb",
        "wei": blocked,
        "dst": "acdb",
        "attributes": "attr-scratchpad:user attr-post-ops:eltwise_relu",
        "problem": "mb64_ic1oc32_ih28oh28kh3sh1dh0ph1_iw28ow28kw3sw1dw0pw1",
    }
    reorder = table[table.primitive == "reorder"].iloc[0]
    assert (reorder.src, reorder.wei, reorder.dst) == ("cdba", "", blocked)
    matmul = table[table.primitive == "gemm_api"].iloc[0]  # oneDNN 3.7 still uses the old tensor format here
    assert set(matmul[["src", "wei", "dst"]]) == {"ab", "ba"}
    assert matmul.implementation == ""


@pytest.mark.parametrize(
    ("name", "threads", "isa", "implementation", "layout"),
    [
        ("training", 2, "AVX-512", "brg_conv_fwd:avx512_core", "acdb"),
        ("training-a", 1, "AVX-512", "brg_conv_fwd:avx512_core", "acdb"),
        ("training-b", 2, "AVX-512", "jit:avx512_core", "aBcd16b"),
        ("int8", 2, "AVX-512", "brg_conv_fwd:avx512_core_vnni", "acdb"),
        ("int8-c", 2, "AVX2", "ref:any", "acdb"),
    ],
)
def test_the_stored_logs_are_of_healthy_and_slow_runs(name, threads, isa, implementation, layout):
    lines = onednn.stored_log(name)
    head = onednn.describe(lines)
    assert (head["version"], head["threads"]) == ("3.12.0", f"OpenMP,nthr:{threads}")
    assert isa in head["isa"]
    table = onednn.read_log(lines)
    assert len(table) == sum(",exec," in line for line in lines)
    assert (table.ms > 0).all()
    square = table[table.problem.str.contains("oh56kh3") & table.direction.str.startswith("forward")]
    assert implementation in set(square.implementation)
    assert layout in set(square.dst)


def test_other_lines_and_truncated_lines_are_left_out():
    lines = log("3.7")
    whole = onednn.read_log(lines)
    noisy = ["training: 100 images/s", *lines, lines[-1][:60], "onednn_verbose,v1,primitive,create:cache_miss,cpu"]
    assert onednn.read_log(noisy).equals(whole)


def test_only_primitives_after_a_line_count():
    lines = log("3.7")
    marked = [*lines[:20], "warm", *lines[20:]]
    assert len(onednn.read_log(marked, after="warm")) == len(lines[20:])
    with pytest.raises(LabError, match="the log has no line 'hot'"):
        onednn.read_log(marked, after="hot")


def test_lines_without_a_log_are_refused_with_advice():
    with pytest.raises(LabError, match="ONEDNN_VERBOSE=1"):
        onednn.read_log(["training: 100 images/s"])
    assert onednn.describe(["training: 100 images/s"]) == {}


def test_the_sizes_of_a_convolution_come_from_its_log_row():
    table = onednn.read_log(log("3.7"))
    size = onednn.convolution_size(table[table.primitive == "convolution"].problem.iloc[0])
    assert [size[name] for name in ("mb", "ic", "oc", "ih", "oh", "kh", "pw")] == [64, 1, 32, 28, 28, 3, 1]


@pytest.mark.slow
def test_tensorflow_says_whether_it_uses_onednn_by_default(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # as if the user had set it
    # The rule of TensorFlow's util.cc, which also knows one Arm CPU.
    expected = not {"VNNI", "BF16", "AMX"}.isdisjoint(this_machine().isa)
    assert onednn.is_default() == expected or "NEON" in this_machine().isa


def test_a_tensorflow_that_cannot_be_imported_is_reported(monkeypatch):
    monkeypatch.setattr(onednn, "_ASK", "raise ImportError")
    with pytest.raises(LabError, match=r"can't import TensorFlow \(exit status 1\)\. To find out why: \./lab doctor"):
        onednn.is_default()


GRAPHS = """
import tensorflow as tf
from labkit.display import onednn

x, w, b = tf.random.normal((2, 8, 8, 4)), tf.random.normal((3, 3, 4, 8)), tf.random.normal((8,))
def fused(x):
    return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME"), b))
def product(x):
    return tf.matmul(x[0, 0], x[0, 1], transpose_b=True)
tf.function(product)(x)  # earlier runs are left out
for function in (fused, product):
    written, executed = onednn.graph_that_ran(function, x)
    print(*sorted(node.op for node in written if node.op not in ("Const", "Identity")), end=" | ")
    print(*(node.op for node in executed))
"""


@pytest.mark.slow
@pytest.mark.parametrize("on", ["0", "1"])
def test_the_executed_graph_contains_the_rewritten_operations(on):
    """Run in a separate process, since TensorFlow decides on oneDNN at its start."""
    done = subprocess.run(
        [sys.executable, "-c", GRAPHS],
        env={"TF_ENABLE_ONEDNN_OPTS": on, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    fused, product = done.stdout.splitlines()
    mkl = "_MklNative" if on == "1" else "_"
    assert fused.startswith("BiasAdd Conv2D Relu |")
    assert f"{mkl}FusedConv2D" in fused
    assert "Relu" not in fused.partition("|")[2]
    assert "MatMul" in product
    assert "Conv2D" not in product
