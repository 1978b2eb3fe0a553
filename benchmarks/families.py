"""Architectures of timm and torchvision from training to export: `python benchmarks/families.py [NAME …] [--small]`.

Each is trained 3 steps on random images, stopped after 2 of them and resumed, packaged, loaded and exported to ONNX, in
a process of its own. "resumed" compares all weights to the bit, "reloaded" the logits of `runner.load_model` with those
of the library's own builder. Outcomes, or the reason of a refusal, are recorded in benchmarks/results/families.json.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import side_by_side
import torch
from safetensors.torch import load_file
from torchvision import models

import runner
from runner.base.errors import RunnerError
from runner.base.reasons import first_line
from runner.cli.commands import export, resume

NUM_CLASSES = 4
# One or more of each of timm's families, the smallest; the size of the images where it is not 224.
ARCHITECTURES = {
    "beit_base_patch16_224": 224, "botnet26t_256": 256, "cait_xxs24_224": 224, "caformer_s18": 224,
    "coat_lite_tiny": 224, "coatnet_pico_rw_224": 224, "convit_tiny": 224, "convmixer_768_32": 64,
    "convnext_atto": 64, "convnextv2_atto": 64, "crossvit_tiny_240": 240, "cspresnet50": 64, "davit_tiny": 224,
    "deit_tiny_patch16_224": 224, "deit3_small_patch16_224": 224, "densenet121": 64, "dla46_c": 64, "dpn48b": 64,
    "edgenext_xx_small": 64, "efficientformer_l1": 224, "efficientformerv2_s0": 224, "efficientnet_b0": 64,
    "efficientvit_b0": 64, "ese_vovnet19b_slim": 64, "eva02_tiny_patch14_224": 224, "fastvit_t8": 256,
    "focalnet_tiny_srf": 224, "gcvit_xxtiny": 224, "ghostnet_050": 64, "gmlp_ti16_224": 224, "halonet26t": 256,
    "hgnetv2_b0": 64, "hrnet_w18_small": 64, "inception_next_tiny": 64, "lcnet_050": 64, "levit_128s": 224,
    "mambaout_femto": 224, "maxvit_rmlp_pico_rw_256": 256, "mixer_s32_224": 224, "mobilenetv3_small_050": 64,
    "mobilenetv4_conv_small_050": 64, "mobileone_s0": 64, "mobilevit_xxs": 64, "mvitv2_tiny": 224,
    "nf_regnet_b0": 64, "pit_ti_224": 224, "poolformer_s12": 64, "pvt_v2_b0": 224, "regnetx_002": 64,
    "regnety_002": 64, "repvgg_a0": 64, "repvit_m0_9": 64, "resmlp_12_224": 224, "resnet18d": 64, "resnest14d": 64,
    "res2net50_14w_8s": 64, "rexnet_100": 64, "seresnet18": 64, "skresnet18": 64, "starnet_s1": 64,
    "swin_tiny_patch4_window7_224": 224, "swinv2_tiny_window8_256": 256, "tiny_vit_5m_224": 224,
    "twins_svt_small": 224, "vit_tiny_patch16_224": 224, "vit_tiny_r_s16_p8_224": 224, "xcit_nano_12_p16_224": 224,
    "torchvision:resnet18": 64, "torchvision:densenet121": 64, "torchvision:mobilenet_v3_small": 64,
}  # fmt: skip
SMALL = ("mobilenetv3_small_050", "vit_tiny_patch16_224", "torchvision:resnet18")


def outcomes(name: str, size: int, folder: Path) -> dict[str, Any]:
    """What became of one architecture: true, or the reason why not, for each step."""
    source, _, own = name.rpartition(":")
    overrides = (
        f"model={source or 'timm'}",
        f"model.name={own}",
        *("data=synthetic", f"data.num_classes={NUM_CLASSES}", "data.num_train=12", "data.num_val=8"),
        *(f"data.image_size={size}", "data.batch_size=4", "data.workers=0", "trainer.epochs=1"),
        *("optimizer.lr=0.001", "schedule.warmup_epochs=0", "trainer.precision=fp32", "trainer.checkpoint_every=1"),
    )
    found: dict[str, Any] = {}

    def trained(place: str, *more: str) -> Path:
        return runner.fit(runner.load_config([*overrides, f"output_dir={folder / place}", *more])).run_dir

    def train() -> bool:
        found["run"] = trained("whole")
        return True

    def resumed() -> bool | str:
        if _resumes_the_same(trained, found["run"], "stopped"):
            return True
        # Some of torch's operations add in the order in which threads arrive, unless they are told not to.
        fixed = "trainer.deterministic=true"
        return _resumes_the_same(trained, trained("fixed", fixed), "fixed_stopped", fixed) and f"with {fixed}"

    def reloaded() -> bool:
        module = runner.load_model(found["run"]).module
        images = torch.rand(2, 3, size, size)
        with torch.inference_mode():
            return torch.equal(module(images), _reference(source, own, found["run"]).eval()(images))

    def exported() -> bool:
        return export.run([f"run={found['run']}", "format=onnx"]) == 0

    started = time.perf_counter()
    done: dict[str, Any] = {step.__name__: _tried(step) for step in (train, resumed, reloaded, exported)}
    return {"image_size": size, **done, "seconds": round(time.perf_counter() - started, 1)}


def _resumes_the_same(trained: Callable[..., Path], whole: Path, place: str, *more: str) -> bool:
    """Whether a run that is stopped after two steps and resumed has the weights of one that is not."""
    stopped = trained(place, "trainer.max_steps=2", *more)
    resume.run([f"run={stopped}", "trainer.max_steps=null"])
    return same(_last(whole), _last(stopped))


def _tried(step: Callable[[], bool | str]) -> bool | str:
    try:
        return step()
    except (RunnerError, KeyError) as error:
        return f"{type(error).__name__}: {first_line(error)}"


def _last(run: Path) -> dict[str, torch.Tensor]:
    checkpoints = run / "checkpoints"
    return load_file(checkpoints / (checkpoints / "last").read_text().strip() / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two state dicts are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _reference(source: str, name: str, run: Path) -> torch.nn.Module:
    """The packaged weights in a module of the library's own making."""
    if source:
        module = models.get_model(name, weights=None, num_classes=NUM_CLASSES)
    else:
        import timm  # noqa: PLC0415 - not needed for torchvision's

        module = timm.create_model(name, pretrained=False, num_classes=NUM_CLASSES)
    module.load_state_dict(load_file(run / "model" / "model.safetensors"))
    assert isinstance(module, torch.nn.Module)
    return module


def main() -> None:
    """Try all architectures and record what became of them."""
    parser = side_by_side.parser(__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", help="only this one, in this process")
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(outcomes(options.one, ARCHITECTURES[options.one], Path(folder))))
        return
    names = options.names or (SMALL if options.small else ARCHITECTURES)
    found = {}
    for name in names:
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(command, env=side_by_side.environment(), capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines() or [""]
        found[name] = json.loads(lines[-1]) if done.returncode == 0 else {"failed": _why(done)}
        print(name, found[name], flush=True)
    if not options.small:
        _record(found)


def _why(done: subprocess.CompletedProcess[str]) -> str:
    return f"crashed by signal {-done.returncode}" if done.returncode < 0 else done.stderr[-500:]


def _record(found: dict[str, Any]) -> None:
    """Record outcomes; of architectures that were recorded before, the newer ones."""
    file = side_by_side.RESULTS / "families.json"
    before = json.loads(file.read_text())["architectures"] if file.exists() else {}
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": side_by_side.machine(),
    }
    record |= {"timm": importlib.metadata.version("timm"), "architectures": before | found}
    side_by_side.RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
