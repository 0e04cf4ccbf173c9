"""Tests of cropping, mirroring and normalising pictures."""

import numpy as np
from tfrecord_sets import example, jpeg, take, write_set

from labkit.data import tfrecords
from labkit.train import records


def test_with_an_area_of_1_pictures_are_only_mirrored_at_random(tmp_path):
    picture = np.zeros((32, 32, 3))
    picture[:, :16] = 200
    index = tfrecords.index(write_set(tmp_path, [example(jpeg(picture), 1)], files=1), "train")
    ((images, _),) = take(1, records.training(index, 32, 64, least_area=1.0))
    grey = np.rint(images * records.DEVIATION + records.MEAN)
    left, right = picture, picture[:, ::-1]
    mirrored = [np.abs(image - right).max() < 8 for image in grey]
    assert all(np.abs(image - (right if flip else left)).max() < 8 for image, flip in zip(grey, mirrored, strict=True))
    assert 16 < sum(mirrored) < 48


def test_crops_vary_within_the_requested_area(tmp_path):
    # A pixel's red is its row, its green the column: their spreads are the crop's height and width.
    rows, columns = np.mgrid[:200, :200]
    picture = np.stack([rows, columns, np.zeros_like(rows)], axis=-1)
    index = tfrecords.index(write_set(tmp_path, [example(jpeg(picture), 1)], files=1), "train")
    ((images, _),) = take(1, records.training(index, 50, 64, least_area=0.3))
    pixels = images * records.DEVIATION + records.MEAN
    height = np.ptp(pixels[..., 0], axis=(1, 2)) / 200
    width = np.ptp(pixels[..., 1], axis=(1, 2)) / 200
    area = height * width
    assert area.min() > 0.25
    assert area.max() > 0.75
    assert area.max() < 1.05
    assert area.std() > 0.1
    assert 0.7 < (width / height).min() < 0.9
    assert 1.1 < (width / height).max() < 1.43


def test_evaluation_uses_the_normalised_centre_crop(tmp_path):
    picture = np.zeros((64, 96, 3))
    picture[4:60, 20:76] = 10, 100, 200  # 7/8 of the shorter side, in the middle
    index = tfrecords.index(write_set(tmp_path, [example(jpeg(picture), 7)], files=1), "train")
    ((images, labels),) = records.evaluation(index, 56, 4)
    assert labels.numpy() == [7]
    pixels = images[0].numpy() * records.DEVIATION + records.MEAN
    np.testing.assert_allclose(pixels, np.broadcast_to((10.0, 100, 200), pixels.shape), atol=20)


def test_grey_pictures_get_three_channels(tmp_path):
    index = tfrecords.index(write_set(tmp_path, [example(jpeg(np.full((40, 40), 90)), 1)], files=1), "train")
    ((images, _),) = records.evaluation(index, 8, 1)
    np.testing.assert_allclose(images[0].numpy() * records.DEVIATION + records.MEAN, np.full((8, 8, 3), 90), atol=2)
