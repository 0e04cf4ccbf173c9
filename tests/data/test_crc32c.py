import google_crc32c
import numpy as np
import pytest

from labkit.data.crc32c import crc32c, numpy_crc32c


def test_it_is_that_of_the_rfc():
    assert crc32c(bytes(32)) == numpy_crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4


@pytest.mark.parametrize("size", [0, 1, 7, 8, 255, 256, 257, 511, 512, 513, 1000, 2**12, 99_999])
def test_numpy_computes_what_google_crc32c_does(size):
    data = np.random.default_rng(size).bytes(size)
    assert numpy_crc32c(data) == google_crc32c.value(data)
