"""A network's limit is the sum of what each of its operations needs, and what a step took is set beside it."""

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
from labkit.roofline.measure import Product
from labkit.system import huge_pages
from labkit.system.errors import LabError

BATCH = 4
MNIST = BenchConfig(model="mnist", batch_size=BATCH)
NO_WAIT_FOR_MEMORY = replace(LIMITS, streams={"read": 1e15})
NO_WAIT_FOR_CORES = replace(LIMITS, products={kind: [Product("none", 1, 1e15)] for kind in ("float32", "bfloat16")})


def least(config, limits):
    return math.fsum(work.least for work in step_bound.operations(config, limits).values())


@pytest.mark.parametrize("model", ["mnist", "mobilenet"])
@pytest.mark.parametrize("forward_only", [True, False])
def test_the_operations_are_those_that_the_network_counts(model, forward_only):
    config = BenchConfig(model=model, batch_size=BATCH, forward_only=forward_only)
    counted = Network(model).flops if forward_only else Network(model).flops_training
    assert sum(work.flop for work in step_bound.operations(config, LIMITS).values()) == BATCH * counted


def test_without_a_memory_to_wait_for_the_limit_is_the_peak():
    assert least(MNIST, NO_WAIT_FOR_MEMORY) == pytest.approx(BATCH * Network("mnist").flops_training / 200e9, rel=1e-3)


def test_without_cores_to_wait_for_the_limit_is_each_tensor_once_through_memory():
    found = step_bound.operations(MNIST, NO_WAIT_FOR_CORES)
    assert least(MNIST, NO_WAIT_FOR_CORES) == pytest.approx(sum(work.moved for work in found.values()) / 20e9)
    relus = [work.moved for name, work in found.items() if name.startswith("Relu")]
    assert max(relus) == 2 * 4 * BATCH * 28 * 28 * 32  # read and written: float32, 32 channels


def test_each_operation_takes_the_longer_of_both():
    found = step_bound.operations(MNIST, LIMITS)
    assert all(work.least >= max(work.flop / 200e9, work.moved / 20e9) - 1e-15 for work in found.values())
    assert least(MNIST, LIMITS) > max(least(MNIST, NO_WAIT_FOR_MEMORY), least(MNIST, NO_WAIT_FOR_CORES))


def test_bfloat16_has_its_own_peak_and_half_the_bytes_of_activations():
    config = replace(MNIST, use_fp16=True)
    assert least(config, NO_WAIT_FOR_MEMORY) == pytest.approx(least(MNIST, NO_WAIT_FOR_MEMORY) / 2, rel=1e-3)
    moved = [
        sum(work.moved for work in step_bound.operations(each, LIMITS).values() if work.family == step_bound.NORMS)
        for each in (config, MNIST)
    ]
    assert moved[0] == pytest.approx(moved[1] / 2, rel=1e-4)  # the loss is float32


def test_the_update_of_a_weight_reads_it_and_its_gradient_and_writes_it():
    found = step_bound.operations(MNIST, LIMITS).values()
    weights = sum(math.prod(weight.shape) for weight in Network("mnist").weights)
    updates = [work for work in found if work.family == step_bound.WEIGHTS]
    assert sum(work.moved for work in updates) >= 3 * 4 * weights


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("_MklNativeConv2DBackpropInput", "convolutions"),
        ("_FusedConv2D", "convolutions"),
        ("DepthwiseConv2dNative", "convolutions"),
        ("_MklMatMul", "matrix products"),
        ("_MklFusedBatchNormGradV3", step_bound.NORMS),
        ("_FusedBatchNormEx", step_bound.NORMS),
        ("ResourceApplyMomentum", step_bound.WEIGHTS),
        ("Softmax", step_bound.OTHER),
    ],
)
def test_what_is_fused_or_onednns_has_its_family(kind, family):
    assert step_bound.family(kind) == family


def event(name, kind, milliseconds):
    return {"ph": "X", "name": kind, "dur": 1000 * milliseconds, "args": {"name": name}}


