"""A data module over class folders, as a user of lightning-hydra-template would write it; for trainers.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import LightningDataModule  # type: ignore[import-not-found]
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


class FolderDataModule(LightningDataModule):  # type: ignore[misc]
    """Training and validation images below one folder."""

    def __init__(self, data_dir: str, batch_size: int, num_workers: int, pin_memory: bool, image_size: int) -> None:
        super().__init__()
        self._folder = Path(data_dir)
        self._image_size = image_size
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "persistent_workers": num_workers > 0,
        }

    def train_dataloader(self) -> DataLoader[Any]:
        crops = [transforms.RandomResizedCrop(self._image_size), transforms.RandomHorizontalFlip()]
        return DataLoader(ImageFolder(str(self._folder / "train"), self._then(crops)), shuffle=True, **self._options)

    def val_dataloader(self) -> DataLoader[Any]:
        crops = [transforms.Resize(round(self._image_size / 0.875)), transforms.CenterCrop(self._image_size)]
        return DataLoader(ImageFolder(str(self._folder / "val"), self._then(crops)), **self._options)

    def _then(self, crops: list[Any]) -> transforms.Compose:
        normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        return transforms.Compose([*crops, transforms.ToTensor(), normalize])
