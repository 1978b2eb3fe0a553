"""Rules of the keys of `serve`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from runner.base.user_paths import scheme_of
from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath
from runner.config.schema.calls.of_models import RegistryRules
from runner.config.schema.data import MOST_PIXELS

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-]+(:[0-9]{1,5})?|https?://\[[0-9a-fA-F:.]+\](:[0-9]{1,5})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ServeRules(ConfigSection):
    """How the server answers, and what it refuses."""

    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.\-]+$"), AS_TYPED] | None
    """Name of the model in addresses and answers; null: that of models:/NAME…, or of the run folder."""
    host: Annotated[str, Field(min_length=1), AS_TYPED]
    """Address to listen at; 127.0.0.1 is reached from this machine only, 0.0.0.0 from everywhere."""
    port: Annotated[int, Field(ge=0, le=65535)]
    """TCP port; 0 takes any that is free, which the log then names."""
    workers: Annotated[int, Field(ge=1, le=64)]
    """Processes with a copy of the model each. On CPUs they divide the cores among them; of several GPUs each takes
    one, in turns."""
    device: Literal["auto", "cpu", "cuda", "mps"]
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    """Number format, as of predict; auto takes bf16 where the hardware is fast at it."""
    format: Literal["torch", "onnx"]
    """torch: PyTorch computes; onnx: ONNX Runtime, on the CPU in fp32, after the model is exported and compared."""
    entry: Annotated[str, Field(min_length=1), AS_TYPED] | None
    """Name of an entry point of the group runner.serving, a class with init() and run(images), which answers in place
    of the model alone."""
    max_batch_size: Annotated[int, Field(ge=1, le=4096)]
    """Images that a worker scores at once, of one request or of several."""
    max_wait_milliseconds: Annotated[float, Field(ge=0, le=10_000)]
    """How long a free worker waits for more images, and only while other requests are being received."""
    queue_size: Annotated[int, Field(ge=1, le=1_000_000)]
    """Images that may wait for a worker; what exceeds it is answered with 429 and Retry-After."""
    batch_seconds: Annotated[float, Field(gt=0, le=3600)]
    """A worker that has not answered a batch in this time is ended and replaced."""
    watch_seconds: Annotated[float, Field(gt=0, le=86_400)]
    """How often the registry is asked which version models:/NAME@ALIAS is."""
    drain_seconds: Annotated[int, Field(ge=1, le=3600)]
    """After SIGTERM, how long requests that were accepted may take to be answered."""
    max_body_mib: Annotated[float, Field(gt=0, le=4096)]
    """MiB of the largest request."""
    max_images: Annotated[int, Field(ge=1, le=4096)]
    """Images in one request."""
    max_pixels: Annotated[int, Field(ge=1, le=MOST_PIXELS)]
    """Largest width × height of an image, read in its header before anything is decoded."""
    max_buffered_mib: Annotated[float, Field(gt=0)]
    """MiB of requests that are held in memory at once; what exceeds it is answered with 429."""
    max_connections: Annotated[int, Field(ge=1, le=100_000)]
    """Open connections; with more, the one that has been sending its request for longest is closed."""
    receive_seconds: Annotated[float, Field(gt=0, le=3600)]
    """How long a client may take to send a request, and to read what is sent to it."""
    token_file: Annotated[LocalPath, Field(min_length=1), AS_TYPED] | None
    """File with a token; requests must then have the header `Authorization: Bearer TOKEN`."""
    token_variable: Annotated[str, AS_TYPED] | None
    """Name of an environment variable with the token."""
    cors: tuple[Annotated[str, AS_TYPED], ...]
    """Origins, such as [https://shop.example], whose pages may ask from a browser."""
    drift_hours: Annotated[float, Field(gt=0, le=8760)]
    """Over how many of the last hours the drift of the images is measured, and how often a line of JSON says it."""
    drift_threshold: Annotated[float, Field(gt=0, le=100)]
    """Population stability index from which on a feature has drifted, as of the command drift."""
    drift_log: Annotated[LocalPath, Field(min_length=1), AS_TYPED] | None
    """File to which that line is appended; null: it goes to the log."""
    drift_degrades: bool
    """Answer 503 at /v2/health/ready while a feature has drifted, so that a load balancer sends requests elsewhere."""

    @field_validator("max_images")
    @classmethod
    def _a_request_fits_the_queue(cls, number: int, info: ValidationInfo) -> int:
        if number > info.data.get("queue_size", number):
            raise ValueError("must be at most serve.queue_size, or a request of so many images would never be taken")
        return number

    @field_validator("max_buffered_mib")
    @classmethod
    def _a_request_fits_the_memory(cls, size: float, info: ValidationInfo) -> float:
        if size < info.data.get("max_body_mib", size):
            raise ValueError("must be at least serve.max_body_mib, or the largest request would never be taken")
        return size

    @field_validator("token_variable")
    @classmethod
    def _one_place_of_the_token(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            # What was typed is not repeated: it may be the token itself.
            raise ValueError("must be the name of an environment variable, not the token")
        if name is not None and info.data.get("token_file") is not None:
            raise ValueError("give serve.token_file or serve.token_variable, not both")
        return name

    @field_validator("cors")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [origin for origin in origins if not _ORIGIN.fullmatch(origin)]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no origin; expected https://HOST or https://HOST:PORT, without a path")
        return origins

    @field_validator("format")
    @classmethod
    def _onnx_computes_in_fp32(cls, kind: str, info: ValidationInfo) -> str:
        if kind == "onnx" and info.data.get("precision") not in (None, "auto", "fp32"):
            raise ValueError("onnx computes in fp32; use serve.precision=fp32 or auto, or serve.format=torch")
        if kind == "onnx" and info.data.get("device") not in (None, "auto", "cpu"):
            raise ValueError("onnx computes on the CPU; use serve.device=cpu or auto, or serve.format=torch")
        return kind

    @field_validator("entry")
    @classmethod
    def _entry_computes_itself(cls, entry: str | None, info: ValidationInfo) -> str | None:
        if entry is not None and info.data.get("format") == "onnx":
            raise ValueError("an entry computes itself; use serve.format=torch")
        return entry


class ServeCall(ConfigSection):
    """`python -m runner serve model=DIR`."""

    model: Annotated[str, Field(min_length=1), AS_TYPED]
    """A run folder, its folder model/, or models:/NAME@ALIAS or models:/NAME/VERSION of a registry."""
    registry: RegistryRules
    """Where models are registered."""
    serve: ServeRules
    """How the server answers, and what it refuses."""

    @field_validator("model")
    @classmethod
    def _local(cls, model: str) -> str:
        if scheme_of(model) is not None:
            raise ValueError("is a remote address; expected a folder of this machine or models:/NAME@ALIAS")
        return model


class DriftCall(ConfigSection):
    """`python -m runner drift model=DIR input=FOLDER`."""

    run: Annotated[LocalPath | None, AS_TYPED]
    """The run folder whose packaged model says what its validation images looked like."""
    model: Annotated[LocalPath | None, AS_TYPED]
    """A packaged model alone: the folder model/ of a run, or a registered version, such as models:/birds@champion or
    models:/birds/2."""
    registry: RegistryRules
    """Where models are registered."""
    input: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The images to compare: a folder, an image, a .txt with a path on each line, or a .csv with a column `path`."""
    root: Annotated[LocalPath | None, AS_TYPED]
    """Folder at which the relative paths of a list start; null means the folder of the list."""
    threshold: Annotated[float, Field(gt=0, le=100)]
    """Population stability index from which on a feature has drifted, if its test agrees. By the usual rule a change
    below 0.1 is none, and one above 0.25 is large."""
    fail_on_drift: bool
    """End with the error DriftError, exit code 1, where a feature has drifted: for scripts."""
    format: Literal["table", "json"]
    """A table for people, or JSON for programs."""
    batch_size: Annotated[int, Field(ge=1)]
    """Images that are scored at once."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)]
    """Processes that load images; 0 loads in the scoring process, auto chooses."""
    device: Literal["auto", "cpu", "cuda", "mps"]
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    """Number format; auto takes bf16 where the hardware is fast at it, as training and evaluation do."""
