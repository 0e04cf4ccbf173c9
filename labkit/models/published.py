"""Sizes of published language models, from the configuration files that their makers publish with the weights."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedModel:
    """The sizes of a language model with RoPE, SwiGLU and grouped-query attention, dense or a mixture of experts.

    Attributes
    ----------
    layers, width, heads, kv_heads, head_size : int
        The number of blocks; the numbers per token between them; the query heads, the KV heads, the numbers per head.
    inner : int
        The width inside SwiGLU, of each expert in a mixture.
    symbols : int
        The vocabulary size.
    tied : bool
        Whether one matrix both embeds tokens and returns logits.
    experts, used : int
        The experts of a block, and the number that a token passes through; 1 and 1 in a dense model.
    window, every : int
        With sliding windows, only one block in `every` attends to the whole context, the others to `window` tokens.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    symbols: int
    tied: bool = False
    experts: int = 1
    used: int = 1
    window: int = 0
    every: int = 1

    @property
    def logit_weights(self) -> int:
        """The weights of the matmul that returns logits; the embedding has the same number."""
        return self.width * self.symbols

    @property
    def weights(self) -> int:
        """All weights, which have to fit into memory."""
        return self._per_block(self.experts) * self.layers + self.logit_weights * (1 if self.tied else 2)

    @property
    def active_weights(self) -> int:
        """The weights that a token is multiplied by: those of the blocks, with the experts used, and of the logits."""
        return self._per_block(self.used) * self.layers + self.logit_weights

    def cached(self, context: int) -> float:
        """Return the number of context tokens that a block attends to, averaged over the blocks."""
        whole = self.layers // self.every
        return (whole * context + (self.layers - whole) * min(context, self.window)) / self.layers

    def _per_block(self, experts: int) -> int:
        attention = self.width * self.head_size * 2 * (self.heads + self.kv_heads)
        router = self.width * self.experts if self.experts > 1 else 0
        return attention + experts * 3 * self.width * self.inner + router


# Compared with these sources in November 2026; tests/models/test_published.py compares the weights with the totals that
# the makers state. Qwen: config.json at https://huggingface.co/Qwen; the mixture also as qwen3_30b_a3b.yaml at
# https://gitcode.com/Ascend/MindSpeed-RL. Gemma: gemma/config.py at https://github.com/google/gemma_pytorch; the 4B's
# config.json pads the vocabulary. Llama: models/sku_list.py at https://github.com/meta-llama/llama-models; its `inner`
# is 8/3 · width · ffn_dim_multiplier, rounded up to a multiple of multiple_of.
MODELS = {
    "Qwen3-0.6B": PublishedModel(28, 1024, 16, 8, 128, 3072, 151_936, tied=True),
    "Gemma-3-1B": PublishedModel(26, 1152, 4, 1, 256, 6912, 262_144, tied=True, window=512, every=6),
    "Qwen3-4B": PublishedModel(36, 2560, 32, 8, 128, 9728, 151_936, tied=True),
    "Gemma-3-4B": PublishedModel(34, 2560, 8, 4, 256, 10_240, 262_208, tied=True, window=1024, every=6),
    "Llama-3.1-8B": PublishedModel(32, 4096, 32, 8, 128, 14_336, 128_256),
    "Qwen3-30B-A3B": PublishedModel(48, 2048, 32, 4, 128, 768, 151_936, experts=128, used=8),
    "Llama-3.3-70B": PublishedModel(80, 8192, 64, 8, 128, 28_672, 128_256),
}
