"""Rules of the commands' own keys; one class per command, and what else each command accepts."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from runner.base.user_paths import refuse_address, scheme_of
from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath
from runner.config.schema.calls_models import (
    ModelsDownloadCall,
    ModelsListCall,
    ModelsPromoteCall,
    ModelsRegisterCall,
    ModelsShowCall,
    RegistryRules,
)
from runner.config.schema.calls_serve import ServeCall
from runner.config.schema.run import Notes, OneLine, TagName, TagValue


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


class _ListCall(ConfigSection):
    """A command that reads lists of images."""

    input: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The images to read; they are never changed."""
    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder to make; it appears only when it is complete, and must not exist or be empty."""
    root: Annotated[LocalPath | None, AS_TYPED]
    """Folder from which relative paths in a CSV list or COCO file start; null means the folder of that file."""
    path_column: Annotated[str, Field(min_length=1), AS_TYPED]
    """Column of a CSV list with the path of the image."""
    label_column: Annotated[str, Field(min_length=1), AS_TYPED]
    """Column of a CSV list with the name of the class."""
    delimiter: Annotated[str, AS_TYPED]
    """The character between the columns of a CSV list; \\t for a tab."""
    encoding: Annotated[str, AS_TYPED]
    """Encoding of a CSV list, and of file names in archives that do not say which; one of Python's names."""

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, delimiter: str) -> str:
        character = "\t" if delimiter == r"\t" else delimiter
        if len(character) != 1 or character in '"\r\n':
            raise ValueError(r"must be one character, such as ; or \t for a tab")
        return character

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str) -> str:
        try:
            "".encode(encoding)  # accepts text encodings only; codecs.lookup also knows hex and the like
        except LookupError:
            raise ValueError("no such encoding; usual ones are utf-8, cp1252, gbk, shift_jis") from None
        return encoding


class DatasetImportCall(_ListCall):
    """`python -m runner dataset import input=PATH output=DIR`."""

    input: Annotated[str, Field(min_length=1), AS_TYPED]
    """The images to read: a path, or the https:// address of a zip or tar archive to download."""
    format: Literal["auto", "folder", "zip", "tar", "csv", "coco"]
    """What the input is; auto looks at its content, then at its name. tar may be compressed by gzip, bzip2 or xz."""
    class_from: Literal["top", "parent"]
    """Which folder of a tree names the class: the topmost one below the root or split, or the one around the image."""
    split_column: Annotated[str | None, AS_TYPED]
    """Column of a CSV list with train, val or test; null: the list knows no splits."""
    multiple_labels: Literal["error", "largest", "first", "skip"]
    """A COCO image with annotations of several categories: refuse, take that of the largest area or of the first
    annotation, or leave the image out."""
    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=256)]
    """Processes that check whether images can be decoded; auto: one per core; 0: none beside this one."""
    max_expansion: Annotated[float, Field(ge=1)]
    """Largest ratio of an archive's unpacked to its packed size; images hardly shrink, decompression bombs do."""
    max_unpacked_gib: Annotated[float, Field(gt=0)]
    """GiB that an archive may hold in all."""
    sha256: Annotated[str | None, AS_TYPED]
    """SHA-256 of the input file, in hexadecimal; another file is refused. null: not checked; http:// requires it."""
    max_download_gib: Annotated[float, Field(gt=0)]
    """Largest download in GiB."""

    @field_validator("input")
    @classmethod
    def _path_or_archive(cls, text: str) -> str:
        if scheme_of(text) not in ("http", "https"):
            return refuse_address(text)
        try:
            parts = urlsplit(text.strip())
            is_address = bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, half an IPv6 address
            is_address = False
        if not is_address:
            raise ValueError("is no address; expected https://HOST/PATH")
        if parts.scheme == "http" and parts.username is not None:
            raise ValueError("would send the password unencrypted; type the https:// address")
        return text

    @field_validator("format")
    @classmethod
    def _archive_of_address(cls, kind: str, info: ValidationInfo) -> str:
        if kind not in ("auto", "zip", "tar") and scheme_of(info.data.get("input", "")):
            raise ValueError("at an address, only zip and tar archives are read; download it, and give the local path")
        return kind

    @field_validator("sha256")
    @classmethod
    def _digest(cls, digest: str | None, info: ValidationInfo) -> str | None:
        if digest is None and scheme_of(info.data.get("input", "")) == "http":
            raise ValueError(
                "over http:// others on the network can replace the file; type the https:// address, or the "
                "sha256=… that its publisher names"
            )
        if digest is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
            raise ValueError("must be 64 hexadecimal digits, such as sha256sum prints them")
        return digest and digest.lower()


