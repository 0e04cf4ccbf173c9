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


@pytest.mark.slow
def test_a_bomb_is_refused(save):
    path = save(Image.new("1", (20_000, 10_000)), "p.png")
    with pytest.raises(LabError, match="more than 178 million pixels: make a smaller copy"):
        photos.load_photo(path)


def test_a_missing_photo_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabError, match=r"holiday.jpg does not exist: pass the path of a photo"):
        photos.load_photo("holiday.jpg")
    with pytest.raises(LabError):
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
