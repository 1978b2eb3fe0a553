"""Random numbers as pure functions of a key: no generator state to save, restore or share between processes.

A caller makes a key of purpose and place, such as `key(seed, "augment", epoch, sample)`, and seeds a generator with it.
So any process can make any batch again, in any order.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import numpy.typing as npt


def key(*parts: int | str) -> int:
    """A 64-bit number that depends on the value, type and position of every part.

    BLAKE2b (RFC 7693, digest of 8 bytes) of the parts, each packed as a tag (`i` or `s`), the length in bytes
    (32 bits, big-endian) and the bytes (two's complement, or UTF-8), so that different lists pack differently.

    Returns:
        A whole number in [0, 2^64).
    """
    packed = b"".join(map(_pack, parts))
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "big")


def permutation(num_items: int, *parts: int | str) -> npt.NDArray[np.int64]:
    """A random permutation of 0 … num_items − 1, a function of the parts.

    Sorts the numbers by random keys. The keys are raw output of Philox (Salmon et al. 2011), whose stream NumPy
    guarantees for all versions, which it does not for `Generator.permutation` (NEP 19); and as each key ends in the
    number itself, no two are equal and every sorting algorithm gives the same order.

    Args:
        num_items: 0 … 2^32.
        parts: see :func:`key`.

    Returns:
        Shape (num_items,).
    """
    number_bits = np.uint64((1 << max(num_items - 1, 0).bit_length()) - 1)
    keys = random_words(num_items, *parts)
    keys &= ~number_bits
    keys |= np.arange(num_items, dtype=np.uint64)
    keys.sort()
    keys &= number_bits
    return keys.view(np.int64)


def random_words(num_words: int, *parts: int | str) -> npt.NDArray[np.uint64]:
    """Uniform 64-bit words, a function of the parts; shape (num_words,)."""
    words: npt.NDArray[np.uint64] = np.random.Philox(key=key(*parts)).random_raw(num_words)
    return words


def random_words_for(numbers: npt.NDArray[np.int64], *parts: int | str) -> npt.NDArray[np.uint64]:
    """A 64-bit word for each number, a function of the number and the parts, not of its position.

    Two rounds of SplitMix64's finaliser (Steele et al. 2014) of the number, keyed in between; shape of `numbers`.
    """
    return _mix(_mix(numbers.astype(np.uint64) + np.uint64(1)) ^ np.uint64(key(*parts)))


def digest_of_samples(first_position: int, ids: npt.NDArray[np.int64]) -> int:
    """A digest of which images are at which positions; digests of consecutive pieces add up to that of the whole.

    The sum, modulo 2^64, of a hash of each (position, id), by two rounds of SplitMix64's finaliser (Steele et al.
    2014).

    Args:
        first_position: position of the first image; the others follow one by one.
        ids: numbers of the images, shape (N,).

    Returns:
        A whole number in [0, 2^64).
    """
    positions = np.arange(first_position, first_position + len(ids), dtype=np.uint64)
    mixed = _mix(_mix(positions + np.uint64(1)) ^ ids.astype(np.uint64))
    return int(mixed.sum(dtype=np.uint64))


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _pack(part: int | str) -> bytes:
    if isinstance(part, str):
        tag, packed = b"s", part.encode("utf-8")
    else:
        tag, packed = b"i", part.to_bytes(part.bit_length() // 8 + 1, "big", signed=True)
    return tag + struct.pack(">I", len(packed)) + packed
