"""Reads state dicts from files without running code in them."""

from __future__ import annotations

import argparse
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from runner.base.errors import InvalidModelError
from runner.base.reasons import reason_of
from runner.base.untrusted import UntrustedFileError, open_regular, printable
from runner.config.schema.model import WEIGHTS_FILE_SUFFIXES

# torch.save does not compress its zip files; compressed content may expand a thousandfold.
_MOST_BYTES_OF_PICKLE = 64 << 20
_MOST_WRAPPERS = 8
_MOST_SHOWN = 80
# Keys under which training scripts keep the state dict in a checkpoint, searched in this order.
_WRAPPERS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True, kw_only=True)
class StateDict:
    """Tensors by name, and the versions of their modules (empty where the file has none)."""

    tensors: dict[str, Any]
    versions: dict[str, Any]


def with_versions(tensors: Mapping[str, Tensor], module: nn.Module) -> OrderedDict[str, Tensor]:
    """A state dict with the module versions of `module`, for tensors of a format without them, such as safetensors.

    For tensors that the same architecture saved with the same or a newer torch. Some modules (MNASNet) can't be loaded
    without a version.
    """
    state = OrderedDict(tensors)
    vars(state)["_metadata"] = vars(module.state_dict())["_metadata"]
    return state


def read_weights_file(path: Path, *, shapes_only: bool = False) -> StateDict:
    """Read a .safetensors, .pth or .pt file.

    Args:
        path: the file; `~` is expanded.
        shapes_only: read names and shapes only; the tensors are on the meta device then. Fast for safetensors and for
            the zip format of torch ≥ 1.6, whatever the size.

    Returns:
        The state dict, on the CPU, in the dtypes of the file; unwrapped from {"state_dict": …} or {"model": …}.

    Raises:
        InvalidModelError: with the path and the reason, for anything but a readable weights file. A pickle that needs
            more than tensors and plain values is refused, not run.
    """
    try:
        path = path.expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise InvalidModelError(f"model.weights = {str(path)!r}: {error}") from error
    _check_file(path)
    try:
        if path.suffix == ".safetensors":
            content: Any = _read_safetensors(path, shapes_only)
        else:
            content = _read_torch(path, shapes_only)
    except Exception as error:  # a damaged file can make the readers raise anything
        raise InvalidModelError(f"model.weights = {str(path)!r} can't be read: {_reason(error)}") from error
    content = _unwrapped(content)
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        held = f"the keys {', '.join(map(_shown, list(content)[:5]))}" if isinstance(content, Mapping) else "no mapping"
        raise InvalidModelError(
            f"model.weights = {str(path)!r} holds no state dict, but {held}; save model.state_dict() in it"
        )
    _check_tensors(content, path)
    tensors = {
        name: value.to("meta") if shapes_only and isinstance(value, Tensor) else value
        for name, value in content.items()
    }
    versions = getattr(content, "_metadata", None)
    return StateDict(tensors=tensors, versions=dict(versions) if isinstance(versions, Mapping) else {})


def _check_file(path: Path) -> None:
    """Check the name, the size and the first bytes."""
    shown = f"model.weights = {str(path)!r}"
    if path.suffix not in WEIGHTS_FILE_SUFFIXES:
        raise InvalidModelError(f"{shown}: a weights file ends in {', '.join(WEIGHTS_FILE_SUFFIXES)}")
    try:
        with open_regular(path) as file:
            start = file.read(512)
    except UntrustedFileError as error:
        raise InvalidModelError(f"{shown} can't be read: {error}") from error
    except FileNotFoundError as error:
        raise InvalidModelError(f"{shown}: there is no such file (looked in {path.absolute().parent})") from error
    except OSError as error:
        raise InvalidModelError(f"{shown} can't be read: {reason_of(error)}") from error
    if not start:
        raise InvalidModelError(f"{shown} is empty (0 bytes); copy or download it again")
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise InvalidModelError(f"{shown} is a web page, not weights; download the file itself")
    if text.startswith(b"version https://git-lfs"):
        raise InvalidModelError(f"{shown} is a Git LFS pointer, not weights; fetch the file with `git lfs pull`")
    if path.suffix != ".safetensors":
        _check_saved(path, start, shown)


