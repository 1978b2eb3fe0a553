"""Writes a project: renders its files, checks the experiment, and publishes each file as a whole."""

from __future__ import annotations

import importlib.metadata
import os
import re
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

from runner.base.console import LOGGER
from runner.base.errors import OutputError
from runner.base.files import named_write_errors, write_new
from runner.base.untrusted import printable
from runner.base.user_paths import typed_path
from runner.config.compose import compose_one
from runner.config.schema import Config
from runner.config.schema.calls.of_experiments import InitCall
from runner.tools.dataset.staging import full_path, new_folder, refuse_within
from runner.tools.init.first_look import FirstLook, look_at
from runner.tools.init.settings import (
    UNMEASURED_BATCH_SIZE,
    BatchChoice,
    choose_settings,
    largest_batch_size,
    path_from,
    photo_counts,
)

EXPERIMENT = "conf/experiment/first.yaml"
_HOOK = ".githooks/pre-commit"
# The other files, and the template of each.
_FILES = {
    "README.md": "README.md.jinja",
    ".gitignore": "gitignore.jinja",
    _HOOK: "pre-commit",
    ".pre-commit-config.yaml": "pre-commit-config.yaml",
    ".github/workflows/validate.yml": "validate.yml.jinja",
}
_COMMENT_WIDTH = 114
_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")
_GITIGNORE = re.compile(r"([\\*?\[ ])")
_WORD = re.compile(r"[A-Za-z]\w*", re.ASCII)


def write_project(call: InitCall) -> list[str]:
    """Write a project; where that fails, nothing of it is written.

    Args:
        call: the folder, and the photos of its first experiment.

    Returns:
        What was done, in lines.

    Raises:
        OutputError: files of it exist already (all are named), or it can't be written.
        RunnerError: the photos can't be used.
    """
    output = full_path(call.output)
    typed_path(str(output), "output")
    _refuse_existing(output)
    photos = None if call.init.data is None else full_path(call.init.data)
    values: dict[str, Any] = {"name": output.name, "version": importlib.metadata.version("runner")}
    lines: list[str] = []
    if photos is None:
        experiment = _fill("digits.yaml")
    else:
        refuse_within(output, photos)
        look = look_at(photos)
        lines = [*(f"note: {note}" for note in look.notes)]
        experiment = _on_photos(look, output, is_measured=call.init.measure)
    within = None if photos is None else path_from(output, photos)
    files = {
        EXPERIMENT: experiment,
        **{name: _fill(template, photos=within, **values) for name, template in _FILES.items()},
    }
    _publish(output, files)
    return [*lines, f"wrote to {output}:", *(f"  {name}" for name in files)]


def _refuse_existing(output: Path) -> None:
    """Raise if a file of the project exists, or a folder of it can't be made."""
    names = (EXPERIMENT, *_FILES)
    with named_write_errors(output):
        taken = [name for name in names if os.path.lexists(output / name)]
        folders = {folder for name in names for folder in (output / name).parents if folder.is_relative_to(output)}
        taken += [str(folder) for folder in sorted(folders) if os.path.lexists(folder) and not folder.is_dir()]
    if taken:
        raise OutputError(
            f"output = {output}: already there and never overwritten: {', '.join(taken)}; nothing was written; choose "
            "another folder, or move these away"
        )


def _on_photos(look: FirstLook, output: Path, *, is_measured: bool) -> str:
    """The experiment on these photos as YAML, checked as by `validate`."""
    from runner.launch.preflight import preflight  # noqa: PLC0415 - not needed to refuse the photos

    def composed(batch: BatchChoice) -> tuple[str, Config]:
        text = _fill("photos.yaml.jinja", title=photo_counts(look), sections=choose_settings(look, batch, output))
        config = look.apply_to(_composed(text))
        return text, config.model_copy(update={"output_dir": str(output / "outputs")})

    most = largest_batch_size(look)
    text, config = composed(BatchChoice(min(UNMEASURED_BATCH_SIZE, most), {}))
    if is_measured:
        from runner.tools.init.batch_trial import choose_batch_size  # noqa: PLC0415 - torch, see above

        LOGGER.info("training briefly on %s to choose the batch size", photo_counts(look))
        text, config = composed(choose_batch_size(config, most))
    preflight(config)
    return text


def _composed(experiment: str) -> Config:
    """Compose an experiment as `experiment=first` will.

    Raises:
        ConfigError: it holds what no config may, such as a path that looks like an address with a password.
    """
    with tempfile.TemporaryDirectory(prefix="runner-init-") as folder:
        # Not `first`, which the current folder may have too.
        file = Path(folder, "experiment", "written_by_init.yaml")
        file.parent.mkdir()
        file.write_text(experiment, encoding="utf-8")
        job = compose_one([f"--config-dir={folder}", f"experiment={file.stem}"])
    assert job is not None, "no flag asks for anything else"
    return job.config


def _publish(output: Path, files: Mapping[str, str]) -> None:
    if os.path.lexists(output):
        # Not exchanged for a new folder: a shell may stand in it.
        _write(output, files)
        return
    with new_folder(output) as folder:
        _write(folder, files)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    written: list[Path] = []
    try:
        for name, text in files.items():
            write_new(folder / name, text.encode(), is_executable=name == _HOOK)
            written.append(folder / name)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _fill(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    # No HTML: the filters escape for each format.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("runner.tools.init"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "comment_lines": comment_lines,
        "in_yaml": in_yaml,
        "in_markdown": in_markdown,
        "in_gitignore": in_gitignore,
    }
    return environment.get_template(template).render(**values)


def comment_lines(text: str) -> list[str]:
    """A text with names from others as the lines of a comment in YAML, which no character in it can end."""
    return textwrap.wrap(one_line(text), _COMMENT_WIDTH, break_long_words=False, break_on_hyphens=False)


def in_yaml(value: str | float | None) -> str:
    """A value as YAML that OmegaConf reads as just this value: a text is quoted unless it is a word."""
    if isinstance(value, str) and not (_WORD.fullmatch(value) and yaml.safe_load(value) == value):
        return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=100_000).strip()
    return yaml.safe_dump(value, allow_unicode=True).removesuffix("...\n").strip()


def in_markdown(text: str) -> str:
    """A text that Markdown shows as it is: CommonMark takes a backslash before any ASCII punctuation."""
    return _MARKDOWN.sub(r"\\\1", one_line(text))


def in_gitignore(path: str) -> str:
    """A path as a pattern of .gitignore for just this path; ? stands for a line end, which can't be written there."""
    return _GITIGNORE.sub(r"\\\1", path).replace("\n", "?")


def one_line(text: str) -> str:
    """A text on one line, of characters that YAML allows; others as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in printable(text)
    )
