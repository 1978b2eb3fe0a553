"""The formats: how each is written, and how each is run again from its file alone."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor

from runner.base.errors import ExportError
from runner.tools.export import Format
from runner.tools.export.wrapped import Wrapped

Runs = Callable[[Tensor], Tensor]
"""An exported model: a batch of inputs → float32 N × classes."""
METADATA_FILE = "runner.json"  # within the files of PyTorch's own formats
_OPSET = 20


def write(format_: Format, wrapped: Wrapped, metadata: Mapping[str, Any], file: Path) -> None:
    """Export a model, with any batch size, into one file.

    Raises:
        ExportError: when the exporter can't express the model in this format.
    """
    with _named(format_), warnings.catch_warnings(), torch.no_grad():
        # They speak of the exporters' insides and of TorchScript's future; whether the result is right is checked.
        warnings.simplefilter("ignore")
        match format_:
            case "onnx":
                _write_onnx(wrapped, metadata, file)
            case "torch_export":
                program = torch.export.export(wrapped.module, (wrapped.example,), dynamic_shapes=_dynamic_batch())
                torch.export.save(program, file, extra_files={METADATA_FILE: _json(metadata)})
            case "torchscript":
                traced = torch.jit.trace(wrapped.module, wrapped.example)  # type: ignore[no-untyped-call]
                torch.jit.save(traced, str(file), _extra_files={METADATA_FILE: _json(metadata)})
            case _:
                assert_never(format_)


def open_exported(format_: Format, file: Path) -> Runs:
    """Open an exported model from its file alone, as its users will.

    Raises:
        ExportError: when it can't be opened.
    """
    with _named(format_), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match format_:
            case "onnx":
                return _open_onnx(file)
            case "torch_export":
                module: Runs = torch.export.load(file).module()
                return module
            case "torchscript":
                script: Runs = torch.jit.load(str(file))  # type: ignore[no-untyped-call]
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


def _open_onnx(file: Path) -> Runs:
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
def _named(format_: Format) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # the exporters raise nearly everything, from AssertionError to errors of their own
        reason = str(error).strip().partition("\n")[0]
        raise ExportError(f"the model can't be exported as {format_}: {type(error).__name__}: {reason}") from error
