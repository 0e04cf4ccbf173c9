"""llama.cpp in a child process, and GGUF files with random weights in the shapes of published models."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.models.published import PublishedModel
from labkit.system import lacks, processes
from labkit.system.errors import LabError
from labkit.system.lifetime import end_with
from labkit.system.machine import Machine, cpu_flags

CHILD = Path(__file__).with_name("llama_child.py")
END_TIMEOUT_S = 20.0


def obstacle() -> str:
    """Return one line on why llama.cpp can't run here; empty if it can."""
    if reason := lacks.reason("engine"):
        return reason
    if not version():
        return "llama.cpp is not installed. To install it: ./lab setup"
    if os.uname().machine == "x86_64" and "avx2" not in cpu_flags():
        return "This CPU lacks AVX2, which the wheel of llama.cpp needs"
    return ""


def version() -> str:
    """Return the version of llama.cpp's wheel; empty if it is not installed."""
    return next((package.version for package in metadata.distributions(name="xllamacpp")), "")


class Timing(NamedTuple):
    """The measurements of one request.

    Attributes
    ----------
    read, read_s : float
        The number of prompt tokens that it read, without cached ones, and the seconds.
    wrote, wrote_s : float
        The number of tokens that it wrote after the first, which reading returns, and the seconds.
    proposed, accepted : int
        The number of tokens that a draft proposed, and of those that were accepted.
    text : str
        The text it wrote.
    """

    read: int
    read_s: float
    wrote: int
    wrote_s: float
    proposed: int
    accepted: int
    text: str


class Engine:
    """llama.cpp with one GGUF file, in a child process that listens on no port.

    Parameters
    ----------
    path : Path
        The file.
    machine : Machine
        Its usable cores run one thread each; with several NUMA nodes, llama.cpp spreads the work over them.
    context : int
        The longest context of a request, in tokens.
    at_once : int
        The number of requests that share a pass.
    repack : bool
        Whether llama.cpp may copy weights into another order, for its faster kernels.
    proposed : int
        The number of tokens that prompt lookup proposes, which followed the last three before; 0 turns it off.

    Attributes
    ----------
    instructions : str
        The CPU instructions and libraries that this build of llama.cpp uses.

    Raises
    ------
    LabError
        If it can't load the file.
    """

    def __init__(
        self, path: Path, machine: Machine, context: int, at_once: int = 1, repack: bool = True, proposed: int = 0
    ):
        if reason := obstacle():
            raise LabError(reason)
        settings = {"path": str(path), "threads": machine.usable_cores, "context": context, "at_once": at_once}
        settings |= {"numa": len(machine.numa) > 1, "repack": repack, "proposed": proposed}
        self._name = path.name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # an interrupted cell doesn't end it
            preexec_fn=partial(end_with, os.getpid()),
        )
        self.instructions = str(self._line())

    def ask(self, *requests: tuple[Sequence[int], int, bool], place: int = -1) -> list[Timing]:
        """Answer requests at once, and return their timings.

        Parameters
        ----------
        *requests : tuple
            The prompt's tokens, the tokens to write (at least 1), and whether to keep what the cache has of the prompt.
        place : int
            Which of the `at_once` caches to use; -1 leaves that to llama.cpp.
        """
        if self._process.stdin is None or self._process.poll() is not None:
            raise LabError(f"llama.cpp with {self._name} has ended: create it again.")
        asked = [(list(map(int, tokens)), count, kept, place) for tokens, count, kept in requests]
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        return [
            Timing(
                of["prompt_n"],
                of["prompt_ms"] / 1000,
                of["predicted_n"] - 1,
                of["predicted_ms"] / 1000,
                of.get("draft_n", 0),
                of.get("draft_n_accepted", 0),
                of["text"],
            )
            for of in self._line()
        ]

    def first_token_s(self, tokens: Sequence[int], place: int = -1) -> float:
        """Return the time to first token, in s, of a prompt that is not cached."""
        return self.ask((tokens, 1, False), place=place)[0].read_s

    def token_s(self, tokens: Sequence[int], count: int, place: int = -1) -> float:
        """Return the time per written token, in s, after a prompt, which is read only if it isn't cached."""
        (timing,) = self.ask((tokens, count + 1, True), place=place)
        return timing.wrote_s / timing.wrote

    def close(self) -> None:
        """End llama.cpp, and free its memory."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _line(self) -> Any:
        """Return the next line from the child."""
        assert self._process.stdout
        try:
            if line := self._process.stdout.readline():
                return json.loads(line)
        except KeyboardInterrupt:  # a request can't be stopped, and its answer would be taken for the next one's
            self._process.kill()
            raise
        why = processes.describe_exit(self._process.wait())
        self._log.seek(0)
        log = self._log.read().decode(errors="replace").splitlines()
        errors = [line.partition(" E ")[2] for line in log if " E " in line] or log[-1:] or ["no message"]
        raise LabError(f"llama.cpp with {self._name} ended ({why}): {errors[0][:300]}")


def sizes_of(path: Path) -> tuple[PublishedModel, float]:
    """Return the sizes of a dense model in a GGUF file, and its bytes per weight.

    Raises
    ------
    LabError
        If the file is not a GGUF file of a dense model.
    """
    import gguf

    try:
        file = gguf.GGUFReader(path)
        name = file.fields["general.architecture"].contents()

        def number(key: str) -> int:
            return int(file.fields[f"{name}.{key}"].contents())

        symbols = len(file.fields["tokenizer.ggml.tokens"].data)
        heads, width = number("attention.head_count"), number("embedding_length")
        head = number("attention.key_length") if f"{name}.attention.key_length" in file.fields else width // heads
        keys, inner, layers = number("attention.head_count_kv"), number("feed_forward_length"), number("block_count")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path.name} is not the GGUF file of a dense model: {error}.") from error
    tied = "output.weight" not in {tensor.name for tensor in file.tensors}
    sizes = PublishedModel(layers, width, heads, keys, head, inner, symbols, tied)
    return sizes, sum(int(tensor.n_bytes) for tensor in file.tensors) / sizes.weights


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a text that a model of `write_model` wrote."""
    return [int(token) for token in text.strip("<>").split("><") if token]


