"""A transformer that writes text, a decoder, in OpenVINO: trained weights or random ones, with a cache of its own."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from labkit.models.openvino_core import openvino_core

EPSILON = 1e-5  # below the root of RMSNorm


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder: blocks of attention and of two matmuls with GELU between them, both after RMSNorm.

    Attributes
    ----------
    layers, width, heads : int
        The blocks; the numbers per token between them; the heads of each attention.
    symbols : int
        The tokens of its vocabulary.
    context : int
        The most tokens that it can look back on: the positions that it knows.
    shared_by : int
        The heads that share keys and values: 1 without grouped-query attention.
    """

    layers: int
    width: int
    heads: int
    symbols: int = 128
    context: int = 128
    shared_by: int = 1

    @property
    def kv_heads(self) -> int:
        """The heads whose keys and values are cached."""
        return self.heads // self.shared_by

    @property
    def head_size(self) -> int:
        """The numbers of a head."""
        return self.width // self.heads

    @property
    def block_weights(self) -> int:
        """The weights of all blocks' matmuls: 12·width² each, four in attention and eight after it, fewer with GQA."""
        return self.layers * (10 * self.width**2 + 2 * self.width * self.kv_heads * self.head_size)

    @property
    def active_weights(self) -> int:
        """The weights that a token is multiplied by: those of all blocks, since there are no experts to choose from."""
        return self.block_weights

    def weight_shapes(self) -> dict[str, tuple[int, int]]:
        """Return the weights by name, each (in, out): a block's have its number before a dot, such as `0.qkv`."""
        width = self.width
        shapes = {"embed": (self.symbols, width), "position": (self.context, width)}
        for layer in range(self.layers):
            shapes |= {
                f"{layer}.qkv": (width, width + 2 * self.kv_heads * self.head_size),
                f"{layer}.out": (width, width),
                f"{layer}.up": (width, 4 * width),
                f"{layer}.down": (4 * width, width),
            }
        return shapes | {"logits": (width, self.symbols)}


def random_weights(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a decoder's weights before training, float32: normal, scaled so that a block's sums neither grow nor fade.

    What a block adds to its input is smaller by the root of the number of such additions (Radford et al. 2019, GPT-2).
    """
    rng = np.random.default_rng(seed)
    weights = {}
    for name, (rows, columns) in shape.weight_shapes().items():
        size = 0.5 if name in ("embed", "position") else rows**-0.5
        if name.endswith((".out", ".down")):
            size *= (2 * shape.layers) ** -0.5
        weights[name] = rng.standard_normal((rows, columns), np.float32) * np.float32(size)
    return weights


def openvino_model(shape: Shape, weights: Mapping[str, np.ndarray]) -> openvino.Model:
    """Return a decoder as OpenVINO's model, which keeps keys and values as its state: run it by `Decoder`.

    Parameters
    ----------
    shape : Shape
        Its sizes.
    weights : mapping of str to array
        By the names of `Shape.weight_shapes`.
    """
    tokens, positions, rows = (
        ops.parameter(form, np.int32, name=name)
        for name, form in (("tokens", [-1, -1]), ("positions", [-1, -1]), ("beam_idx", [-1]))
    )
    size, kv_heads = shape.head_size, shape.kv_heads
    counts = [shape.heads, kv_heads, kv_heads]  # of queries, keys and values
    batch = ops.gather(ops.shape_of(tokens, "i32"), _whole([0]), _whole(0))
    empty = ops.broadcast(_real(0.0), ops.concat([batch, _whole([kv_heads, 0, size])], 0))
    sinks, allowed = [], None

    def product(values: Any, name: str) -> Any:
        """Multiply by weights that are stored (out, in), as OpenVINO's own models have them."""
        return ops.matmul(values, ops.constant(np.ascontiguousarray(weights[name].T)), False, True)

    def remember(new: Any, name: str) -> Any:
        """Return the keys or values so far; OpenVINO's plugin keeps the cache in place where a gather is in between."""
        info = VariableInfo()
        info.data_shape = openvino.PartialShape([-1, kv_heads, -1, size])
        info.data_type, info.variable_id = openvino.Type.f32, name
        state = Variable(info)
        so_far = ops.concat([ops.gather(ops.read_value(empty, state), rows, _whole(0)), new], 2)
        sinks.append(ops.assign(so_far, state))
        return so_far

    def repeat(values: Any) -> Any:
        """Return keys or values once per head that shares them; the plugin fuses this into its attention: no copies."""
        if shape.shared_by == 1:
            return values
        ones = ops.constant(np.ones((1, 1, shape.shared_by, 1, 1), np.float32))
        repeated = ops.multiply(ops.unsqueeze(values, _whole(2)), ones)
        return ops.reshape(repeated, _whole([0, shape.heads, -1, size]), True)

    vectors = [
        ops.gather(ops.constant(weights[name]), place, _whole(0))
        for name, place in (("embed", tokens), ("position", positions))
    ]
    x = ops.add(*vectors)
    for layer in range(shape.layers):
        heads = ops.reshape(product(_rms_norm(x), f"{layer}.qkv"), _whole([0, 0, sum(counts), size]), True)
        split = ops.variadic_split(ops.transpose(heads, _whole([0, 2, 1, 3])), _whole(1), counts)
        queries, keys, values = split.outputs()
        keys, values = remember(keys, f"{layer}.keys"), remember(values, f"{layer}.values")
        allowed = allowed or _mask(keys, positions)
        looked_up = ops.scaled_dot_product_attention(queries, repeat(keys), repeat(values), allowed)
        joined = ops.reshape(ops.transpose(looked_up, _whole([0, 2, 1, 3])), _whole([0, 0, shape.width]), True)
        x = ops.add(x, product(joined, f"{layer}.out"))
        # With GELU fused into it, a float32 matmul runs on a oneDNN kernel that reads weights at three quarters of the
        # speed of MLAS, which OpenVINO uses otherwise (docs/upstream.md). A reshape keeps the two apart.
        hidden = ops.reshape(product(_rms_norm(x), f"{layer}.up"), _whole([0, 0, 4, shape.width]), True)
        activated = ops.reshape(ops.gelu(hidden, "tanh"), _whole([0, 0, 4 * shape.width]), True)
        x = ops.add(x, product(activated, f"{layer}.down"))
    logits = ops.result(product(_rms_norm(x), "logits"))
    return openvino.Model([logits], sinks, [tokens, positions, rows], "decoder")


def for_genai(model: openvino.Model) -> openvino.Model:
    """Return a decoder with the inputs and output that OpenVINO GenAI expects; `model` itself can't be used again.

    Names and types are those of `optimum-cli export openvino`. GenAI passes a mask, which a decoder doesn't need: it
    has no padding.
    """
    ids, mask, positions = (ops.parameter([-1, -1], np.int64) for _ in range(3))
    tokens, places, rows = model.get_parameters()
    (logits,) = model.get_results()
    for old, new in ((tokens, ids), (places, positions)):
        converted = ops.convert(new, "i32").output(0)
        for reader in old.output(0).get_target_inputs():
            reader.replace_source_output(converted)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "beam_idx": rows}
    for name, node in (inputs | {"logits": logits}).items():
        node.set_friendly_name(name)
        node.output(0).get_tensor().set_names({name})
    return openvino.Model([logits], model.get_sinks(), list(inputs.values()), "decoder")