def test_a_steps_work_is_beside_what_it_needs_and_the_greatest_loss_is_first():
    needed = {
        "conv": step_bound.Work("convolutions", flop=2e9, moved=1e6, least=0.010),
        "relu": step_bound.Work(step_bound.NORMS, moved=2e7, least=0.001, by_memory=0.001),
    }
    timeline = [
        {"ph": "M", "name": "process_name", "args": {"name": "cpu"}},
        event("conv", "_MklConv2D", 12),
        event("relu", "Relu", 4),
        event("made/by/a/rewrite", "Transpose", 1),
    ]
    step = step_bound.by_family(MNIST, needed, timeline, seconds=0.018)
    assert [(each.family, each.took) for each in step.work] == [
        (step_bound.NORMS, pytest.approx(0.004)),
        ("convolutions", pytest.approx(0.012)),
        (step_bound.OTHER, pytest.approx(0.001)),
    ]
    assert step.least == pytest.approx(0.011)
    assert step.share == pytest.approx(11 / 18)
    step_bound.render(step, Console(file=(out := io.StringIO()), width=200))
    assert "takes 18 ms (222.2 images/s), and at least 11 ms (363.6 images/s): it reaches 61%" in out.getvalue()
    assert "The parts sum to 17.0 ms, 94% of the 18.0 ms measured." in out.getvalue()
    assert step_bound.REASON not in out.getvalue()
    step_bound.render(replace(step, seconds=0.010), Console(file=out, width=200))
    assert f"Above their limit: the step 110%. Either {step_bound.REASON}." in out.getvalue()


def test_where_the_operations_do_not_sum_to_the_step_no_loss_is_ranked():
    needed = {
        "conv": step_bound.Work("convolutions", least=0.010),
        "pool": step_bound.Work("pooling", least=0.004),
    }
    timeline = [event("pool", "MaxPool", 3), event("conv", "Conv2D", 60)]
    ranked, step = (step_bound.by_family(MNIST, needed, timeline, seconds) for seconds in (0.063, 0.040))
    assert [each.family for each in step.work] == ["convolutions", "pooling"]
    assert (step.as_dict()["reliable"], ranked.as_dict()["reliable"]) == (False, True)
    texts = []
    for each in (ranked, step):
        step_bound.render(each, Console(file=(out := io.StringIO()), width=200))
        texts.append(out.getvalue())
    assert "50.0" in texts[0]
    assert "50.0" not in texts[1]
    assert "158% of the 40.0 ms measured. The breakdown is unreliable: draw no conclusion from it." in texts[1]
    assert all("Above their limit: pooling 133%. Either" in text for text in texts)


def test_a_step_is_measured(monkeypatch):
    step = step_bound.measure_step(MNIST, LIMITS, configurations.known()["onednn"])
    assert {each.family for each in step.work} >= {
        "convolutions",
        "matrix products",
        step_bound.NORMS,
        step_bound.WEIGHTS,
    }
    assert all(each.took > 0 for each in step.work if each.flop)
    assert step.as_dict()["seconds"] > 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("all", "name it instead of all"),
        ("mkl", "there is no configuration 'mkl'"),
        ("onednn-huge", "no such pages"),
        ("torch-bf16", "TensorFlow's operations"),
    ],
)
def test_a_configuration_that_a_step_cannot_run_in_is_refused_in_a_line(name, told, monkeypatch):
    monkeypatch.setattr(huge_pages, "problem", lambda: "no such pages")
    result = CliRunner().invoke(cli.application(), ["roofline", "--model", "mnist", "--config", name])
    assert isinstance(result.exception, LabError)
    assert told in str(result.exception)


def test_fused_shortcuts_are_work_like_the_sums_and_relus_that_they_are():
    plain, fused = (
        step_bound.operations(BenchConfig(model="resnet8", batch_size=2, fused_shortcuts=fused), LIMITS).values()
        for fused in (False, True)
    )
    moved = [sum(each.moved for each in found if each.family == step_bound.NORMS) for found in (plain, fused)]
    assert sum(each.flop for each in plain) == sum(each.flop for each in fused)
    assert 0 < moved[1] < moved[0]


def test_an_unknown_network_is_refused_in_a_line():
    result = CliRunner().invoke(cli.application(), ["roofline", "--model", "resnet5"])
    assert isinstance(result.exception, LabError)
    assert "invalid choice: 'resnet5'" in str(result.exception)
