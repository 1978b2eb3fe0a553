"""The shape of LitServe's examples for images, with its own batching: `litserve_server.py MODEL_DIR PORT BATCH_SIZE`.

Needs litserve beside torch, torchvision, safetensors and Pillow.
"""

import json
import sys
from pathlib import Path
from typing import Any

import litserve
import safetensors.torch
import torch
import torchvision
from fastapi import Request
from PIL import Image
from torchvision.transforms import v2


class ImageApi(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: Any) -> None:
        folder = Path(sys.argv[1])
        card = json.loads((folder / "model.json").read_text())
        self.classes, size = card["classes"], card["preprocessing"]["image_size"]
        normalize = card["preprocessing"]["normalize"]
        self.model = torchvision.models.get_model(card["architecture"]["name"], num_classes=len(self.classes))
        self.model.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
        self.model.eval().to(device)
        self.transform = v2.Compose(
            [
                v2.PILToTensor(),
                v2.Resize(round(size / 0.875), antialias=True),
                v2.CenterCrop(size),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(normalize["mean"], normalize["std"]),
            ]
        )

    def decode_request(self, request: Request) -> Any:
        return self.transform(Image.open(request["image"].file).convert("RGB"))

    def batch(self, inputs: Any) -> Any:
        return torch.stack(inputs)

    @torch.inference_mode()
    def predict(self, batch: Any) -> Any:
        return self.model(batch).softmax(1)

    def unbatch(self, output: Any) -> Any:
        return list(output)

    def encode_response(self, output: Any) -> Any:
        shares = output.tolist()
        best = max(range(len(shares)), key=shares.__getitem__)
        return {"label": self.classes[best], "probabilities": dict(zip(self.classes, shares, strict=True))}


if __name__ == "__main__":
    api = ImageApi(max_batch_size=int(sys.argv[3]), batch_timeout=0.005, api_path="/score")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, healthcheck_path="/v2/health/ready")
    server.run(port=int(sys.argv[2]), generate_client_file=False, log_level="warning")
