"""Synthetic images of ten classes, which ResNet learns in minutes, written in the layout of ImageNet's TFRecords.

The colours are random, so that only the shape shows the class, not any pixel. No class becomes another one when
mirrored or moderately cropped.
"""

import filecmp
import io
import math
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from labkit.system import files
from labkit.system.errors import LabError
from labkit.system.terminal import progress

_SUPERSAMPLING = 4  # images are drawn this much larger per side, for smooth edges
_JPEG_QUALITY = 90
_MAX_IMAGES = 10_000_000
_MIN_SIZE, _MAX_SIZE = 16, 1024  # pixels per side

_Points = list[tuple[float, float]]


def write(
    folder: Path,
    train: int = 2000,
    validation: int = 500,
    size: int = 64,
    shards: tuple[int, int] = (8, 4),
    seed: int = 0,
) -> bool:
    """Write a training and a validation set as TFRecords; the same arguments give the same bytes.

    The fields are those of tensorflow/models, research/inception, build_imagenet_data.py. Labels are 1 to 10,
    balanced where possible, and shuffled over the files.

    Parameters
    ----------
    folder : Path
        The folder to create, with all files in it or not at all.
    train, validation : int
        The numbers of images.
    size : int
        Their height and width, in pixels.
    shards : (int, int)
        The numbers of training and validation files.
    seed : int
        The seed of all random choices. A larger set begins with the images of a smaller one.

    Returns
    -------
    bool
        Whether it was written; False if the same set already exists.

    Raises
    ------
    LabError
        A number is out of range, the folder cannot be created, or it contains something else.
    """
    counts = {"train": train, "validation": validation}
    for (kind, count), minimum in zip(counts.items(), shards, strict=True):
        _check(f"{kind} images", count, minimum, _MAX_IMAGES)
    _check("size", size, _MIN_SIZE, _MAX_SIZE)
    _check("seed", seed, 0, 2**63 - 1)
    folder = Path(folder)
    names = {
        kind: [f"{kind}-{number:05}-of-{files:05}" for number in range(files)]
        for kind, files in zip(counts, shards, strict=True)
    }
    expected = sorted(name for files in names.values() for name in files)
    something_else = LabError(
        f"{folder} exists and does not contain exactly this set: name another folder, or remove it: "
        f"rm -r {shlex.quote(str(folder))}"
    )
    with files.writing(folder, "name another folder"):
        exists = folder.exists()
        if exists and not (folder.is_dir() and _listed(folder) in ([], expected)):
            raise something_else
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as parent:
            new_folder = Path(parent) / folder.name
            new_folder.mkdir()
            with progress(f"Drawing {train + validation:,} images …") as report:
                for number, (kind, count) in enumerate(counts.items()):
                    report(f"Drawing {count:,} {kind} images …")
                    _write(new_folder, names[kind], count, size, (seed, number))
            if not exists or not _listed(folder):
                new_folder.rename(folder)  # only now, when it is complete
                return True
            if len(filecmp.cmpfiles(new_folder, folder, expected, shallow=False)[0]) < len(expected):
                raise something_else
            return False


def _listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _check(name: str, number: int, minimum: int, maximum: int) -> None:
    if not isinstance(number, int) or not minimum <= number <= maximum:
        raise LabError(f"{name}: {number!r} is not possible; give an integer from {minimum:,} to {maximum:,}.")


def _write(folder: Path, names: list[str], count: int, size: int, seed: tuple[int, int]) -> None:
    """Write one set's files."""
    import tensorflow as tf  # here, as it takes seconds, and only this needs it

    kind = names[0].split("-")[0]
    for name, share in _shares(names, count, seed):
        try:
            with tf.io.TFRecordWriter(str(folder / name)) as writer:
                for number in share:
                    label = 1 + number % len(CLASSES)
                    rng = np.random.default_rng((*seed, number))
                    writer.write(_example(image(label, size, rng), label, _filename(kind, number)))
        except tf.errors.OpError as error:
            raise files.system_error(error) from error


def _shares(names: list[str], count: int, seed: tuple[int, int]) -> Iterator[tuple[str, list[int]]]:
    """Yield each file with the numbers of its images, in order."""
    order = np.random.default_rng(seed).permutation(count)
    for name, share in zip(names, np.array_split(order, len(names)), strict=True):
        yield name, share.tolist()


def _filename(kind: str, number: int) -> str:
    return f"{kind}_{number:08}.JPEG"


def _example(drawing: Image.Image, label: int, filename: str) -> bytes:
    """Return a record: a `tf.train.Example` with the fields of the standard layout."""
    from tensorflow.train import BytesList, Example, Feature, Features, Int64List

    buffer = io.BytesIO()
    drawing.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    numbers = {
        "image/height": drawing.height,
        "image/width": drawing.width,
        "image/channels": 3,
        "image/class/label": label,
    }
    texts = {
        "image/colorspace": b"RGB",
        "image/class/synset": b"",  # its number in WordNet, which these lack
        "image/class/text": CLASSES[label - 1].encode(),
        "image/format": b"JPEG",
        "image/filename": filename.encode(),
        "image/encoded": buffer.getvalue(),
    }
    features = {name: Feature(int64_list=Int64List(value=[number])) for name, number in numbers.items()}
    features |= {name: Feature(bytes_list=BytesList(value=[text])) for name, text in texts.items()}
    return Example(features=Features(feature=features)).SerializeToString(deterministic=True)


