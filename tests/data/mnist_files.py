"""A synthetic set in MNIST's layout, and a registry of it."""

import hashlib
import io
from pathlib import Path

import numpy as np

from labkit.data.digits import Digits

NPZ = "mnist.npz"
KEYS = ("x_train", "y_train", "x_test", "y_test")


def mnist_arrays(n_train=60, n_test=30) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "x_train": rng.integers(0, 256, (n_train, 28, 28), dtype=np.uint8),
        "y_train": (np.arange(n_train) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (n_test, 28, 28), dtype=np.uint8),
        "y_test": (np.arange(n_test) % 10).astype(np.uint8),
    }


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def register(path: Path, content: bytes, mirrors=()) -> Path:
    """Write a registry with the size and checksum of `content`."""
    digest = hashlib.sha256(content).hexdigest()
    lines = ["[mnist]", f'name = "{NPZ}"', f"size = {len(content)}", f'sha256 = "{digest}"']
    path.write_text("\n".join([*lines, f"mirrors = {list(mirrors)}"]))
    return path


def put(folder: Path, content: bytes) -> None:
    (folder / NPZ).write_bytes(content)


def fingerprint(digits: Digits) -> str:
    return hashlib.sha256(b"".join(getattr(digits, key).tobytes() for key in KEYS)).hexdigest()


DAMAGE = {
    "truncated": lambda content: content[: len(content) // 2],
    "altered": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "empty": lambda content: b"",
    "trailing": lambda content: content + b"\0",
    "a web page": lambda content: b"<html>Please log in</html>".ljust(len(content)),
}
