"""A decoder-only transformer in OpenVINO, with trained or random weights and its own KV cache."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from labkit.models.openvino_core import openvino_core

EPSILON = 1e-5  # inside the square root of RMSNorm


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder: blocks of attention and of two matmuls with GELU between them, both after RMSNorm.

    Attributes
    ----------
    layers, width, heads : int
        The number of blocks; the numbers per token between them; the heads per block.
    symbols : int
        The vocabulary size.
    context : int
        The longest context in tokens: the number of positions.
    shared_by : int
        The number of heads that share keys and values: 1 without grouped-query attention.
    """

    layers: int
    width: int
    heads: int
    symbols: int = 128
    context: int = 128
    shared_by: int = 1

    @property
    def kv_heads(self) -> int:
        """The number of heads whose keys and values are cached."""
        return self.heads // self.shared_by

    @property
    def head_size(self) -> int:
        """The numbers per head."""
        return self.width // self.heads

    @property
    def block_weights(self) -> int:
        """The weights of all blocks' matmuls: 12·width² each, four in attention and eight after it, fewer with GQA."""
        return self.layers * (10 * self.width**2 + 2 * self.width * self.kv_heads * self.head_size)

    @property
    def active_weights(self) -> int:
        """The number of weights that a token is multiplied by: those of all blocks, as there are no experts."""
        return self.block_weights

    def weight_shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes (in, out) of the weights by name; a block's begin with its number, such as `0.qkv`."""
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
    """Return a decoder's initial weights, float32: normal, scaled so that a block's sums neither grow nor fade.

    Additions to the residual stream are scaled by 1 over the root of their number (Radford et al. 2019, GPT-2).
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
    """Return a decoder as an OpenVINO model, with keys and values as its state: run it with `Decoder`.

    Parameters
    ----------
    shape : Shape
        Its sizes.
    weights : mapping of str to array
        The arrays by the names of `Shape.weight_shapes`.
    """
    tokens, positions, rows = (
        ops.parameter(form, np.int32, name=name)
        for name, form in (("tokens", [-1, -1]), ("positions", [-1, -1]), ("beam_idx", [-1]))
    )
    size, kv_heads = shape.head_size, shape.kv_heads
    counts = [shape.heads, kv_heads, kv_heads]  # of queries, keys and values
    batch = ops.gather(ops.shape_of(tokens, "i32"), _integers([0]), _integers(0))
    empty = ops.broadcast(_float(0.0), ops.concat([batch, _integers([kv_heads, 0, size])], 0))
    sinks, allowed = [], None

    def matmul(values: Any, name: str) -> Any:
        """Multiply by weights that are stored as (out, in), as in OpenVINO's own models."""
        return ops.matmul(values, ops.constant(np.ascontiguousarray(weights[name].T)), False, True)

    def remember(new: Any, name: str) -> Any:
        """Return the keys or values so far; the gather in between lets OpenVINO's plugin update the cache in place."""
        info = VariableInfo()
        info.data_shape = openvino.PartialShape([-1, kv_heads, -1, size])
        info.data_type, info.variable_id = openvino.Type.f32, name
        state = Variable(info)
        so_far = ops.concat([ops.gather(ops.read_value(empty, state), rows, _integers(0)), new], 2)
        sinks.append(ops.assign(so_far, state))
        return so_far

    def repeat(values: Any) -> Any:
        """Return keys or values once per head that shares them; the plugin fuses this into its attention: no copies."""
        if shape.shared_by == 1:
            return values
        ones = ops.constant(np.ones((1, 1, shape.shared_by, 1, 1), np.float32))
        repeated = ops.multiply(ops.unsqueeze(values, _integers(2)), ones)
        return ops.reshape(repeated, _integers([0, shape.heads, -1, size]), True)

    vectors = [
        ops.gather(ops.constant(weights[name]), place, _integers(0))
        for name, place in (("embed", tokens), ("position", positions))
    ]
    x = ops.add(*vectors)
    for layer in range(shape.layers):
        heads = ops.reshape(matmul(_rms_norm(x), f"{layer}.qkv"), _integers([0, 0, sum(counts), size]), True)
        split = ops.variadic_split(ops.transpose(heads, _integers([0, 2, 1, 3])), _integers(1), counts)
        queries, keys, values = split.outputs()
        keys, values = remember(keys, f"{layer}.keys"), remember(values, f"{layer}.values")
        allowed = allowed or _mask(keys, positions)
        attended = ops.scaled_dot_product_attention(queries, repeat(keys), repeat(values), allowed)
        joined = ops.reshape(ops.transpose(attended, _integers([0, 2, 1, 3])), _integers([0, 0, shape.width]), True)
        x = ops.add(x, matmul(joined, f"{layer}.out"))
        # With GELU fused into it, a float32 matmul runs on a oneDNN kernel that reads weights at three quarters of the
        # speed of MLAS, which OpenVINO uses otherwise (docs/upstream.md). A reshape keeps the two apart.
        hidden = ops.reshape(matmul(_rms_norm(x), f"{layer}.up"), _integers([0, 0, 4, shape.width]), True)
        activated = ops.reshape(ops.gelu(hidden, "tanh"), _integers([0, 0, 4 * shape.width]), True)
        x = ops.add(x, matmul(activated, f"{layer}.down"))
    logits = ops.result(matmul(_rms_norm(x), "logits"))
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
    """A decoder compiled for this machine's CPU, with its KV cache.

    Parameters
    ----------
    model : openvino.Model
        The model from `openvino_model`, with its weights compressed or not.
    **settings
        OpenVINO properties, such as `INFERENCE_PRECISION_HINT="bf16"`; None leaves one to OpenVINO. By default it
        computes in float32, one request at a time, and keeps keys and values in float32: OpenVINO would choose bfloat16
        if the CPU supports it, and 8 bits for keys and values.

    Attributes
    ----------
    length : int
        The number of tokens in the cache.
    compiled : openvino.CompiledModel
        The compiled model.
    """

    def __init__(self, model: openvino.Model, **settings: object):
        defaults = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "NUM_STREAMS": 1}
        properties = {name: value for name, value in (defaults | settings).items() if value is not None}
        self.compiled = openvino_core().compile_model(model, "CPU", properties)
        self._request = self.compiled.create_infer_request()
        self.length = self._passes = 0
        self._profiled = 0, Counter[str]()

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits (batch, n, symbols) after each of n tokens (batch, n), which follow those in the cache."""
        batch, count = tokens.shape
        positions = np.tile(np.arange(self.length, self.length + count, dtype=np.int32), (batch, 1))
        inputs = {
            "tokens": tokens.astype(np.int32),
            "positions": positions,
            "beam_idx": np.arange(batch, dtype=np.int32),
        }
        logits: np.ndarray = self._request.infer(inputs)[0]
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
        """Return the milliseconds per pass of each node type, averaged over the passes since the last profile.

        They are 0 unless the decoder was created with `PERF_COUNT=True`. A type is, for example, `FullyConnected`.
        """
        spent = Counter[str]()
        for node in self._request.get_profiling_info():  # the mean of all passes so far
            spent[node.node_type] += self._passes * 1000 * node.real_time.total_seconds()
        (passes, before), self._profiled = self._profiled, (self._passes, spent)
        count = max(1, self._passes - passes)
        # The means are rounded to microseconds, so a difference can be negative.
        return {kind: max(0.0, ms - before[kind]) / count for kind, ms in spent.items()}

    def reset(self) -> None:
        """Forget all tokens."""
        self._request.reset_state()
        self.length = 0


def _rms_norm(x: Any) -> Any:
    """Divide each token's numbers by their root mean square."""
    mean = ops.reduce_mean(ops.multiply(x, x), _integers([-1]), keep_dims=True)
    return ops.divide(x, ops.sqrt(ops.add(mean, _float(EPSILON))))


def _mask(keys: Any, positions: Any) -> Any:
    """Return the mask to add to the scores, (batch, 1, n, tokens so far): 0, or −∞ for a key later than the query.

    Each text needs its own: if all share one, OpenVINO's bfloat16 kernels read past its end (docs/upstream.md).
    """
    count = ops.gather(ops.shape_of(keys, "i32"), _integers(2), _integers(0))
    places = ops.range(_integers(0), count, _integers(1), "i32")
    allowed = ops.less_equal(ops.unsqueeze(places, _integers([0, 1])), ops.unsqueeze(positions, _integers(2)))
    return ops.unsqueeze(ops.select(allowed, _float(0.0), _float(-np.inf)), _integers(1))


def _integers(value: Any) -> Any:
    return ops.constant(np.asarray(value, np.int32))


def _float(value: float) -> Any:
    return ops.constant(np.float32(value))
