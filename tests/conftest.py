"""What many tests need: one thread, no GPU surprises, and a training that takes a second."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

# Two test processes share two cores; more threads each would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What the tests import and collect is searched for garbage again and again otherwise: a twelfth of their time.
gc.set_threshold(50_000, 20, 100)

ROOT = Path(__file__).parents[1]
TINY = (
    "data=synthetic",
    "data.num_classes=4",
    "data.num_train=40",
    "data.num_val=24",
    "data.image_size=32",
    "data.workers=0",
    "data.batch_size=8",
    "trainer.epochs=2",
    "trainer.precision=fp32",
    "trainer.device=cpu",
)
SMALL_NET = ("model=torchvision", "model.name=shufflenet_v2_x0_5", "optimizer.lr=0.001")
"""With BatchNorm; a checkpoint takes milliseconds, where that of the default ResNet-18 is of 90 MB.

At 32 pixels its last maps have one, so BatchNorm's statistics are those of as many numbers as a process has images in a
step. Of 8 they are good; of 4 the loss explodes at this rate too, and whether it passes infinity depends on the
processor: take a lower rate then, or 64 pixels.
"""
LARGEST_LOSS = 100
_LOSS = r'"\w+_loss": (-?(?:\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|Infinity|NaN))\b'  # as json writes it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device; this machine has none"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what came of the hostile inputs, whichever processes have tried them."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    counts = [
        json.loads(value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "hostile" and report.when == "call"
    ]
    if counts:
        from tests.hostile.client import as_table

        terminalreporter.section("hostile inputs")
        terminalreporter.write_line("\n".join(as_table(counts)))


@pytest.fixture(autouse=True)
def no_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the report takes longer than the tiny trainings themselves; tests about it ask with the mark `report`."""
    if request.node.get_closest_marker("report") is None:
        monkeypatch.setattr("runner.tools.report._explain", lambda *_: None)


@pytest.fixture(scope="session")
def known_folders() -> set[Path]:
    """Of temporary folders, those whose trainings were looked at."""
    return set()


@pytest.fixture(autouse=True)
def no_loss_explodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, known_folders: set[Path]
) -> Iterator[None]:
    """Whether an exploding loss passes infinity depends on the processor: a test that trains so passes on some only.

    Looks at each run that was written since the test before, also by other processes and by fixtures of many tests.
    """
    yield
    new = set(tmp_path_factory.getbasetemp().iterdir()) - known_folders
    known_folders |= new
    if request.node.get_closest_marker("any_loss"):
        return
    for file in (file for folder in new if not folder.is_symlink() for file in folder.rglob("metrics.jsonl")):
        found = exploded(file)
        assert not found, f"{file}: {', '.join(found)} above {LARGEST_LOSS}: lower optimizer.lr, or a larger batch"


def exploded(metrics_file: Path) -> list[str]:
    """Losses above the limit, as they stand in a run's metrics.jsonl, whatever else is there."""
    if not metrics_file.is_file() or metrics_file.stat().st_size > 1 << 20:  # none that a test has trained
        return []
    losses = re.finditer(_LOSS, metrics_file.read_text(encoding="utf-8", errors="replace"))
    return [loss[0] for loss in losses if not abs(float(loss[1])) <= LARGEST_LOSS]


class FullDisk:
    """A disk on which no file finds room, new or longer; what is there can be overwritten."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def fill(self) -> None:
        opened = Path.open

        def refuse(path: Path, mode: str = "r", *more: object, **options: object) -> IO[Any]:
            is_only_locked = path.suffix == ".lock" and path.exists()
            if set(mode) & set("xwa") and not is_only_locked:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return opened(path, mode, *more, **options)  # type: ignore[arg-type]

        self._patch.setattr(Path, "open", refuse)
        for handler in logging.getLogger("runner").handlers:
            if isinstance(handler, logging.FileHandler):
                with open("/dev/full", "wb") as full:  # noqa: PTH123 - not by what is patched
                    os.dup2(full.fileno(), handler.stream.fileno())

    def free(self) -> None:
        self._patch.undo()


@pytest.fixture
def full_disk() -> Iterator[FullDisk]:
    with pytest.MonkeyPatch.context() as patch:
        yield FullDisk(patch)


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., list[str]]:
    """Overrides of a training that takes about a second and writes below tmp_path.

    Of a small net, unless any key of `model` is given: then of a ResNet-18, which the default config has.
    """

    def overrides(*more: str) -> list[str]:
        net = () if any(item.startswith("model") for item in more) else SMALL_NET
        typed = {item.partition("=")[0]: item for item in (*TINY, *net, f"output_dir={tmp_path}/outputs", *more)}
        return list(typed.values())

    return overrides


AWKWARD_CLASSES = ("<script>", "=cmd()", "🐜 ant")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A completed run on image files of awkwardly named classes, with a test split; leave its folder as it is."""
    import numpy as np
    from PIL import Image

    import runner

    root = tmp_path_factory.mktemp("trained")
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 7), ("test", 3)):
        for label, name in enumerate(AWKWARD_CLASSES):
            (root / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 200, (36, 48, 3), dtype=np.uint8)
                pixels[..., label] += 55
                Image.fromarray(pixels).save(root / "photos" / split / name / f"{number}.png")
    overrides = [item for item in TINY if not item.startswith("data=") and "num_" not in item]
    small = (*SMALL_NET, "trainer.monitor=val_loss", "trainer.ema_decay=0.5")
    data = ("data=folder", f"data.root={root / 'photos'}", f"output_dir={root / 'outputs'}")
    return runner.fit(runner.load_config([*overrides, *small, *data])).run_dir


@pytest.fixture
def run_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m runner` as a user does, in a process of its own, from an empty folder."""

    def run(*argv: str, cwd: Path = tmp_path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "runner", *argv],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    return run


@pytest.fixture
def browser() -> Iterator[Any]:
    """Chromium, which logs what a page asks for; a test without it is skipped."""
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium and chromedriver; this machine lacks one of them")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    yield running
    running.quit()


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the runner logs in this process, from INFO on, each message once."""
    logged: list[str] = []

    class _Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record.getMessage())

    logger = logging.getLogger("runner")
    monkeypatch.setattr(logger, "handlers", [_Listener()])
    level = logger.level
    logger.setLevel(logging.INFO)  # not by monkeypatch: a logger remembers what its level has let through
    yield logged
    logger.setLevel(level)


@pytest.fixture
def write_image() -> Callable[..., Path]:
    """A function (path, seed) → path of an image of 24 × 20 random pixels, the same for the same seed."""
    import numpy as np
    from PIL import Image

    def write(path: Path, seed: int = 0, size: tuple[int, int] = (24, 20)) -> Path:
        pixels = np.random.default_rng(seed).integers(0, 256, size=(size[1], size[0], 3), dtype=np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return path

    return write
