"""What one writes first: FastAPI, a torch model, an image per request, no batches. `bare_server.py MODEL_DIR PORT`.

Needs fastapi, python-multipart and uvicorn beside torch, torchvision, safetensors and Pillow.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torchvision
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image
from torchvision.transforms import v2

folder, port = Path(sys.argv[1]), int(sys.argv[2])
card = json.loads((folder / "model.json").read_text())
classes, size = card["classes"], card["preprocessing"]["image_size"]
normalize = card["preprocessing"]["normalize"]
model = torchvision.models.get_model(card["architecture"]["name"], num_classes=len(classes))
model.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
model.eval()
transform = v2.Compose(
    [
        v2.PILToTensor(),
        v2.Resize(round(size / 0.875), antialias=True),
        v2.CenterCrop(size),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(normalize["mean"], normalize["std"]),
    ]
)
app = FastAPI()


@torch.inference_mode()
def scores(content: bytes) -> dict[str, Any]:
    image = transform(Image.open(io.BytesIO(content)).convert("RGB"))
    shares = model(image[None]).softmax(1)[0].tolist()
    return {
        "label": classes[max(range(len(shares)), key=shares.__getitem__)],
        "probabilities": dict(zip(classes, shares, strict=True)),
    }


@app.post("/score")
def score(image: UploadFile) -> dict[str, Any]:
    return scores(image.file.read())


@app.get("/v2/health/ready")
def ready() -> dict[str, Any]:
    return {"ready": True}


if __name__ == "__main__":
    uvicorn.run(app, port=port, log_level="warning")
