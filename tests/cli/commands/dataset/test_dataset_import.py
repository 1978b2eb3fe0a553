"""`dataset import`: whatever comes in, class folders come out, or nothing at all and a reason."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from runner.base.errors import ConfigError, InvalidDatasetError, NotLabeledDatasetError, OutputError, StoppedOnRequest
from runner.cli.commands.dataset import import_ as dataset_import
from runner.data.sources.folder import open_folder
from runner.tools.dataset import importing, staging


@pytest.fixture
def photos(tmp_path, write_image) -> Path:
    """photos/{train,val}/{ants,bees}/…, with things that are no images."""
    folder = tmp_path / "wrapper" / "photos"
    for number, (split, label) in enumerate([(s, c) for s in ("train", "val") for c in ("ants", "bees")]):
        for image, suffix in enumerate(["jpg", "JPEG", "png", "ppm", "bmp", "tif", "WebP"]):
            write_image(folder / split / label / f"{image}.{suffix}", seed=10 * number + image)
    write_image(folder / "train/ants/deep/0.jpg", seed=99)
    (folder / "train/ants/.DS_Store").write_bytes(b"x")
    (folder / "train/notes.txt").write_bytes(b"x")
    return tmp_path / "wrapper"


def run(*argv: str) -> int:
    return dataset_import.run(["workers=0", *argv])


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pack(folder: Path, archive: Path) -> Path:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(folder.rglob("*")):
                packed.write(path, path.relative_to(folder.parent))
    else:
        mode = "w" if archive.suffix == ".tar" else f"w:{archive.suffix[1:]}"
        with tarfile.open(archive, mode) as packed:
            packed.add(folder, folder.name)
    return archive


EXPECTED = {f"{split}/{label}" for split in ("train", "val") for label in ("ants", "bees")}


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz", "tar.xz", "tar.bz2"])
def test_each_kind_of_input_gives_the_same_folders(tmp_path, photos, kind, capsys):
    before = tree(photos)
    source = photos if kind == "folder" else pack(photos, tmp_path / f"photos.{kind}")
    assert run(f"input={source}", f"output={tmp_path / 'out'}") == 0
    written = tree(tmp_path / "out")
    assert {path.rpartition("/")[0] for path in written} == EXPECTED
    assert written["train/ants/0.jpg"] == before["photos/train/ants/0.jpg"]
    assert written["train/ants/deep__0.jpg"] == before["photos/train/ants/deep/0.jpg"]
    assert len(written) == 4 * 7 + 1
    assert tree(photos) == before
    text = capsys.readouterr().out
    assert "imported 29 images" in text
    assert "train: 15 images of 2 classes: ants 8, bees 7" in text
    assert "hidden" in text
    assert f"data=folder data.root={tmp_path / 'out'}" in text
    assert json.loads((tmp_path / "out.import.json").read_text())["num_images"] == 29
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_training_opens_what_was_imported(tmp_path, photos, data_of_folder):
    run(f"input={photos}", f"output={tmp_path / 'out'}")
    opened, errors = open_folder(data_of_folder(tmp_path / "out"))
    assert not errors
    assert opened is not None
    assert (opened.classes, len(opened.train), opened.notes) == (("ants", "bees"), 15, ())


@pytest.fixture
def data_of_folder():
    from runner.data.sources.paths import resolve_paths
    from runner.library import load_config

    return lambda root: resolve_paths(load_config(["data=folder", f"data.root={root}"]).data)


def test_a_list(tmp_path, write_image, capsys):
    outside = write_image(tmp_path / "elsewhere" / "1.jpg", seed=1)
    for number in (2, 3):
        write_image(tmp_path / "raw" / f"{number}.jpg", seed=number)
    (tmp_path / "raw/list.csv").write_text(
        f"path,label,part\n{outside},AC/DC,train\n2.jpg,bee,train\n3.jpg,bee,valid\n"
    )
    assert run(f"input={tmp_path}/raw/list.csv", f"output={tmp_path}/out", "split_column=part") == 0
    assert sorted(tree(tmp_path / "out")) == ["train/AC_DC/1.jpg", "train/bee/2.jpg", "val/bee/3.jpg"]
    assert "renamed" in capsys.readouterr().out


def test_a_list_whose_paths_start_elsewhere(tmp_path, write_image):
    write_image(tmp_path / "raw" / "a" / "1.jpg")
    (tmp_path / "list.csv").write_text("path,label\na/1.jpg,ant\n")
    with pytest.raises(InvalidDatasetError, match="1 of 1 files do not exist"):
        run(f"input={tmp_path}/list.csv", f"output={tmp_path}/out")
    assert run(f"input={tmp_path}/list.csv", f"output={tmp_path}/out", f"root={tmp_path}/raw") == 0


def test_coco(tmp_path, write_image):
    images = [{"id": number, "file_name": write_image(tmp_path / f"{number}.jpg", number).name} for number in (1, 2)]
    annotations = [{"image_id": 1, "category_id": 1, "area": 1}, {"image_id": 1, "category_id": 2, "area": 2}]
    categories = [{"id": 1, "name": "ant"}, {"id": 2, "name": "bee"}]
    (tmp_path / "a.json").write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    assert run(f"input={tmp_path}/a.json", f"output={tmp_path}/out", "multiple_labels=largest") == 0
    assert sorted(tree(tmp_path / "out")) == ["bee/1.jpg"]
    report = json.loads((tmp_path / "out.import.json").read_text())
    assert report["left_out"]["without an annotation"] == {"count": 1, "examples": ["2.jpg"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_what_can_not_be_decoded_is_left_out_and_named(tmp_path, write_image, workers, capsys):
    for number in range(40):
        write_image(tmp_path / "in" / "ants" / f"{number}.jpg", number)
    (tmp_path / "in/ants/5.jpg").write_bytes(b"")
    (tmp_path / "in/ants/6.jpg").write_bytes((tmp_path / "in/ants/7.jpg").read_bytes()[:300])
    (tmp_path / "in/ants/8.jpg").write_text("<html>not found</html>")
    assert dataset_import.run([f"workers={workers}", f"input={tmp_path}/in", f"output={tmp_path}/out"]) == 0
    assert len(tree(tmp_path / "out")) == 37
    unreadable = json.loads((tmp_path / "out.import.json").read_text())["unreadable"]
    assert [item["path"] for item in unreadable] == ["ants/5.jpg", "ants/6.jpg", "ants/8.jpg"]
    assert "the file is empty" in unreadable[0]["reason"]
    assert "unreadable: ants/8.jpg: this is no image" in capsys.readouterr().out


def test_nothing_that_can_be_decoded_is_refused(tmp_path):
    (tmp_path / "in/ants").mkdir(parents=True)
    (tmp_path / "in/ants/1.jpg").write_text("<svg/>")
    with pytest.raises(InvalidDatasetError, match="none of its 1 images can be decoded"):
        run(f"input={tmp_path}/in", f"output={tmp_path}/out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_class_that_can_not_be_read_leaves_no_empty_folder(tmp_path, write_image, capsys):
    write_image(tmp_path / "in/ants/1.jpg")
    (tmp_path / "in/bees").mkdir()
    (tmp_path / "in/bees/1.jpg").write_bytes(b"")
    run(f"input={tmp_path}/in", f"output={tmp_path}/out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ants"]
    assert "note: no image of the class bees could be read, so it has no folder there" in capsys.readouterr().out


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_path_may_have_a_comma_and_other_keys_take_one_value(tmp_path, quote):
    typed = (f"input={quote}{tmp_path}/a,b.zip{quote}", f"output={tmp_path}/out")
    with pytest.raises(InvalidDatasetError, match=r"a,b\.zip: there is no such file"):
        run(*typed)
    with pytest.raises(ConfigError, match=r"several values are a sweep"):
        run(*typed, "workers=0,1")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda folder: None, InvalidDatasetError, "no such file or folder"),
        (lambda folder: folder.mkdir(), InvalidDatasetError, "empty"),
        (lambda folder: (folder / "ants").mkdir(parents=True), InvalidDatasetError, "no image"),
        (lambda folder: folder.write_bytes(b"what?"), InvalidDatasetError, "give it: format="),
    ],
)
def test_inputs_that_are_nothing(tmp_path, make, error, message):
    make(tmp_path / "in")
    with pytest.raises(error, match=message):
        run(f"input={tmp_path}/in", f"output={tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_images_without_classes(tmp_path, write_image):
    write_image(tmp_path / "in" / "1.jpg")
    with pytest.raises(NotLabeledDatasetError):
        run(f"input={tmp_path}/in", f"output={tmp_path}/out")
    with zipfile.ZipFile(tmp_path / "loose.zip", "w") as archive:
        archive.write(tmp_path / "in" / "1.jpg", "1.jpg")
    with pytest.raises(NotLabeledDatasetError, match="no class folders"):
        run(f"input={tmp_path}/loose.zip", f"output={tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_a_single_class_is_reported(tmp_path, write_image, capsys):
    write_image(tmp_path / "in" / "1.jpg")
    run(f"input={pack(tmp_path / 'in', tmp_path / 'in.zip')}", f"output={tmp_path}/out")
    assert "note: only one class, in, but a classifier needs at least 2" in capsys.readouterr().out


def test_an_archive_that_means_harm_leaves_nothing_anywhere(tmp_path, write_image):
    image = write_image(tmp_path / "1.jpg").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("ants/1.jpg", image)
        archive.writestr("../../evil.jpg", image)
    before = sorted(tmp_path.parent.rglob("*"))
    with pytest.raises(InvalidDatasetError, match="nothing was unpacked"):
        run(f"input={tmp_path}/a.zip", f"output={tmp_path}/x/y/out")
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_a_format_that_does_not_fit(tmp_path, photos):
    with pytest.raises(InvalidDatasetError, match="is a folder, but format = zip"):
        run(f"input={photos}", f"output={tmp_path}/out", "format=zip")
    (tmp_path / "page.zip").write_text("<html>not found</html>")
    with pytest.raises(InvalidDatasetError, match="damaged, cut off or of an unknown kind"):
        run(f"input={tmp_path}/page.zip", f"output={tmp_path}/out")


def test_nothing_is_ever_overwritten(tmp_path, photos):
    output = tmp_path / "out"
    output.mkdir()
    assert run(f"input={photos}", f"output={output}") == 0  # An empty folder holds nothing to lose.
    before = tree(output)
    with pytest.raises(OutputError, match="never overwritten"):
        run(f"input={photos}", f"output={output}")
    assert tree(output) == before
    shutil.rmtree(output)
    assert run(f"input={photos}", f"output={output}") == 0  # The report alone is an earlier import's.
    (tmp_path / "other.import.json").write_text("mine")
    with pytest.raises(OutputError, match="is no report of an import"):
        run(f"input={photos}", f"output={tmp_path}/other")
    with pytest.raises(OutputError, match="lies within the input"):
        run(f"input={photos}", f"output={photos}/photos/new")


def test_a_full_disk_leaves_nothing_behind(tmp_path, photos, monkeypatch):
    real = Path.open

    class FullDisk:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *args):
            self.file.close()

        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_and_fill(path, mode="r", *args, **kwargs):
        file = real(path, mode, *args, **kwargs)
        return FullDisk(file) if mode == "xb" and path.name == "3.ppm" else file

    monkeypatch.setattr(Path, "open", open_and_fill)
    with pytest.raises(OutputError, match=r"out can't be written: the disk is full"):
        run(f"input={photos}", f"output={tmp_path}/out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wrapper"]


def test_what_can_not_fit_is_refused_before_anything_is_written(tmp_path, photos, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OutputError, match=r"only 0\.00 GB are free"):
        run(f"input={photos}", f"output={tmp_path}/out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wrapper"]


def test_a_signal_ends_it_with_nothing_written(tmp_path, photos, monkeypatch):
    assert threading.current_thread() is threading.main_thread()
    decode = importing.decode_image
    seen = []

    def decode_and_be_stopped(path):
        seen.append(path)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return decode(path)

    monkeypatch.setattr(importing, "decode_image", decode_and_be_stopped)
    with pytest.raises(StoppedOnRequest, match="stopped on SIGTERM; nothing was written") as caught:
        run(f"input={photos}", f"output={tmp_path}/out")
    assert caught.value.exit_code == 75
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wrapper"]


def test_mistakes_in_the_call_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        dataset_import.run(["input=a", "output=b", "formt=zip", "max_expansion=0", "encoding=hex"])
    told = str(caught.value)
    assert "did you mean format?" in told
    assert "max_expansion = 0" in told
    assert "no such encoding" in told


def test_it_is_fast_to_refuse_and_imports_no_torch(run_cli, tmp_path):
    done = run_cli("dataset", "import", "input=nowhere", "output=out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("runner: InvalidDatasetError: input = ")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_sum_is_refused(tmp_path, photos, capsys):
    archive = pack(photos, tmp_path / "photos.zip")
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    with pytest.raises(InvalidDatasetError, match=f"its SHA-256 is {right}, not {'0' * 64} as sha256 says"):
        run(f"input={archive}", f"output={tmp_path}/out", f"sha256={'0' * 64}")
    with pytest.raises(InvalidDatasetError, match="is a folder, which has no SHA-256"):
        run(f"input={photos}", f"output={tmp_path}/out", f"sha256={right}")
    assert not list(tmp_path.glob("out*"))
    assert run(f"input={archive}", f"output={tmp_path}/out", f"sha256={right.upper()}") == 0
    assert json.loads((tmp_path / "out.import.json").read_text())["sha256"] == right
    assert "to be sure of the same bytes" not in capsys.readouterr().out
