from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runner.base.errors import InvalidDatasetError, OutputError
from runner.data.sources import digits as digits_module
from runner.data.sources.digits import ensure_digits
from runner.data.sources.index import scan_class_folders


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "cache" / "digits-v1"
    ensure_digits(str(folder))
    return folder


def test_all_scans_are_there_in_equal_shares(root: Path) -> None:
    train, val = (scan_class_folders(str(root / split), key=split) for split in ("train", "val"))
    assert train.classes == val.classes == tuple("0123456789")
    assert len(train) + len(val) == 1797
    # Of n images of a class, round(n / 5) are for validation.
    all_counts = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert np.bincount(val.labels).tolist() == np.rint(all_counts / 5).astype(int).tolist()
    assert (np.bincount(train.labels) + np.bincount(val.labels)).tolist() == all_counts.tolist()
    assert train.left_out == val.left_out == ()


def test_the_pixels_are_those_of_scikit_learn(root: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    files = sorted(root.glob("*/*/*.png"))
    assert len(files) == 1797
    for file in files[::50]:
        number = int(file.stem)
        assert file.parent.name == str(digits.target[number])
        with Image.open(file) as image:
            assert (image.mode, image.size) == ("L", (8, 8))
            assert (np.array(image) == np.rint(digits.images[number] * 255 / 16)).all()


def test_other_users_may_read_the_digits(root: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for folder in (root, root / "train", root / "train/0"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask


def test_no_temporary_files_are_left(root: Path) -> None:
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_existing_digits_are_not_written_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits_module, "_write_digits", lambda folder: pytest.fail("written again"))
    ensure_digits(str(root))


def test_an_empty_folder_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits_module, "_write_digits", write_little)
    ensure_digits(str(tmp_path))
    assert (tmp_path / "train/0").is_dir()


def write_little(folder: Path) -> None:
    (folder / "train/0").mkdir(parents=True)


def test_the_loser_of_a_race_takes_what_the_winner_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "digits"

    def write_second(folder: Path) -> None:
        write_little(folder)
        write_little(target)
        (target / "winner").touch()

    monkeypatch.setattr(digits_module, "_write_digits", write_second)
    ensure_digits(str(target))
    assert (target / "winner").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["digits"]


def test_a_first_run_that_is_killed_leaves_no_half_set(tmp_path: Path) -> None:
    target = tmp_path / "digits"
    code = (
        "import os, signal, sys; from PIL import Image; from runner.data.sources.digits import ensure_digits\n"
        "save, count = Image.Image.save, 0\n"
        "def killed(self, *arguments):\n"
        "    global count; count += 1\n"
        "    if count == 100: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    save(self, *arguments)\n"
        "Image.Image.save = killed\n"
        f"ensure_digits({str(target)!r})\n"
    )
    process = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3])
    assert process.returncode == -9
    assert not target.exists()
    ensure_digits(str(target))
    assert len(list(target.glob("*/*/*.png"))) == 1797


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").touch()
    monkeypatch.setattr(digits_module, "_write_digits", write_little)
    with pytest.raises(InvalidDatasetError, match=f"data.root = {tmp_path}: holds something else"):
        ensure_digits(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"can't be written to .*file/digits: .*RUNNER_CACHE=FOLDER"):
        ensure_digits(f"{tmp_path}/file/digits")
