"""From stored images to what a batch is made of: decoded by as many threads as this process computes with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from runner.base.errors import InvalidDatasetError
from runner.data.images.stored import DecodedImage, StoredImage

# All but decoding stays in one thread, so that more would mostly wait for it.
_MOST_THREADS = 8
# So many files are in memory at once, and what is made of them.
_IMAGES_PER_THREAD = 8

Outcome = Tensor | str
"""A prepared image, or what is wrong with it: no error, whose frames would keep the other images in memory."""


class Preparation(Protocol):
    """What is done to an image, in two parts, of which the first may take place beside that of others."""

    def begin(self, stored: StoredImage) -> Callable[[], Tensor]:
        """Draw what decoding depends on.

        Returns:
            Decodes the image, to uint8 of shape (3, height, width): draws nothing, and may be called in any thread.
            Raises InvalidDatasetError if the image is damaged.
        """

    def finish(self, image: Tensor) -> Tensor:
        """Draw and do the rest: to uint8 of shape (3, height, width), the same size for all."""


class _Begun(NamedTuple):
    decode: Callable[[], Outcome]
    is_quick: bool
    """Whether there is nothing to decode."""
    generator_state: Tensor
    """Of torch's generator of the CPU, after what was drawn so far."""


def num_decoding_threads(num_threads: int) -> int:
    """How many threads decode in a process that computes with so many; in a loader process both is one."""
    return min(num_threads, _MOST_THREADS)


def prepared(images: Iterable[Callable[[], StoredImage]], preparation: Preparation) -> list[Outcome]:
    """Open and prepare images; what becomes of them does not depend on the number of threads.

    Only JPEGs are decoded side by side: others are decoded when they are opened.

    Args:
        images: each opens an image, and leaves torch's generator of the CPU as the preparation is to find it; called
            one by one, in this thread.
        preparation: what is done to each.
    """
    num_threads = num_decoding_threads(torch.get_num_threads())
    if num_threads == 1:
        return [_prepared_alone(image, preparation) for image in images]
    outcomes: list[Outcome] = []
    remaining = iter(images)
    with ThreadPoolExecutor(num_threads - 1, "decode") as helpers:  # starts them when they are asked for
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
            # Whoever is free takes the next: for Python that is one operation.
            for place in places:
                decoded[place] = _decoded(some[place])
        finally:
            # After an error nobody begins another.
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