def write_model(
    path: Path,
    sizes: PublishedModel,
    form: str,
    layers: int = 0,
    symbols: int = 0,
    text: Sequence[int] = (),
) -> Path:
    """Write a GGUF file with random weights, unless it exists, and return its path.

    Matrices of one shape share their values: time doesn't depend on them.

    Parameters
    ----------
    path : Path
        The file.
    sizes : PublishedModel
        The sizes of a dense Qwen3 model.
    form : str
        The format of all matrices: Q4_0, Q8_0 or F16.
    layers, symbols : int
        The numbers of blocks and symbols, if they differ from the model's; 0 keeps the model's.
    text : sequence of int
        Different tokens, which this model writes one after the other: blocks add nothing, so that a token's embedding
        determines the next token. Its output matrix is not shared with the embedding.
    """
    import gguf

    if path.exists():
        return path
    layers, symbols = layers or sizes.layers, symbols or sizes.symbols
    width, head = sizes.width, sizes.head_size
    queries, keys = sizes.heads * head, sizes.kv_heads * head
    kind = gguf.GGMLQuantizationType[form]
    file = gguf.GGUFWriter(path.with_suffix(".part"), "qwen3")
    file.add_file_type(gguf.LlamaFileType[f"MOSTLY_{form}"])
    file.add_context_length(32_768)
    file.add_block_count(layers)
    file.add_embedding_length(width)
    file.add_feed_forward_length(sizes.inner)
    file.add_head_count(sizes.heads)
    file.add_head_count_kv(sizes.kv_heads)
    file.add_key_length(head)
    file.add_value_length(head)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_rope_freq_base(1e6)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("qwen2")
    file.add_token_list([f"<{token}>" for token in range(symbols)])
    file.add_token_types([gguf.TokenType.NORMAL] * symbols)
    file.add_token_merges(["< 1"])
    file.add_eos_token_id(0)
    rng, seen = np.random.default_rng(0), {}

    def add(name: str, rows: int, columns: int, factor: float = 1) -> None:
        if (rows, columns, factor) not in seen:
            weights = rng.standard_normal((rows, columns), np.float32) * np.float32(factor * columns**-0.5)
            seen[rows, columns, factor] = gguf.quantize(weights, kind)
        file.add_tensor(f"{name}.weight", seen[rows, columns, factor], raw_dtype=kind)

    def add_ones(*names_and_size: Any) -> None:
        *names, size = names_and_size
        for name in names:
            file.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    add("token_embd", symbols, width)
    add_ones("output_norm", width)
    if len(text) or not sizes.tied:
        following = np.arange(symbols)
        following[list(text[1:])] = list(text[:-1])  # the row of a token has the embedding of the one before
        file.add_tensor("output.weight", seen[symbols, width, 1][following], raw_dtype=kind)
    quiet = 0 if len(text) else 1
    for block in (f"blk.{layer}" for layer in range(layers)):
        add_ones(f"{block}.attn_norm", f"{block}.ffn_norm", width)
        add_ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", head)
        add(f"{block}.attn_q", queries, width)
        add(f"{block}.attn_k", keys, width)
        add(f"{block}.attn_v", keys, width)
        add(f"{block}.attn_output", width, queries, quiet)
        add(f"{block}.ffn_gate", sizes.inner, width)
        add(f"{block}.ffn_up", sizes.inner, width)
        add(f"{block}.ffn_down", width, sizes.inner, quiet)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path.with_suffix(".part").rename(path)