class Decoder:
    """A decoder that is compiled for this machine's CPU, and the tokens in its cache.

    Parameters
    ----------
    model : openvino.Model
        As `openvino_model` makes it, its weights compressed or not.
    **settings
        OpenVINO's, such as `INFERENCE_PRECISION_HINT="bf16"`; None leaves one to OpenVINO. By default it computes in
        float32, one request at a time, and keeps keys and values in float32: OpenVINO would choose bfloat16 where the
        CPU has it, and 8 bits for keys and values.

    Attributes
    ----------
    length : int
        The tokens in the cache.
    compiled : openvino.CompiledModel
        What OpenVINO made of it.
    """

    def __init__(self, model: openvino.Model, **settings: object):
        defaults = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "NUM_STREAMS": 1}
        chosen = {name: value for name, value in (defaults | settings).items() if value is not None}
        self.compiled = openvino_core().compile_model(model, "CPU", chosen)
        self._request = self.compiled.create_infer_request()
        self.length = self._passes = 0
        self._profiled = 0, Counter[str]()

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits (batch, n, symbols) after each of n tokens (batch, n), which follow those in the cache."""
        batch, count = tokens.shape
        positions = np.tile(np.arange(self.length, self.length + count, dtype=np.int32), (batch, 1))
        fed = {"tokens": tokens.astype(np.int32), "positions": positions, "beam_idx": np.arange(batch, dtype=np.int32)}
        logits: np.ndarray = self._request.infer(fed)[0]
        self.length += count
        self._passes += 1
        return logits

    def fill(self, batch: int, count: int) -> None:
        """Put `count` tokens per text into the cache, all with the same random key and value, without a pass."""
        rng = np.random.default_rng(0)
        self.reset()
        for state in self._request.query_state():
            _, heads, _, size = state.state.shape
            vector = rng.standard_normal((1, heads, 1, size), np.float32)
            state.state = openvino.Tensor(np.ascontiguousarray(np.broadcast_to(vector, (batch, heads, count, size))))
        self.length = count

    def profile(self) -> dict[str, float]:
        """Return the milliseconds of each type of node in a pass: the mean of the passes since the last profile.

        They are 0 unless the decoder was made with `PERF_COUNT=True`. OpenVINO's types are such as `FullyConnected`.
        """
        spent = Counter[str]()
        for node in self._request.get_profiling_info():  # the mean of all passes so far
            spent[node.node_type] += self._passes * 1000 * node.real_time.total_seconds()
        (passes, before), self._profiled = self._profiled, (self._passes, spent)
        count = max(1, self._passes - passes)
        # The means are whole microseconds: what a node took can come out below 0.
        return {kind: max(0.0, ms - before[kind]) / count for kind, ms in spent.items()}

    def reset(self) -> None:
        """Forget all tokens."""
        self._request.reset_state()
        self.length = 0


def _rms_norm(x: Any) -> Any:
    """Divide each token's numbers by the root of their mean square; the first lines of a decoder's block."""
    mean = ops.reduce_mean(ops.multiply(x, x), _whole([-1]), keep_dims=True)
    return ops.divide(x, ops.sqrt(ops.add(mean, _real(EPSILON))))


def _mask(keys: Any, positions: Any) -> Any:
    """Return what is added to the scores, (batch, 1, n, all so far): 0, or −∞ for a key later than the query.

    One for each text: if all texts share a mask, OpenVINO's bfloat16 kernels read past its end (docs/upstream.md).
    """
    count = ops.gather(ops.shape_of(keys, "i32"), _whole(2), _whole(0))
    places = ops.range(_whole(0), count, _whole(1), "i32")
    allowed = ops.less_equal(ops.unsqueeze(places, _whole([0, 1])), ops.unsqueeze(positions, _whole(2)))
    return ops.unsqueeze(ops.select(allowed, _real(0.0), _real(-np.inf)), _whole(1))


def _whole(value: Any) -> Any:
    return ops.constant(np.asarray(value, np.int32))


def _real(value: float) -> Any:
    return ops.constant(np.float32(value))