class DatasetSplitCall(_ListCall):
    """`python -m runner dataset split input=DIR|LIST.csv output=DIR`."""

    fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of each class's images for training; what test_fraction leaves of the rest is for validation."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)]
    """Share of each class's images for a test split; 0: none."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Decides which images are drawn, as the seed of an experiment does for data.val_fraction."""
    mode: Literal["manifest", "copy", "hardlink", "symlink"]
    """manifest: lists only, images stay where they are; else also class folders with copies of or links to them."""
    group_column: Annotated[str | None, AS_TYPED]
    """Column of a CSV list, such as the patient; images of the same group stay in the same split."""

    @field_validator("test_fraction")
    @classmethod
    def _leaves_validation(cls, test_fraction: float, info: ValidationInfo) -> float:
        if test_fraction + info.data.get("fraction", 0) > 1 - 1e-9:
            raise ValueError(
                "fraction and test_fraction must leave something for validation: their sum must be below 1"
            )
        return test_fraction


class DatasetCheckCall(ConfigSection):
    """`python -m runner dataset check [overrides]`."""

    strict: bool
    """End with exit code 2 when something is found."""
    statistics: bool
    """Also compute mean and standard deviation of each channel over the training images, after data.eval_transforms,
    and print them as data.normalize."""
    output: Annotated[LocalPath | None, AS_TYPED]
    """Folder for check.json and quarantine.csv; null makes a new one under OUTPUT_DIR/checks."""


class DatasetShowCall(ConfigSection):
    """`python -m runner dataset show output=FILE.png [overrides]`."""

    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The PNG that is written; it must not exist yet."""
    num_images: Annotated[int, Field(ge=1, le=200)]
    """Images of the training split, taken from each class in turn; one per row."""
    num_samples: Annotated[int, Field(ge=1, le=50)]
    """Augmented samples of each, one per epoch."""
    epoch: Annotated[int, Field(ge=1)]
    """The first of these epochs, counted from 1 as in metrics.jsonl."""


class DoctorRules(ConfigSection):
    """What doctor measures."""

    measure: bool
    """Train a few steps on the real data, and keep nothing of them; false looks at the machine only."""
    seconds: Annotated[float, Field(gt=0, le=600)]
    """About how long each of the measurements takes: training, the device alone, the loader alone."""
    compile: bool
    """Also measure whether trainer.compile pays, which takes a minute or so."""


class DoctorCall(ConfigSection):
    """`python -m runner doctor`."""

    format: Literal["table", "json"]
    """A table for people, or JSON for scripts."""
    doctor: DoctorRules
    """What doctor measures."""


class InitRules(ConfigSection):
    """What the first experiment is made from."""

    data: Annotated[LocalPath | None, AS_TYPED]
    """A folder of class folders, or one with train/ and perhaps val/ and test/: the experiment is filled in from a look
    at them, which only reads; null: the experiment is on the digits."""
    measure: bool
    """Choose data.batch_size by a short training on these images with several sizes; false: do not train."""


class InitCall(ConfigSection):
    """`python -m runner init output=FOLDER`."""

    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder of the project; it may exist, its files of these names must not."""
    init: InitRules
    """What the first experiment is made from."""


class ValidateCall(ConfigSection):
    """`python -m runner validate`."""

    config_only: bool
    """Check the config alone, neither data nor model nor machine: for a machine without the data, as in CI."""


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


class ArchitecturesCall(ConfigSection):
    """`python -m runner architectures`."""

    pattern: Annotated[str, Field(min_length=1), AS_TYPED]
    """Only names like this, with * and ? as in a shell, such as 'convnext*'."""
    source: Literal["torchvision", "timm", "custom"] | None
    """Only those of this option of the group `model`; custom: those of installed packages."""
    limit: Annotated[int, Field(ge=1)]
    """Show at most this many: the parameters of each are counted, which takes up to a second."""
    format: Literal["table", "json"]
    """A table for people, or JSON for programs."""


class RunsFilter(ConfigSection):
    """Which runs under a folder are meant."""

    root: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """Folder that is searched for runs, with all folders in it."""
    status: Literal["running", "completed", "stopped", "failed", "pruned", "died", "damaged", "queued"] | None
    """Only runs of this status; died: it says running, but no process is left; damaged: run.json can't be read."""
    model: Annotated[str | None, AS_TYPED]
    """Only runs of this model; a pattern, such as resnet*."""
    data: str | None
    """Only runs on this data, such as digits, CIFAR10 or folder, or on this data.root; a pattern."""
    name: Annotated[str | None, AS_TYPED]
    """Only runs of this name; a pattern."""
    group: Annotated[str | None, AS_TYPED]
    """Only runs of this group; a pattern."""
    tags: dict[TagName, TagValue]
    """Only runs with these tags, tags.NAME=VALUE; a value is a pattern."""


