"""Load the photo that the labs work on, as RGB."""

import math
import struct
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from labkit.system import files
from labkit.system.errors import LabError

# Formats without EPS and the like, whose readers start a program (Ghostscript) on the file's contents.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 178_956_970  # above this, Pillow refuses the file as an attack (Image.DecompressionBombError)
_UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error)  # Pillow's errors for damaged files


def load_photo(path: str | Path | None = None, pixels: int | None = None) -> np.ndarray:
    """Return a photo as RGB, the right way up.

    Parameters
    ----------
    path : path, optional
        The photo: a file of one of `FORMATS`, such as JPEG, PNG, TIFF or WebP. By default the one that comes with
        scikit-learn, 640 × 427: a Chinese temple.
    pixels : int, optional
        Enlarge or shrink it to about this many pixels. By default it keeps its size.

    Returns
    -------
    numpy.ndarray
        (height, width, 3) uint8. Transparent parts are on white, greyscale has three equal channels, and the camera's
        EXIF orientation is applied.

    Raises
    ------
    LabError
        If the file is missing, damaged, too large or not a picture.
    """
    if pixels is not None and not 1 <= pixels <= MAX_PIXELS:
        raise LabError(f"pixels must be from 1 to {MAX_PIXELS:,}, not {pixels!r}.")
    if path is None:
        return np.array(_resized(_built_in(), pixels))
    path = Path(path)
    remedy = "pass the path of a photo, relative to this notebook's folder, or None for the built-in one"
    try:
        with warnings.catch_warnings(action="ignore"):  # about large sizes that it still reads, and odd metadata
            return _read(path, pixels)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LabError(f"{path} does not exist: {remedy}.") from error
    except Image.DecompressionBombError as error:
        raise LabError(
            f"{path} has more than {MAX_PIXELS // 10**6} million pixels: make a smaller copy of it."
        ) from error
    except Image.UnidentifiedImageError as error:
        raise LabError(f"{path} is not a picture in a supported format: save it as JPEG or PNG.") from error
    except _UNREADABLE as error:
        raise LabError(f"{path} is damaged or incomplete ({error}): copy it again, or use another one.") from error


def _built_in() -> Image.Image:
    from sklearn.datasets import load_sample_image  # here, as it takes a second

    return Image.fromarray(load_sample_image("china.jpg"))


def _read(path: Path, pixels: int | None) -> np.ndarray:
    with files.open_regular(path, math.inf) as file, Image.open(file, formats=FORMATS) as image:
        if pixels is not None:
            image.draft(None, _size(image, pixels))  # a JPEG is then decoded smaller, in less memory
        image.load()
        upright = ImageOps.exif_transpose(image)
        return np.array(_resized(_rgb(upright), pixels))


def _rgb(image: Image.Image) -> Image.Image:
    """Return a Pillow image of any mode as RGB."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _resized(image: Image.Image, pixels: int | None) -> Image.Image:
    if pixels is None:
        return image
    return image.resize(_size(image, pixels), Image.Resampling.LANCZOS, reducing_gap=3)


def _size(image: Image.Image, pixels: int) -> tuple[int, int]:
    """Return the width and height for about this many pixels, in the picture's proportions."""
    scale = math.sqrt(pixels / (image.width * image.height))
    return max(1, round(image.width * scale)), max(1, round(image.height * scale))
