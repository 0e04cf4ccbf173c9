import contextlib
import io
import itertools
import os

import numpy as np
import pytest
from PIL import Image

from labkit.data import photos
from labkit.system.errors import LabError

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)
CORNERS = np.repeat(np.repeat(np.array([[RED, GREEN], [BLUE, WHITE]], np.uint8), 16, axis=0), 24, axis=1)  # 32 × 48
STORED = {  # the stored pixels, by EXIF orientation, of a picture that is CORNERS when upright
    1: CORNERS,
    2: CORNERS[:, ::-1],
    3: CORNERS[::-1, ::-1],
    4: CORNERS[::-1],
    5: CORNERS.transpose(1, 0, 2),
    6: np.rot90(CORNERS, 1),
    7: CORNERS[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90(CORNERS, -1),
}


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Save a picture in the test's working directory, and return its relative path."""
    monkeypatch.chdir(tmp_path)

    def save(image, name, **options):
        image.save(name, **options)
        return name

    return save


def same(photo, right, tolerance=0):
    assert photo.dtype == np.uint8
    assert photo.shape == right.shape
    assert np.abs(photo.astype(int) - right).max() <= tolerance


def test_the_built_in_photo_needs_no_file():
    assert photos.load_photo().shape == (427, 640, 3)


@pytest.mark.parametrize("pixels", [1_000, 50_000, 2_500_000])
def test_a_photo_is_resized_in_its_proportions(pixels):
    height, width, _ = photos.load_photo(pixels=pixels).shape
    assert height * width == pytest.approx(pixels, rel=0.05)
    assert width / height == pytest.approx(640 / 427, rel=0.05)


@pytest.mark.parametrize("name", ["p.png", "p.tiff", "p.bmp", "p.webp", "p.gif"])
def test_a_photo_keeps_its_size_and_colours(save, name):
    options = {"lossless": True} if name == "p.webp" else {}
    same(photos.load_photo(save(Image.fromarray(CORNERS), name, **options)), CORNERS)


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("name", ["p.jpg", "p.png"])
def test_exif_orientation_is_applied(save, orientation, name):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation]))
    options = {"quality": 95, "subsampling": 0} if name == "p.jpg" else {}
    photo = photos.load_photo(save(stored, name, exif=exif, **options))
    assert photo.shape == CORNERS.shape
    for row, column in [(8, 12), (8, 36), (24, 12), (24, 36)]:
        same(photo[row, column], CORNERS[row, column], tolerance=12)


def test_what_is_transparent_is_on_white(save):
    clear = np.dstack([CORNERS, np.zeros(CORNERS.shape[:2], np.uint8)])
    clear[:16, :, 3] = 255
    clear[16:, 24:, :] = (0, 0, 0, 128)
    photo = photos.load_photo(save(Image.fromarray(clear), "p.png"))
    same(photo[0, 0], np.array(RED))
    same(photo[20, 5], np.array(WHITE))
    same(photo[20, 40], np.array((127, 127, 127)), tolerance=1)


RAMP = np.linspace(0, 1, 32 * 48, dtype=np.float32).reshape(32, 48)


@pytest.mark.parametrize("white", [1.0, 255.0, 2**16 - 1.0, 1e6])
def test_greyscale_of_32_bit_floats_is_scaled(save, white):
    same(photos.load_photo(save(Image.fromarray(RAMP * np.float32(white)), "p.tiff")), grey_of(RAMP), tolerance=1)


@pytest.mark.parametrize("name", ["p.png", "p.tiff"])
def test_greyscale_of_16_bits_is_scaled(save, name):
    dark = RAMP / 300  # at most 218 of 65,535: a dark picture, and no bright one of 8 bits
    for grey in (RAMP, dark):
        stored = Image.fromarray((grey * (2**16 - 1)).astype(np.uint16))
        same(photos.load_photo(save(stored, name)), grey_of(grey), tolerance=1)


def test_greyscale_of_32_bit_integers_is_scaled(save):
    stored = Image.fromarray((RAMP * (2**31 - 129)).astype(np.int32))
    same(photos.load_photo(save(stored, "p.tiff")), grey_of(RAMP), tolerance=1)