def _check_saved(path: Path, start: bytes, shown: str) -> None:
    """torch.save writes a zip file (torch ≥ 1.6) or a pickle of protocol 2."""
    if not start.startswith((b"PK\x03\x04", b"\x80")):
        # The message does not show the content: somebody else's experiment may name any file of the user's.
        raise InvalidModelError(f"{shown} is no file that torch.save wrote: it is neither a zip file nor a pickle")
    if start.startswith(b"PK"):
        try:
            problem = _zip_problem(path)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise InvalidModelError(f"{shown} can't be read: {_reason(error)}") from error
        if problem is not None:
            raise InvalidModelError(f"{shown} is no file that torch.save wrote: {problem}")


def _zip_problem(path: Path) -> str | None:
    """Content that takes more memory than the file's size: compressed or overlapping parts, or a huge pickle."""
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        return "its parts are compressed"
    if sum(part.file_size for part in parts) > path.stat().st_size:
        return "its parts are larger than itself"
    if any(part.filename.endswith(".pkl") and part.file_size > _MOST_BYTES_OF_PICKLE for part in parts):
        return f"it describes its tensors with more than {_MOST_BYTES_OF_PICKLE:,} bytes"
    return None


def _check_tensors(content: Mapping[Any, Any], path: Path) -> None:
    """Raise InvalidModelError for a name that is no string, and for sparse, quantized, complex or nested tensors."""
    for name, value in content.items():
        if not isinstance(name, str):
            raise InvalidModelError(f"model.weights = {str(path)!r} names a tensor by {_shown(name)}, which is no text")
        if not isinstance(value, Tensor):
            continue
        is_plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_quantized
        if not is_plain or value.is_complex() or value.is_nested:
            kind = f"{str(value.layout).removeprefix('torch.')}, {str(value.dtype).removeprefix('torch.')}"
            raise InvalidModelError(
                f"model.weights = {str(path)!r}: {_shown(name)} is no plain tensor ({kind}); save model.state_dict() "
                "of a model in fp32, fp16 or bf16"
            )


def _shown(name: object) -> str:
    """A key of an untrusted file."""
    return printable(name)[:_MOST_SHOWN] if isinstance(name, str) else f"a {type(name).__name__}"


def _read_safetensors(path: Path, shapes_only: bool) -> dict[str, Tensor]:
    with safe_open(path, framework="pt", device="cpu") as file:
        # Tensors are views of the mapped file: converting them to the meta device reads nothing.
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return {name: tensor.to("meta") for name, tensor in tensors.items()} if shapes_only else tensors


def _read_torch(path: Path, shapes_only: bool) -> object:
    # torchvision's training reference and similar scripts save their argparse namespace, which is plain data.
    with torch.serialization.safe_globals([argparse.Namespace]):
        is_mapped = shapes_only and zipfile.is_zipfile(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)


def _unwrapped(content: object) -> object:
    for _ in range(_MOST_WRAPPERS):  # a mapping may contain itself
        if not isinstance(content, Mapping):
            break
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    return content


def _reason(error: Exception) -> str:
    """The useful part of a reader's message, without torch's advice on how to run the code in the file."""
    message = str(error)
    if beyond := re.search(r"GLOBAL (\S+)", message):
        return (
            f"beside tensors and plain values it holds {beyond[1]}, and code is never run from a weights file; "
            "load it where it came from and save model.state_dict() alone"
        )
    detail = re.search(r"WeightsUnpickler error:\s*(.+)", message)
    sentence = detail[1] if detail else message.partition("\n")[0].partition(". ")[0]
    return f"it is damaged or no weights file ({type(error).__name__}{': ' if sentence else ''}{sentence[:200]})"
