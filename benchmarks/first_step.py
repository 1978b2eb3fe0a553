"""The plain script that start_up.py compares with: `python benchmarks/first_step.py FOLDER` makes one step on it."""

import sys

import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

data = ImageFolder(sys.argv[1], transforms.Compose([transforms.Resize(32), transforms.ToTensor()]))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = torchvision.models.resnet18(num_classes=len(data.classes))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for images, labels in loader:
    torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    print("step 1", flush=True)
    break