def test_pixels_that_are_not_numbers_are_black(save):
    grey = RAMP.copy()
    grey[0], grey[1], grey[2] = np.nan, np.inf, -np.inf
    photo = photos.load_photo(save(Image.fromarray(grey), "p.tiff"))
    assert not photo[:3].any()
    same(photo[3:], grey_of(RAMP)[3:], tolerance=1)


EXIF_TAGS = (0x0112, 0x011A, 0x8769, 0x8825, 0x927C, 0x9286, 0x0100)  # of types that differ
MODES = ("1", "L", "P", "RGB", "RGBA", "CMYK", "I", "I;16", "F", "LA")


def saved_pictures():
    """Yield the bytes of pictures in all formats and modes, with EXIF and texts."""
    from PIL.PngImagePlugin import PngInfo

    exif = Image.Exif()
    for tag, value in zip(EXIF_TAGS, (6, 72.0, {1: "x"}, {2: (1.0, 2.0)}, b"maker", "text", (48, 32)), strict=True):
        exif[tag] = value
    text = PngInfo()
    text.add_text("title", "a photo", zip=True)
    text.add_itxt("XML:com.adobe.xmp", '<x xmlns:tiff="t" tiff:Orientation="6"/>')
    for mode, format_ in itertools.product(MODES, photos.FORMATS):
        stored = io.BytesIO()
        picture = Image.fromarray(CORNERS).convert("L" if mode == "I;16" else mode)
        options = {"pnginfo": text} if format_ == "PNG" else {}
        with contextlib.suppress(OSError, ValueError, KeyError):  # a format without this mode
            picture.convert(mode).save(stored, format_, exif=exif.tobytes(), **options)
            yield stored.getvalue()


@pytest.mark.weekly
@pytest.mark.timeout(1800)
def test_any_bytes_are_a_photo_or_reported(tmp_path):
    rng, path, seeds = np.random.default_rng(0), tmp_path / "p", list(saved_pictures())
    assert len(seeds) > 40
    readable = 0
    for number in range(10_000):
        content = bytearray(seeds[number % len(seeds)])
        for _ in range(rng.integers(1, 6)):  # most of the damage is to what comes before the pixels
            content[int(len(content) * rng.random() ** 4)] = rng.integers(256)
        path.write_bytes(content[: rng.integers(1, len(content) + 1)] if rng.random() < 0.1 else content)
        with contextlib.suppress(LabError):
            readable += photos.load_photo(path, pixels=100).dtype == np.uint8
    assert 1_000 < readable < 9_500


def grey_of(ramp):
    """Return the RGB picture of a ramp from 0 to 1."""
    return np.dstack([np.round(ramp * 255).astype(np.uint8)] * 3)


@pytest.mark.slow
def test_a_bomb_is_refused(save):
    path = save(Image.new("1", (20_000, 10_000)), "p.png")
    with pytest.raises(LabError, match="more than 178 million pixels: make a smaller copy"):
        photos.load_photo(path)


def test_a_missing_photo_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabError, match=r"holiday.jpg can't be read \(No such file or directory\): pass the path of"):
        photos.load_photo("holiday.jpg")
    with pytest.raises(LabError, match=r"can't be read \(Is a directory\): pass the path of a photo"):
        photos.load_photo(tmp_path)


@pytest.mark.parametrize("content", [b"", b"this is text\n", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_files_that_are_not_pictures_are_reported(tmp_path, content):
    path = tmp_path / "p.jpg"
    path.write_bytes(content)
    with pytest.raises(LabError, match=r"not a picture|damaged"):
        photos.load_photo(path)


@pytest.mark.parametrize("pixels", [0, -5, 10**12])
def test_an_impossible_size_is_reported(pixels):
    with pytest.raises(LabError, match="pixels must be from 1"):
        photos.load_photo(pixels=pixels)


def test_a_file_that_would_start_a_program_is_not_read(save, monkeypatch):
    name = save(Image.fromarray(CORNERS), "p.eps")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    with pytest.raises(LabError, match="is not a picture in a supported format"):
        photos.load_photo(name)


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path.name)]
)
def test_reading_a_special_file_does_not_block(tmp_path, make):
    make(tmp_path / "p.png")
    with pytest.raises(LabError, match=r"p\.png"):
        photos.load_photo(tmp_path / "p.png")
