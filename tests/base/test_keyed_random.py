from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.base.keyed_random import key, permutation, random_words


def test_a_key_is_the_documented_digest() -> None:
    packed = b"i\0\0\0\x01\x07" + b"s\0\0\0\x05order" + b"i\0\0\0\x02\x01\x00"
    assert key(7, "order", 256) == int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "big")


def test_keys_never_change() -> None:
    # Saved runs resume with them: a change here breaks "the very same weights".
    assert [key(1, "augment", 0, 0), key(1, "augment", 0, 1), key()] == [
        8353771329972388126,
        16554575797495871602,
        16476032584258269876,
    ]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 23), (12, 3)),
        (("a", "bc"), ("ab", "c")),
        (("ab",), ("a", "b")),
        (("1",), (1,)),
        ((0,), ()),
        ((-1,), (255,)),
        ((1, 2), (2, 1)),
        ((2**63,), (-(2**63),)),
        (("i\0\0\0\x01\x07",), (7,)),
    ],
)
def test_no_two_lists_of_parts_read_the_same(left: tuple[int | str, ...], right: tuple[int | str, ...]) -> None:
    assert key(*left) != key(*right)


def test_keys_are_spread_over_all_64_bits() -> None:
    keys = np.array([key(1, "augment", 3, sample) for sample in range(20_000)], dtype=np.uint64)
    assert len(np.unique(keys)) == len(keys)
    bits = (keys[:, np.newaxis] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    # Each bit is a fair coin: 20,000 tosses stay within 5 standard deviations (0.0177) of one half.
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.0177


@pytest.mark.parametrize("num_items", [0, 1, 2, 3, 64, 65, 1000])
def test_a_permutation_holds_each_number_once(num_items: int) -> None:
    order = permutation(num_items, 1, "order", 0)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(num_items))


def test_permutations_never_change() -> None:
    assert permutation(10, 1, "order", 0).tolist() == [3, 0, 7, 4, 9, 1, 5, 6, 2, 8]


def test_a_permutation_depends_on_every_part() -> None:
    orders = [permutation(100, *parts).tolist() for parts in ((1, "order", 0), (2, "order", 0), (1, "order", 1))]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


def test_permutations_are_even() -> None:
    # Where number 0 lands among 10 places, over 5,000 orders: 500 each, standard deviation 21.
    places = [int(np.flatnonzero(permutation(10, "even", trial) == 0)[0]) for trial in range(5_000)]
    counts = np.bincount(places, minlength=10)
    assert np.abs(counts - 500).max() < 5 * 21.2


def test_words_are_the_stream_of_their_key() -> None:
    assert random_words(5, 1, "pool").tolist() == random_words(9, 1, "pool").tolist()[:5]


def test_another_process_gets_the_same() -> None:
    code = "from runner.base.keyed_random import key, permutation; print(key(3, 'x'), permutation(5, 3, 'x').tolist())"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    ).stdout
    assert printed.strip() == f"{key(3, 'x')} {permutation(5, 3, 'x').tolist()}"
