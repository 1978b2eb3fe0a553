from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

from runner.base.errors import OutputError, UsageError
from runner.config.compose import compose_one
from runner.config.schema.calls.of_experiments import InitCall
from runner.tools.init import project
from runner.tools.init.project import EXPERIMENT, comment_lines, in_gitignore, in_markdown, in_yaml, write_project

NAMES = {
    EXPERIMENT,
    "README.md",
    ".gitignore",
    ".githooks/pre-commit",
    ".pre-commit-config.yaml",
    ".github/workflows/validate.yml",
}
ODD_CLASSES = ("# x\n- y: z", "${oc.env:HOME}", "{{ 7 * 7 }}", '"a": b\u2028c', "<b>`$(id)`", "{% raw %}", "🐜 Käfer")


def call(output: Path, data: Path | None = None, *, measure: bool = False) -> InitCall:
    return InitCall.model_validate(
        {"output": str(output), "init": {"data": None if data is None else str(data), "measure": measure}}
    )


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def composed(folder: Path):
    return compose_one([f"--config-dir={folder / 'conf'}", "experiment=first"]).config


@pytest.fixture
def photos(write_image):
    """A function (folder, classes): makes a folder of class folders of three images each."""

    def photos(folder: Path, *classes: str) -> Path:
        for label in classes or ("ants", "bees"):
            for number in range(3):
                write_image(folder / label / f"{number}.png", number, (40, 70))
        return folder

    return photos


def test_a_project_on_the_digits(tmp_path):
    write_project(call(tmp_path / "mine"))
    assert set(files_below(tmp_path)) == {f"mine/{name}" for name in NAMES}
    assert composed(tmp_path / "mine").data.source == "digits"
    assert os.access(tmp_path / "mine" / ".githooks" / "pre-commit", os.X_OK)
    readme = (tmp_path / "mine" / "README.md").read_text()
    assert readme.startswith("# mine\n")
    assert len(readme.splitlines()) <= 13
    for name in (".pre-commit-config.yaml", ".github/workflows/validate.yml"):
        assert yaml.safe_load((tmp_path / "mine" / name).read_text())


def test_what_is_commented_out_for_own_photos_is_good(tmp_path, photos):
    write_project(call(tmp_path / "mine"))
    file = tmp_path / "mine" / EXPERIMENT
    text = file.read_text().replace("/data: digits", "/data: folder")
    text = text.replace("# data:", "data:").replace("#   root: photos ", "  root: photos ")
    file.write_text(text)
    data = composed(tmp_path / "mine").data
    assert (data.source, data.root) == ("folder", "photos")


def test_a_project_on_photos_elsewhere(tmp_path, photos):
    place = photos(tmp_path / "photos")
    before = files_below(place)
    lines = write_project(call(tmp_path / "mine", place))
    assert lines[0].startswith("note: there is no validation split: 2 of 6 training images")
    data = composed(tmp_path / "mine").data
    assert (data.root, data.train, data.batch_size, data.image_size) == (None, str(place), 2, 32)
    assert files_below(place) == before
    assert "photos" not in (tmp_path / "mine" / ".gitignore").read_text()


def test_photos_in_the_project_are_named_from_there_and_ignored_by_git(tmp_path, photos):
    photos(tmp_path / "mine" / "my photos [1]")
    write_project(call(tmp_path / "mine", tmp_path / "mine" / "my photos [1]"))
    assert composed(tmp_path / "mine").data.train == "my photos [1]"
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "mine", check=True)
    done = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=tmp_path / "mine", capture_output=True, text=True, check=True
    )
    assert {line[3:] for line in done.stdout.splitlines()} == NAMES


def test_each_line_has_its_reason(tmp_path, photos):
    write_project(call(tmp_path / "mine", photos(tmp_path / "photos")))
    lines = (tmp_path / "mine" / EXPERIMENT).read_text().splitlines()
    settings = [number for number, line in enumerate(lines) if line.startswith("  ") and line.strip()[0] not in "#-"]
    assert len(settings) >= 7
    for number in settings:
        assert lines[number - 1].startswith("  # "), lines[number]


