"""Writes each export format, and opens its file again to run it."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from runner.base.errors import ExportError
from runner.config.schema.transforms import Normalize, height_and_width
from runner.data.images.stored import InputFormat
from runner.data.images.transforms import Normalizer
from runner.run.package import Preprocessing
from runner.tools.export import Format

ExportedModel = Callable[[Tensor], Tensor]
"""An exported model: a batch of inputs → float32 N × classes."""
METADATA_FILE = "runner.json"  # within the files of PyTorch's own formats
_OPSET = 20
_TRACED_BATCH = 2  # torch.export would specialise on sizes 0 and 1


def write(format_: Format, wrapped: Wrapped, metadata: Mapping[str, Any], file: Path) -> None:
    """Export a model, with any batch size, into one file; that of Triton is ONNX.

    Raises:
        ExportError: the exporter can't express the model in this format.
    """
    with _exporter_errors(format_), warnings.catch_warnings(), torch.no_grad():
        # Warnings about internals of the exporters and the deprecation of TorchScript; the result is checked.
        warnings.simplefilter("ignore")
        match format_:
            case "onnx" | "triton":
                _write_onnx(wrapped, metadata, file)
            case "torch_export":
                program = torch.export.export(wrapped.module, (wrapped.example,), dynamic_shapes=_dynamic_batch())
                torch.export.save(program, file, extra_files={METADATA_FILE: _json(metadata)})
            case "torchscript":
                traced = torch.jit.trace(wrapped.module, wrapped.example)  # type: ignore[no-untyped-call]
                torch.jit.save(traced, str(file), _extra_files={METADATA_FILE: _json(metadata)})
            case _:
                assert_never(format_)


def open_exported(format_: Format, file: Path) -> ExportedModel:
    """Open an exported model from its file alone.

    Raises:
        ExportError: it can't be opened.
    """
    with _exporter_errors(format_), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match format_:
            case "onnx" | "triton":
                return _open_onnx(file)
            case "torch_export":
                module: ExportedModel = torch.export.load(file).module()
                return module
            case "torchscript":
                script: ExportedModel = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
                return script
            case _:
                assert_never(format_)


def _write_onnx(wrapped: Wrapped, metadata: Mapping[str, Any], file: Path) -> None:
    program = torch.onnx.export(
        wrapped.module,
        (wrapped.example,),
        dynamo=True,
        dynamic_shapes=_dynamic_batch(),
        external_data=False,
        opset_version=_OPSET,
        input_names=[wrapped.input["name"]],
        output_names=[wrapped.output["name"]],
        verbose=False,
    )
    assert program is not None, "with dynamo=True there is a program"
    texts = {key: value if isinstance(value, str) else _json(value) for key, value in metadata.items()}
    program.model.metadata_props.update(texts)
    program.save(file, external_data=False)


def _open_onnx(file: Path) -> ExportedModel:
    onnxruntime = importlib.import_module("onnxruntime")  # an extra
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    (name,) = [item.name for item in session.get_inputs()]

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: images.contiguous().numpy()})[0])

    return run


def _dynamic_batch() -> tuple[dict[int, torch.export.Dim]]:
    return ({0: torch.export.Dim("batch", min=1)},)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


@contextmanager
def _exporter_errors(format_: Format) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # the exporters raise AssertionError, KeyError and errors of their own
        reason = str(error).strip().partition("\n")[0]
        raise ExportError(f"the model can't be exported as {format_}: {type(error).__name__}: {reason}") from error


class WithPreprocessing(nn.Module):
    """Maps pixels to probabilities: N × height × width × channels → float32 N × classes, each row with the sum 1."""

    def __init__(self, module: nn.Module, normalize: Normalize) -> None:
        super().__init__()
        self.normalizer = Normalizer(normalize)
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        """Normalise, run the module, apply softmax."""
        logits: Tensor = self.module(self.normalizer(images.permute(0, 3, 1, 2)))
        return logits.softmax(dim=1)


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """A module to export, with a description of its input and output."""

    module: nn.Module
    """In eval mode, on the CPU, fp32."""
    example: Tensor
    """An input of the right shape and type."""
    input: dict[str, Any]
    """Name, dtype, shape and meaning of the input, for the metadata."""
    output: dict[str, Any]
    """The same of the output."""


def wrap(module: nn.Module, preprocessing: Preprocessing, *, include_preprocessing: bool) -> Wrapped:
    """Prepare a module for export.

    Resizing and cropping stay outside, since libraries resample differently and a batch has one image size anyway; the
    metadata describes them.

    Args:
        module: normalised float32 N × channels × height × width → logits N × classes.
        preprocessing: of the model.
        include_preprocessing: whether normalising and softmax become part of the model.
    """
    height, width = height_and_width(preprocessing.image_size)
    channels, form = preprocessing.channels, InputFormat.of(preprocessing)
    is_deep = form.bit_depth == 16
    if include_preprocessing:
        dtype = torch.float32 if is_deep else torch.uint8
        scaled = ", as value / 65535" if is_deep else ""
        return Wrapped(
            module=WithPreprocessing(module, preprocessing.normalize).eval(),
            example=torch.zeros(_TRACED_BATCH, height, width, channels, dtype=dtype),
            input={
                "name": "images",
                "dtype": str(dtype).removeprefix("torch."),
                "shape": ["batch", height, width, channels],
                "meaning": f"{form.meaning} pixels after the transforms under preprocessing{scaled}",
            },
            output={"name": "probabilities", "dtype": "float32", "shape": ["batch", "classes"]},
        )
    largest = 65535 if is_deep else 255
    return Wrapped(
        module=module.eval(),
        example=torch.zeros(_TRACED_BATCH, channels, height, width),
        input={
            "name": "images",
            "dtype": "float32",
            "shape": ["batch", channels, height, width],
            "meaning": f"{form.meaning} after the transforms under preprocessing, as (pixel / {largest} − mean) / std",
        },
        output={"name": "logits", "dtype": "float32", "shape": ["batch", "classes"]},
    )
