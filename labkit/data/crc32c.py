"""CRC-32C, the checksum of TFRecords: by google-crc32c, or by numpy where that is not installed.

The OpenMP environment of the benchmark has numpy alone. There a record of 100 kB takes about a millisecond, some
hundred times as long as with the CPU's own instruction.
"""

import functools
import importlib
import importlib.util

import numpy as np

_google = importlib.import_module("google_crc32c") if importlib.util.find_spec("google_crc32c") else None
_LANE = 2**8  # bytes of each of the pieces that numpy goes through side by side


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of data (RFC 3720, appendix B.4)."""
    return _google.value(data) if _google else numpy_crc32c(data)


def numpy_crc32c(data: bytes) -> int:
    """Return the CRC-32C of data, computed by numpy."""
    if len(data) < _LANE:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = _BYTES[(crc ^ byte) & 255] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    # A CRC is linear. So pieces are computed from 0 each, and joined as if zeros had followed the first of two; zeros
    # before the data change nothing, and beginning with all ones is the same as turning the first 32 bits.
    lanes = 2 ** (len(data) // _LANE).bit_length()
    padded = np.zeros(lanes * _LANE, np.uint8)
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    padded[-len(data) :][:4] ^= 0xFF
    crcs = np.zeros(lanes, np.uint32)
    for column in padded.reshape(lanes, _LANE).T:
        crcs = _TABLE[(crcs ^ column) & 255] ^ crcs >> 8
    power = _LANE.bit_length() - 1
    while len(crcs) > 1:
        crcs = _look_up(_zeros(power), crcs[::2]) ^ crcs[1::2]
        power += 1
    return int(crcs[0]) ^ 0xFFFFFFFF


def _table() -> np.ndarray:
    """Return the CRC of each byte, (256,) uint32, of the reflected polynomial 0x82F63B78."""
    crcs = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = np.where(crcs & 1, crcs >> 1 ^ np.uint32(0x82F63B78), crcs >> 1)
    return crcs


_TABLE = _table()
_BYTES = _TABLE.tolist()  # for one at a time, Python's own integers are faster


@functools.cache
def _zeros(power: int) -> np.ndarray:
    """Return what 2**power zero bytes make of a CRC: (4, 256) uint32, for each value of each of its bytes."""
    if power:
        return _look_up(_zeros(power - 1), _zeros(power - 1))
    crcs = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32))[:, np.newaxis]
    return _TABLE[crcs & 255] ^ crcs >> 8


def _look_up(tables: np.ndarray, crcs: np.ndarray) -> np.ndarray:
    """Return what `_zeros` tables make of CRCs."""
    return np.bitwise_xor.reduce([tables[place][crcs >> np.uint32(8 * place) & 255] for place in range(4)])
