import numpy as np
import pytest
import torch

from runner.base.errors import ExportError, InvalidDatasetError
from runner.data.images.stored import DecodedImage
from runner.tools.export.export import ValidationImages, compare


class Numbered:
    """Images that show their number; those of a set can't be read."""

    def __init__(self, count: int, unreadable: frozenset[int] = frozenset()) -> None:
        self.labels = np.zeros(count, dtype=np.int64)
        self.unreadable = unreadable

    def __len__(self) -> int:
        return len(self.labels)

    def open(self, image: int) -> DecodedImage:
        if image in self.unreadable:
            raise InvalidDatasetError(f"{image} can't be read")
        return DecodedImage(np.full((1, 1, 3), image, dtype=np.uint16).view(np.uint8)[:, :3])

    def describe(self, image: int) -> str:
        return str(image)


def same(images):
    return images


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (5, 5), (1000, 1000), (5000, 1000)])
def test_all_images_up_to_a_thousand_spread_over_the_split(count, expected):
    batches = list(ValidationImages(Numbered(count), same))
    assert [len(batch) for batch in batches][:2] == [1, 32][: len(batches)] or expected == 5
    assert sum(map(len, batches)) == expected
    first, last = batches[0][0], batches[-1][-1]
    assert (int(first[0, 0, 0]), int(last[0, 0, 0])) == (0, (count - 1) % 256)


def test_unreadable_images_are_counted_and_none_at_all_is_an_error():
    images = ValidationImages(Numbered(10, frozenset({0, 3})), same)
    assert sum(map(len, images)) == 8
    assert images.num_unreadable == 2
    with pytest.raises(InvalidDatasetError, match="0 can't be read"):
        list(ValidationImages(Numbered(3, frozenset({0, 1, 2})), same))


def test_the_comparison_counts_guesses_and_finds_the_largest_difference():
    expected = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    found = torch.tensor([[1.0, 2.5], [3.0, 0.0], [2.0, 1.0]])
    pairs = [(torch.zeros(2), expected[:2]), (torch.zeros(1), expected[2:])]
    answers = iter([found[:2], found[2:]])
    agreement = compare(lambda _: next(answers), pairs)
    assert (agreement.count, agreement.num_agreeing, agreement.largest_difference) == (3, 2, 2.0)
    assert agreement.largest_output == 3.0
    assert agreement.top1_agreement == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("found", "message"),
    [(torch.full((1, 2), float("nan")), "not finite"), (torch.zeros(1, 3), r"gives \(1, 3\), PyTorch \(1, 2\)")],
)
def test_outputs_that_can_not_be_compared_are_named(found, message):
    with pytest.raises(ExportError, match=message):
        compare(lambda _: found, [(torch.zeros(1), torch.zeros(1, 2))])
