"""The text of the language models: Python's own documentation, as characters, which every Python has with it."""

from dataclasses import dataclass

import numpy as np

SYMBOLS = 128  # of ASCII, so that a token is a character's code
HELD_OUT_EVERY = 10  # of the topics, every tenth is held out


@dataclass(frozen=True, eq=False)
class Characters:
    """A text as tokens, each the ASCII code of a character.

    Attributes
    ----------
    train, held_out : (n,) uint8 in 0..127
        The tokens to train on, and those of other topics.
    source : str
        One sentence for the student: which text this is.
    """

    train: np.ndarray
    held_out: np.ndarray
    source: str


def load_characters() -> Characters:
    """Return the text behind Python's `help()`: the topics of its language reference, from this Python.

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
    """Return a text's tokens, (n,) uint8: a question mark for what is not in ASCII."""
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


def to_text(tokens: np.ndarray) -> str:
    """Return the text of tokens."""
    return bytes(np.asarray(tokens, np.uint8)).decode("ascii")