# --- Drawing ----------------------------------------------------------------------------------------------------------


def image(label: int, size: int, rng: np.random.Generator) -> Image.Image:
    """Draw an image of class `CLASSES[label - 1]`, size × size pixels, RGB."""
    mask = Image.new("L", (_SUPERSAMPLING * size,) * 2)
    _DRAW[CLASSES[label - 1]](ImageDraw.Draw(mask), _SUPERSAMPLING * size, rng)
    cover = np.asarray(mask.resize((size, size), Image.Resampling.BOX), dtype=np.float64)[..., np.newaxis] / 255
    back, front = _colours(rng)
    pixels = (1 - cover) * _shaded(back, size, rng) + cover * _shaded(front, size, rng)
    pixels += rng.normal(0, rng.uniform(4, 20), pixels.shape)
    return Image.fromarray(np.rint(pixels.clip(0, 255)).astype(np.uint8))


def _colours(rng: np.random.Generator) -> np.ndarray:
    """Return two colours that differ visibly: (2, 3) in 0..255."""
    while True:
        both = rng.uniform(0, 255, (2, 3))
        if np.abs(both[0] - both[1]).sum() > 200:
            return both


def _shaded(colour: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return a surface of about this colour, lighter on one side: (size, size, 3)."""
    angle, strength = rng.uniform(0, 2 * math.pi), rng.uniform(0, 40)
    across = np.linspace(-1, 1, size)
    return colour + strength * (math.cos(angle) * across[:, None] + math.sin(angle) * across)[..., np.newaxis]


def _position(side: int, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return the position of a shape and half its extent, so that it is inside the image: x, y, half."""
    half = side * rng.uniform(0.2, 0.38)
    x, y = rng.uniform(half, side - half, 2)
    return x, y, half


def _rotated(points: np.ndarray, side: int, rng: np.random.Generator) -> _Points:
    """Put a polygon, (n, 2) in the unit circle, somewhere in the image, rotated by any angle."""
    x, y, half = _position(side, rng)
    angle = rng.uniform(-math.pi, math.pi)
    cos, sin = math.cos(angle), math.sin(angle)
    return [tuple(point) for point in points @ np.array([[cos, sin], [-sin, cos]]) * half + (x, y)]


def _regular(corners: int, inner: float = 1.0) -> np.ndarray:
    """Return a polygon's corners on the unit circle; every second one at radius `inner`."""
    angles = 2 * math.pi * np.arange(corners) / corners
    radii = np.where(np.arange(corners) % 2, inner, 1.0)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def _disc(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    x, y, half = _position(side, rng)
    draw.ellipse((x - half, y - half, x + half, y + half), fill=255)


def _ring(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    x, y, half = _position(side, rng)
    draw.ellipse((x - half, y - half, x + half, y + half), outline=255, width=round(half * rng.uniform(0.25, 0.45)))


def _square(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    draw.polygon(_rotated(_regular(4), side, rng), fill=255)


def _triangle(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    draw.polygon(_rotated(_regular(3), side, rng), fill=255)


def _cross(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    arm = rng.uniform(0.22, 0.32)
    corners = np.array([(1, arm), (arm, arm), (arm, 1)])
    quarter = np.array([[0, 1], [-1, 0]])
    turns = [corners @ np.linalg.matrix_power(quarter, turn) for turn in range(4)]
    draw.polygon(_rotated(np.concatenate(turns), side, rng), fill=255)


def _star(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    draw.polygon(_rotated(_regular(10, inner=rng.uniform(0.35, 0.45)), side, rng), fill=255)


def _stripes(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator, upright: bool) -> None:
    period, first = _period(side, rng)
    for low in np.arange(first, side, period):
        high = low + period / 2
        draw.rectangle((low, 0, high, side) if upright else (0, low, side, high), fill=255)


def _chequers(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    (period, left), (_, top) = _period(side, rng), _period(side, rng)
    for row, y in enumerate(np.arange(top, side, period / 2)):
        for x in np.arange(left + row % 2 * period / 2, side, period):
            draw.rectangle((x, y, x + period / 2, y + period / 2), fill=255)


def _dots(draw: ImageDraw.ImageDraw, side: int, rng: np.random.Generator) -> None:
    (period, left), (_, top) = _period(side, rng), _period(side, rng)
    radius = period * rng.uniform(0.22, 0.32)
    for x in np.arange(left, side + period, period):
        for y in np.arange(top, side + period, period):
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)


def _period(side: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the period of a pattern, and where it begins, before the image's edge."""
    period = side * rng.uniform(0.2, 0.4)
    return period, -period * rng.uniform(0, 1)


_DRAW: dict[str, Callable[[ImageDraw.ImageDraw, int, np.random.Generator], None]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "star": _star,
    "horizontal stripes": lambda draw, side, rng: _stripes(draw, side, rng, upright=False),
    "vertical stripes": lambda draw, side, rng: _stripes(draw, side, rng, upright=True),
    "chequers": _chequers,
    "dots": _dots,
}
CLASSES = tuple(_DRAW)
