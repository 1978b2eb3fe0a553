"""Rules of the keys of commands on a trained model, and of `resume`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath
from runner.config.schema.calls.of_models import (
    RegistryRules,
)


class ResumeRules(ConfigSection):
    """Which changes a resumed run may have."""

    allow: tuple[str, ...]
    """Keys or groups, such as [optimizer.lr, data], that may change although they change the result; `data` also allows
    that the data set itself has changed."""


class ResumeCall(ConfigSection):
    """`python -m runner resume run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder, or sweep folder, to continue."""
    resume: ResumeRules
    """Which changes the run may have."""


class TrainedCall(ConfigSection):
    """A command on a trained model."""

    run: Annotated[LocalPath | None, AS_TYPED]
    """The run folder with the trained model."""
    model: Annotated[LocalPath | None, AS_TYPED]
    """A packaged model alone, in place of a run: its folder, or a registered version, such as models:/birds@champion or
    models:/birds/2."""
    registry: RegistryRules
    """Where models are registered."""
    checkpoint: Annotated[str, Field(min_length=1), AS_TYPED]
    """Which checkpoint: best, last, or its name, such as 0004-00000360."""
    weights: Literal["auto", "raw", "ema"]
    """Of a checkpoint that has both (trainer.ema_decay): raw, as the optimizer left them, or ema, their moving average.
    auto: of best the better ones, of other checkpoints the average."""


class EvaluateCall(TrainedCall):
    """`python -m runner evaluate run=DIR`."""

    split: Literal["val", "test", "train"]
    """Which split of the data."""
    output: Annotated[LocalPath | None, AS_TYPED]
    """Folder for the results; null means RUN/evaluation, and for other weights or images a folder in it. A package
    alone needs one."""


class PredictCall(ConfigSection):
    """`python -m runner predict run=DIR input=FOLDER output=FILE.csv`."""

    run: Annotated[LocalPath | None, AS_TYPED]
    """The run folder whose packaged model scores."""
    model: Annotated[LocalPath | None, AS_TYPED]
    """A packaged model alone: the folder model/ of a run, or a registered version, such as models:/birds@champion or
    models:/birds/2."""
    registry: RegistryRules
    """Where models are registered."""
    input: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """A folder (with all folders in it), an image, a .txt with a path on each line, or a .csv with a column `path`."""
    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The file to write: .csv, .jsonl or .parquet."""
    root: Annotated[LocalPath | None, AS_TYPED]
    """Folder at which the relative paths of a list start; null means the folder of the list."""
    batch_size: Annotated[int, Field(ge=1)]
    """Images that are scored at once."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)]
    """Processes that load images; 0 loads in the scoring process, auto chooses."""
    device: Literal["auto", "cpu", "cuda", "mps"]
    """Where to compute; auto takes CUDA, then MPS, then the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    """Number format; auto takes bf16 where the hardware is fast at it, as training and evaluation do."""
    resume: bool
    """Continue the unfinished OUTPUT.partial of an earlier call with the same model and input."""


class ExportCall(TrainedCall):
    """`python -m runner export run=DIR`."""

    format: Literal["onnx", "torch_export", "torchscript", "triton"]
    """ONNX; torch.export's .pt2; TorchScript, which PyTorch has deprecated; or triton: the ONNX file in a model folder,
    with its configuration and labels, for the model repository of a Triton inference server."""
    output: Annotated[LocalPath | None, AS_TYPED]
    """The file to write, which must not exist; null means RUN/export/model.onnx, model.pt2, model.pt, or of triton
    the folder RUN/export/model. A package alone needs one."""
    include_preprocessing: bool
    """True: images N × height × width × channels in, already resized and cropped, uint8 or with 16 bits float32 in
    [0, 1], and probabilities out. False: normalised float32 images N × channels × height × width in, logits out."""
    min_agreement: Annotated[float, Field(ge=0, le=1)]
    """Smallest share of validation images whose first guess must be PyTorch's; below it no file is kept."""


class ReportCall(ConfigSection):
    """`python -m runner report run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder or sweep folder that is explained."""
    output: Annotated[LocalPath | None, AS_TYPED]
    """The HTML file to write, which must not exist; null means RUN/report.html, which is replaced."""
