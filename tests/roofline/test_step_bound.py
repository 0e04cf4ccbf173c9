"""Tests of a step's lower bound, the sum over its operations, and its comparison with measured steps."""

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console
from test_roofline import LIMITS
from typer.testing import CliRunner

from labkit import cli
from labkit.bench import configurations
from labkit.bench.config import BenchConfig
from labkit.models.networks import Network
from labkit.roofline import step_bound
from labkit.roofline.measure import Matmul
from labkit.system.errors import LabError

BATCH = 4
MNIST = BenchConfig(model="mnist", batch_size=BATCH)
INFINITE_MEMORY = replace(LIMITS, streams={"read": 1e15})
INFINITE_CORES = replace(LIMITS, products={kind: [Matmul("none", 1, 1e15)] for kind in ("float32", "bfloat16")})


def lower_bound(config, limits):
    return math.fsum(work.least for work in step_bound.operations(config, limits).values())


@pytest.mark.parametrize("model", ["mnist", "resnet8"])
@pytest.mark.parametrize("forward_only", [True, False])
def test_the_operation_count_is_the_networks_own(model, forward_only):
    config = BenchConfig(model=model, batch_size=BATCH, forward_only=forward_only)
    counted = Network(model).flops if forward_only else Network(model).flops_training
    assert sum(work.flop for work in step_bound.operations(config, LIMITS).values()) == BATCH * counted


def test_with_infinite_memory_speed_the_limit_is_the_peak():
    assert lower_bound(MNIST, INFINITE_MEMORY) == pytest.approx(
        BATCH * Network("mnist").flops_training / 200e9, rel=1e-3
    )


def test_with_infinite_cores_the_limit_is_moving_each_tensor_once():
    operations = step_bound.operations(MNIST, INFINITE_CORES)
    assert lower_bound(MNIST, INFINITE_CORES) == pytest.approx(sum(work.moved for work in operations.values()) / 20e9)
    relus = [work.moved for name, work in operations.items() if name.startswith("Relu")]
    assert max(relus) == 2 * 4 * BATCH * 28 * 28 * 32  # read and written: float32, 32 channels


def test_each_operation_takes_the_longer_of_computing_and_moving():
    operations = step_bound.operations(MNIST, LIMITS)
    assert all(work.least >= max(work.flop / 200e9, work.moved / 20e9) - 1e-15 for work in operations.values())
    assert lower_bound(MNIST, LIMITS) > max(lower_bound(MNIST, INFINITE_MEMORY), lower_bound(MNIST, INFINITE_CORES))


def test_bfloat16_has_its_own_peak_and_half_the_bytes_of_activations():
    config = replace(MNIST, use_fp16=True)
    assert lower_bound(config, INFINITE_MEMORY) == pytest.approx(lower_bound(MNIST, INFINITE_MEMORY) / 2, rel=1e-3)
    moved = [
        sum(work.moved for work in step_bound.operations(case, LIMITS).values() if work.family == step_bound.NORMS)
        for case in (config, MNIST)
    ]
    assert moved[0] == pytest.approx(moved[1] / 2, rel=1e-4)  # the loss is float32


def test_a_weight_update_reads_weight_and_gradient_and_writes_the_weight():
    operations = step_bound.operations(MNIST, LIMITS).values()
    weights = sum(math.prod(weight.shape) for weight in Network("mnist").weights)
    updates = [work for work in operations if work.family == step_bound.WEIGHTS]
    assert sum(work.moved for work in updates) >= 3 * 4 * weights


@pytest.mark.parametrize(
    ("op_type", "family"),
    [
        ("_MklNativeConv2DBackpropInput", "convolutions"),
        ("_FusedConv2D", "convolutions"),
        ("_MklMatMul", "matmuls"),
        ("_MklFusedBatchNormGradV3", step_bound.NORMS),
        ("_FusedBatchNormEx", step_bound.NORMS),
        ("ResourceApplyMomentum", step_bound.WEIGHTS),
        ("Softmax", step_bound.OTHER),
    ],
)
def test_fused_and_onednn_operations_have_the_same_families(op_type, family):
    assert step_bound.family(op_type) == family


def event(name, op_type, milliseconds):
    return {"ph": "X", "name": op_type, "dur": 1000 * milliseconds, "args": {"name": name}}