def test_odd_names_stay_names(tmp_path, photos):
    name = 'it\'s "odd": # {a} [b], 100% *x* <i>\n- end\\'
    place = photos(tmp_path / name / "photos", *ODD_CLASSES)
    for number in range(30):  # so that two of the names are shown
        (place / ODD_CLASSES[0] / f"{number}.png").write_bytes((place / ODD_CLASSES[0] / "0.png").read_bytes())
    write_project(call(tmp_path / name / "mine # *1*", place))
    folder = tmp_path / name / "mine # *1*"
    config = composed(folder)
    assert (config.data.train, config.data.balance) == (str(place), "loss_weights")
    text = (folder / EXPERIMENT).read_text(encoding="utf-8")
    assert set(yaml.safe_load(text)) == {"defaults", "model", "data", "optimizer", "trainer"}
    assert "# x\\x0a- y: z" in text
    assert (folder / "README.md").read_text().startswith("# mine \\# \\*1\\*\n")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_what_exists_is_refused_by_name_before_anything_is_written(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    (tmp_path / "else.txt").write_text("mine too")
    before = files_below(tmp_path)
    with pytest.raises(OutputError, match=f"already there and never overwritten: {name};"):
        write_project(call(tmp_path))
    assert files_below(tmp_path) == before


def test_all_that_exists_is_named_at_once(tmp_path):
    (tmp_path / "README.md").symlink_to("nowhere")
    (tmp_path / ".gitignore").write_text("")
    (tmp_path / "conf").write_text("a file")
    with pytest.raises(OutputError) as caught:
        write_project(call(tmp_path))
    assert f"README.md, .gitignore, {tmp_path}/conf;" in str(caught.value)


def test_a_folder_with_other_files_gets_the_project(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    inode = tmp_path.stat().st_ino
    write_project(call(tmp_path))
    assert set(files_below(tmp_path)) == {*NAMES, "notes.txt"}
    assert tmp_path.stat().st_ino == inode


def test_the_photos_are_not_written_into(tmp_path, photos):
    place = photos(tmp_path / "photos")
    before = files_below(tmp_path)
    for output in (place, place / "mine"):
        with pytest.raises(OutputError, match="lies within the input"):
            write_project(call(output, place))
    assert files_below(tmp_path) == before


def test_a_path_that_a_config_may_not_hold_leaves_nothing(tmp_path, photos):
    place = photos(tmp_path / "${oc.env:HOME}" / "photos")
    with pytest.raises(UsageError, match="rename it"):
        write_project(call(tmp_path / "mine", place))
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("kind", ["new", "existing"])
def test_a_failure_on_the_way_leaves_nothing(tmp_path, monkeypatch, kind):
    if kind == "existing":
        (tmp_path / "mine").mkdir()
    real = project.write_new
    done = []

    def fails_at_the_third(path, content, **more):
        if len(done) == 2:
            raise OutputError("the disk is full")
        done.append(path)
        real(path, content, **more)

    monkeypatch.setattr(project, "write_new", fails_at_the_third)
    with pytest.raises(OutputError, match="the disk is full"):
        write_project(call(tmp_path / "mine"))
    assert files_below(tmp_path) == {}


def test_each_template_ships_and_is_used():
    used = {*project._FILES.values(), "digits.yaml", "photos.yaml.jinja"}
    assert set(jinja2.PackageLoader("runner.tools.init").list_templates()) == used


def test_texts_in_each_format():
    assert comment_lines("a\nb\u2028\x1b[31mc") == ["a\\x0ab\\u2028\\x1b[31mc"]
    for text in ("2024", "1e3", "on", "null", "~", "none", "a: b", "é\u0085\ufeff🐜", '"', "\\", "", "- x", "x\n# y"):
        assert yaml.safe_load(f"key: {in_yaml(text)}  # c") == {"key": text}, text
    assert in_yaml("none") == "none"
    assert (in_yaml(0.004), in_yaml(16), in_yaml(None)) == ("0.004", "16", "null")
    assert in_markdown("[a](b) `c`") == "\\[a\\]\\(b\\) \\`c\\`"
    assert in_gitignore("a*b?c[d\\e f\ng") == "a\\*b\\?c\\[d\\\\e\\ f?g"
