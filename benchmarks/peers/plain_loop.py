"""The loop that one would write by hand: `python plain_loop.py DATA OUTPUT SIZE SCALE FLIP EPOCHS RATE SMOOTHING SEED`.

torchvision's ResNet-18 with AdamW and one cycle of the rate, in fp32, with torch's own loader. Writes a line of JSON
with `val_top1` after each epoch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

BATCH_SIZE = 16


def main() -> None:
    data, output, size, scale, flip, epochs, rate, smoothing, seed = sys.argv[1:]
    torch.manual_seed(int(seed))
    side, num_epochs = int(size), int(epochs)
    end = [transforms.ToTensor(), transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    crop = (
        transforms.RandomResizedCrop(side, (float(scale), 1)) if float(scale) < 1 else transforms.Resize((side, side))
    )
    seen = [crop, *([transforms.RandomHorizontalFlip()] if flip == "flip" else []), *end]
    whole = [transforms.Resize((side, side)), *end]
    train = datasets.ImageFolder(f"{data}/train", transforms.Compose(seen))
    val = datasets.ImageFolder(f"{data}/val", transforms.Compose(whole))
    loader = DataLoader(train, BATCH_SIZE, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    val_loader = DataLoader(val, BATCH_SIZE, num_workers=2, persistent_workers=True)
    model = models.resnet18(num_classes=len(train.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(rate), weight_decay=0.05)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, float(rate), epochs=num_epochs, steps_per_epoch=len(loader), pct_start=0.25
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=float(smoothing))
    for _ in range(num_epochs):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
            cycle.step()
        model.eval()
        with torch.no_grad():
            correct = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in val_loader)
        with Path(output, "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"val_top1": correct / len(val)}) + "\n")


if __name__ == "__main__":
    main()
