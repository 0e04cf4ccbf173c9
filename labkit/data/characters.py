"""Training text for the language models: Python's own documentation, bundled with it, as characters."""

from dataclasses import dataclass

import numpy as np

HELD_OUT_EVERY = 10  # every tenth topic is held out


@dataclass(frozen=True, eq=False)
class Characters:
    """A text as tokens, each the ASCII code of a character.

    Attributes
    ----------
    train, held_out : (n,) uint8 in 0..127
        The tokens to train on, and those of other topics.
    source : str
        One sentence for the student that names the text.
    """

    train: np.ndarray
    held_out: np.ndarray
    source: str


def load_characters() -> Characters:
    """Return the text of Python's `help()`: the language-reference topics of this Python.

    The text differs a little between versions of Python. Whole topics are held out, so that no sentence is in both
    parts.
    """
    from pydoc_data.topics import topics  # 0.7 MB, read where it is used

    tokens = [to_tokens(topics[name]) for name in sorted(topics)]
    held_out = np.concatenate(tokens[::HELD_OUT_EVERY])
    del tokens[::HELD_OUT_EVERY]
    train = np.concatenate(tokens)
    source = f"{len(train):,} characters to train on, {len(held_out):,} of other topics held out"
    return Characters(train, held_out, f"The text of Python's help(): {source}.")


def to_tokens(text: str) -> np.ndarray:
    """Return a text's tokens, (n,) uint8, with a question mark for each non-ASCII character."""
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


def to_text(tokens: np.ndarray) -> str:
    """Return the text of tokens."""
    return bytes(np.asarray(tokens, np.uint8)).decode("ascii")
