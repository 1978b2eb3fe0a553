"""Decodes and transforms the images of a batch, decoding with as many threads as this process computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from runner.base.errors import InvalidDatasetError
from runner.data.images.stored import DecodedImage, StoredImage

# Only decoding is parallel; more threads would mostly wait for the transforms, which run in one.
_MOST_THREADS = 8
# Limits the files and decoded images in memory.
_IMAGES_PER_THREAD = 8

Outcome = Tensor | str
"""A prepared image, or the message of its error: the frames of an exception would keep the other images in memory."""


class Preparation(Protocol):
    """Decodes and transforms an image, in two parts; the first can run in parallel for several images."""

    def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
        """Draw the random numbers that decoding depends on.

        Returns:
            A function that decodes the image to uint8 (of 16 bits float32 in [0, 1]) of shape (channels, height,
            width). It draws no random numbers, may be called in any thread, and raises InvalidDatasetError if the image
            is damaged.
        """

    def finish(self, image: Tensor) -> Tensor:
        """Apply the other transforms, drawing random numbers: the same type, of one shape for all."""


class _Begun(NamedTuple):
    decode: Callable[[], Outcome]
    is_quick: bool
    """Whether the image is decoded already."""
    generator_state: Tensor
    """State of torch's CPU generator after :meth:`Preparation.begin`."""


def num_decoding_threads(num_threads: int) -> int:
    """The number of decoding threads in a process with so many compute threads (in a loader process, one)."""
    return min(num_threads, _MOST_THREADS)


def prepare_images(images: Iterable[Callable[[], StoredImage]], preparation: Preparation) -> list[Outcome]:
    """Open and prepare images; the results do not depend on the number of threads.

    Only JPEGs are decoded in parallel: others are decoded when they are opened.

    Args:
        images: functions that open an image and seed torch's CPU generator for it; called one by one, in this thread.
        preparation: decodes and transforms each image.
    """
    num_threads = num_decoding_threads(torch.get_num_threads())
    if num_threads == 1:
        return [_prepared_alone(image, preparation) for image in images]
    outcomes: list[Outcome] = []
    remaining = iter(images)
    with ThreadPoolExecutor(num_threads - 1, "decode") as helpers:  # starts no thread before the first task
        while some := [_begun(image, preparation) for image in islice(remaining, num_threads * _IMAGES_PER_THREAD)]:
            num_helpers = 0 if all(one.is_quick for one in some) else num_threads - 1
            decoded = _each_decoded(some, helpers, num_helpers)
            outcomes += [_finished(one, image, preparation) for one, image in zip(some, decoded, strict=True)]
    return outcomes


def _prepared_alone(image: Callable[[], StoredImage], preparation: Preparation) -> Outcome:
    try:
        decode = preparation.begin(image())
        return preparation.finish(decode())
    except InvalidDatasetError as error:
        return str(error)


def _begun(image: Callable[[], StoredImage], preparation: Preparation) -> _Begun:
    try:
        stored = image()
    except InvalidDatasetError as error:
        reason = str(error)
        return _Begun(lambda: reason, True, torch.default_generator.get_state())
    decode = preparation.begin(stored)
    return _Begun(decode, isinstance(stored, DecodedImage), torch.default_generator.get_state())


def _each_decoded(some: Sequence[_Begun], helpers: ThreadPoolExecutor, num_helpers: int) -> list[Outcome]:
    decoded: dict[int, Outcome] = {}
    places = iter(range(len(some)))

    def take_turns() -> None:
        try:
            # Each free thread takes the next image; `next` of a range iterator is atomic in Python.
            for place in places:
                decoded[place] = _decoded(some[place])
        finally:
            # After an error no thread starts another image.
            for _ in places:
                pass

    helping = [helpers.submit(take_turns) for _ in range(num_helpers)]
    take_turns()
    for helper in helping:
        helper.result()
    return [decoded[place] for place in range(len(some))]


def _decoded(one: _Begun) -> Outcome:
    try:
        return one.decode()
    except InvalidDatasetError as error:
        return str(error)


def _finished(one: _Begun, decoded: Outcome, preparation: Preparation) -> Outcome:
    if isinstance(decoded, str):
        return decoded
    torch.default_generator.set_state(one.generator_state)
    return preparation.finish(decoded)
