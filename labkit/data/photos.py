"""Load the photo that the labs work on, as RGB."""

import math
import warnings
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from labkit.system import files
from labkit.system.errors import LabError

# Formats without EPS and the like, whose readers start a program (Ghostscript) on the file's contents.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 178_956_970  # above this, Pillow refuses the file as an attack (Image.DecompressionBombError)
FULL_SCALES = {"I": (255, 2**16 - 1, 2**31 - 1), "F": (1, 255, 2**16 - 1)}  # white, in pixels of 32 bits
_T = Image.Transpose
UPRIGHT = {  # by EXIF orientation
    2: _T.FLIP_LEFT_RIGHT,
    3: _T.ROTATE_180,
    4: _T.FLIP_TOP_BOTTOM,
    5: _T.TRANSPOSE,
    6: _T.ROTATE_270,
    7: _T.TRANSVERSE,
    8: _T.ROTATE_90,
}


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
    try:
        with warnings.catch_warnings(action="ignore"):  # about large sizes that it still reads, and odd metadata
            return _read(path, pixels)
    except Image.DecompressionBombError as error:
        raise LabError(
            f"{path} has more than {MAX_PIXELS // 10**6} million pixels: make a smaller copy of it."
        ) from error
    except UnidentifiedImageError as error:
        raise LabError(f"{path} is not a picture in a supported format: save it as JPEG or PNG.") from error
    except Exception as error:  # of any type: Pillow's decoders raise what a damaged file makes their code raise
        if isinstance(error, OSError) and error.errno:
            raise LabError(
                f"{path} can't be read ({error.strerror}): pass the path of a photo, relative to this notebook's "
                "folder, or None for the built-in one."
            ) from error
        raise LabError(f"{path} is damaged or incomplete ({error}): copy it again, or use another one.") from error


def _built_in() -> Image.Image:
    from sklearn.datasets import load_sample_image  # here, as it takes a second

    return Image.fromarray(load_sample_image("china.jpg"))


def _read(path: Path, pixels: int | None) -> np.ndarray:
    with files.open_regular(path, math.inf) as file, Image.open(file, formats=FORMATS) as image:
        if pixels is not None:
            image.draft(None, _size(image, pixels))  # a JPEG is then decoded smaller, in less memory
        image.load()
        return np.array(_resized(_rgb(_upright(image)), pixels))


def _upright(image: Image.Image) -> Image.Image:
    """Return an image the right way up."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # the other tags may be damaged, in a picture that is not
        return image
    method = UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if method is None else image.transpose(method)


def _rgb(image: Image.Image) -> Image.Image:
    """Return a Pillow image of any mode as RGB."""
    if image.mode in FULL_SCALES or image.mode.startswith("I;16"):
        return _in_8_bits(image).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Return greyscale of 16 or 32 bits in 8; NaN becomes black.

    With 32 bits, files don't say which number is white: it is the lowest full scale that no pixel exceeds.
    """
    grey = np.nan_to_num(np.asarray(image, np.float32), posinf=0, neginf=0)
    brightest = grey.max()
    white = next((top for top in FULL_SCALES.get(image.mode, (2**16 - 1,)) if brightest <= top), brightest)
    return Image.fromarray((grey.clip(0, white) * (255 / white) + 0.5).astype(np.uint8))


def _resized(image: Image.Image, pixels: int | None) -> Image.Image:
    if pixels is None:
        return image
    return image.resize(_size(image, pixels), Image.Resampling.LANCZOS, reducing_gap=3)


def _size(image: Image.Image, pixels: int) -> tuple[int, int]:
    """Return the width and height for about this many pixels, in the picture's proportions."""
    scale = math.sqrt(pixels / (image.width * image.height))
    return max(1, round(image.width * scale)), max(1, round(image.height * scale))
