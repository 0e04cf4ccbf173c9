"""Sizes of published language models, from the configuration files that their makers publish with the weights."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedModel:
    """The sizes of a language model with RoPE, SwiGLU and grouped-query attention, dense or a mixture of experts.

    Attributes
    ----------
    layers, width, heads, kv_heads, head_size : int
        The number of blocks; the values per token between them; the query heads, the KV heads, the values per head.
    inner : int
        The width inside SwiGLU, of each expert in a mixture.
    symbols : int
        The vocabulary size.
    tied : bool
        Whether one matrix both embeds tokens and returns logits.
    experts, used : int
        The experts of a block, and the number that a token passes through; 1 and 1 in a dense model.
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

    def _per_block(self, experts: int) -> int:
        attention = self.width * self.head_size * 2 * (self.heads + self.kv_heads)
        router = self.width * self.experts if self.experts > 1 else 0
        return attention + experts * 3 * self.width * self.inner + router


# Compared in November 2026 with config.json at https://huggingface.co/Qwen; the mixture also with qwen3_30b_a3b.yaml at
# https://gitcode.com/Ascend/MindSpeed-RL. tests/models/test_published.py compares the weights with the stated totals.
MODELS = {
    "Qwen3-0.6B": PublishedModel(28, 1024, 16, 8, 128, 3072, 151_936, tied=True),
    "Qwen3-1.7B": PublishedModel(28, 2048, 16, 8, 128, 6144, 151_936, tied=True),
    "Qwen3-4B": PublishedModel(36, 2560, 32, 8, 128, 9728, 151_936, tied=True),
    "Qwen3-8B": PublishedModel(36, 4096, 32, 8, 128, 12_288, 151_936),
    "Qwen3-30B-A3B": PublishedModel(48, 2048, 32, 4, 128, 768, 151_936, experts=128, used=8),
}