class RunsListCall(RunsFilter):
    """`python -m runner runs list`."""

    sort: Annotated[str | None, AS_TYPED]
    """A column to sort by, the best first: start (null), took, a key of metrics.jsonl such as val_top1, or a key of the
    config such as optimizer.lr."""
    columns: tuple[str, ...]
    """Columns to show, such as [folder,name,optimizer.lr,val_top1]: folder, name, group, tags, notes, model, data,
    best, epoch, status, took, start, or such keys as for sort; empty chooses."""
    limit: Annotated[int, Field(ge=1)] | None
    """Show at most this many, the first."""
    format: Literal["table", "json", "csv"]
    """A table for people; JSON or CSV for programs."""


class RunsCompareCall(RunsFilter):
    """`python -m runner runs compare output=FILE.html`."""

    output: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The page to write, a new file."""
    runs: tuple[LocalPath, ...]
    """The run folders to draw, in place of those that the filters find."""
    sort: Annotated[str | None, AS_TYPED]
    """As of runs list."""
    limit: Annotated[int, Field(ge=1, le=50)]
    """Draw at most this many, the first."""


class RunsWatchCall(ConfigSection):
    """`python -m runner runs watch run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder, also on a disk that another machine writes."""
    every_seconds: Annotated[float, Field(gt=0, le=3600)]
    """How often the folder is looked at."""


class RunsDeleteCall(ConfigSection):
    """`python -m runner runs delete run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder, of a run that is completed or has no checkpoint to resume from."""


class RunsPruneCall(RunsFilter):
    """`python -m runner runs prune keep=N`."""

    keep: Annotated[int, Field(ge=0)]
    """How many checkpoints stay of each run, the newest; those that `best` and `last` name stay too, and the newest
    valid one of a run that is not completed. With 0, completed runs keep their package alone."""
    dry_run: bool
    """Only say what would be deleted."""


class RunsTagCall(ConfigSection):
    """`python -m runner runs tag run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder."""
    name: Annotated[OneLine | None, AS_TYPED]
    """A new name; null keeps the one it has."""
    group: Annotated[OneLine | None, AS_TYPED]
    """A new group; null keeps the one it has."""
    notes: Annotated[Notes | None, AS_TYPED]
    """New notes; null keeps those it has."""
    tags: dict[TagName, TagValue]
    """Tags to add or replace, each typed as NAME=VALUE; ~NAME removes one."""


class RunsDiffCall(ConfigSection):
    """`python -m runner runs diff a=DIR b=DIR`."""

    a: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """One run folder."""
    b: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The other run folder."""
    format: Literal["table", "json"]
    """Tables for people, or JSON for programs."""


class RunsRepeatCall(ConfigSection):
    """`python -m runner runs repeat run=DIR`."""

    run: Annotated[LocalPath, Field(min_length=1), AS_TYPED]
    """The run folder whose config a new run takes."""


# By command; the others take the config of an experiment and nothing else.
CALLS: dict[str, type[ConfigSection]] = {
    "resume": ResumeCall,
    "doctor": DoctorCall,
    "architectures": ArchitecturesCall,
    "init": InitCall,
    "validate": ValidateCall,
    "evaluate": EvaluateCall,
    "predict": PredictCall,
    "drift": DriftCall,
    "export": ExportCall,
    "report": ReportCall,
    "serve": ServeCall,
    "runs list": RunsListCall,
    "runs diff": RunsDiffCall,
    "runs tag": RunsTagCall,
    "runs compare": RunsCompareCall,
    "runs watch": RunsWatchCall,
    "runs delete": RunsDeleteCall,
    "runs prune": RunsPruneCall,
    "runs repeat": RunsRepeatCall,
    "models register": ModelsRegisterCall,
    "models list": ModelsListCall,
    "models show": ModelsShowCall,
    "models promote": ModelsPromoteCall,
    "models download": ModelsDownloadCall,
    "dataset check": DatasetCheckCall,
    "dataset import": DatasetImportCall,
    "dataset show": DatasetShowCall,
    "dataset split": DatasetSplitCall,
}
# What these commands do with other keys; the rest of the commands in CALLS apply them to the saved config of a run.
TAKES_EXPERIMENT = frozenset({"validate", "dataset check", "dataset show", "doctor"})
TAKES_NOTHING_ELSE = frozenset(
    {
        "init",
        "predict",
        "drift",
        "report",
        "serve",
        "architectures",
        "runs list",
        "runs diff",
        "runs tag",
        "runs compare",
        "runs watch",
        "runs delete",
        "runs prune",
        "models register",
        "models list",
        "models show",
        "models promote",
        "models download",
        "dataset import",
        "dataset split",
    }
)
# Groups and keys of the saved config that these commands may change; others are refused, as the model is trained.
LAID_OVER: dict[str, tuple[str, ...]] = {
    "evaluate": ("data", "trainer", "dist"),
    "export": ("data.root", "data.train", "data.val", "data.test"),
}