def test_a_steps_work_is_compared_with_its_bound_greatest_loss_first():
    needed = {
        "conv": step_bound.Work("convolutions", flop=2e9, moved=1e6, least=0.010),
        "relu": step_bound.Work(step_bound.NORMS, moved=2e7, least=0.001, by_memory=0.001),
    }
    timeline = [
        {"ph": "M", "name": "process_name", "args": {"name": "cpu"}},
        event("conv", "_MklConv2D", 12),
        event("relu", "Relu", 4),
        event("added/by/a/rewrite", "Transpose", 1),
    ]
    step = step_bound.by_family(MNIST, needed, timeline, seconds=0.018)
    assert [(work.family, work.took) for work in step.work] == [
        (step_bound.NORMS, pytest.approx(0.004)),
        ("convolutions", pytest.approx(0.012)),
        (step_bound.OTHER, pytest.approx(0.001)),
    ]
    assert step.least == pytest.approx(0.011)
    assert step.share == pytest.approx(11 / 18)
    step_bound.render(step, Console(file=(out := io.StringIO()), width=200))
    assert "takes 18 ms (222.2 images/s) and reaches 61% of its limit, 11 ms (363.6 images/s)." in out.getvalue()
    assert "The parts sum to 17.0 ms, 94% of the 18.0 ms measured." in out.getvalue()
    assert step_bound.REASON not in out.getvalue()
    step_bound.render(replace(step, seconds=0.010), Console(file=out, width=200))
    assert f"Above the limit: the step 110%. Either {step_bound.REASON}." in out.getvalue()


def test_losses_are_not_ranked_if_operations_do_not_sum_to_the_step():
    needed = {
        "conv": step_bound.Work("convolutions", least=0.010),
        "pool": step_bound.Work("pooling", least=0.004),
    }
    timeline = [event("pool", "MaxPool", 3), event("conv", "Conv2D", 60)]
    ranked, step = (step_bound.by_family(MNIST, needed, timeline, seconds) for seconds in (0.063, 0.040))
    assert [work.family for work in step.work] == ["convolutions", "pooling"]
    assert (step.as_dict()["reliable"], ranked.as_dict()["reliable"]) == (False, True)
    texts = []
    for result in (ranked, step):
        step_bound.render(result, Console(file=(out := io.StringIO()), width=200))
        texts.append(out.getvalue())
    assert "50.0" in texts[0]
    assert "50.0" not in texts[1]
    assert "158% of the 40.0 ms measured. The breakdown is unreliable: draw no conclusion from it." in texts[1]
    assert all("Above the limit: pooling 133%. Either" in text for text in texts)


def test_a_step_is_measured(monkeypatch):
    step = step_bound.measure_step(MNIST, LIMITS, configurations.known()["onednn"])
    assert {work.family for work in step.work} >= {"convolutions", "matmuls", step_bound.NORMS, step_bound.WEIGHTS}
    assert all(work.took > 0 for work in step.work if work.flop)
    assert step.as_dict()["seconds"] > 0


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        ("mnist", "all", "name one, not all"),
        ("mnist", "mkl", "there is no configuration 'mkl'"),
        ("mnist", "onednn-huge", "no such pages"),
        ("mnist", "torch-bf16", "TensorFlow operations"),
        ("resnet5", "onednn", "'resnet5' is not one of 'resnet50'"),
    ],
)
def test_unsuitable_networks_and_configurations_are_one_line_errors(model, config, message, monkeypatch):
    monkeypatch.setattr("labkit.bench.configurations.huge_pages_problem", lambda: "no such pages")
    result = CliRunner().invoke(cli.application(), ["roofline", "--model", model, "--config", config])
    assert isinstance(result.exception, LabError)
    assert message in str(result.exception)


def test_fused_shortcuts_count_as_additions_and_relus():
    plain, fused = (
        step_bound.operations(BenchConfig(model="resnet8", batch_size=2, fused_shortcuts=fused), LIMITS).values()
        for fused in (False, True)
    )
    moved = [sum(work.moved for work in works if work.family == step_bound.NORMS) for works in (plain, fused)]
    assert sum(work.flop for work in plain) == sum(work.flop for work in fused)
    assert 0 < moved[1] < moved[0]
