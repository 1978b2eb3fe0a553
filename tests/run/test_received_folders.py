"""Run folders as others may have made them: each is refused by name, and nothing happens outside of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import runner
from runner.base.errors import CheckpointError, ConfigError, InvalidDatasetError, InvalidModelError, RunnerError
from runner.base.files import sha256_of
from runner.cli.commands import evaluate, export, predict, report, resume
from runner.cli.commands.runs import diff as runs_diff
from runner.cli.commands.runs import list as runs_list
from runner.cli.commands.runs import repeat as runs_repeat
from runner.tools.runs.find import line_of
from tests.conftest import SMALL_NET
from tests.made_runs import make_run, row

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "evaluate": evaluate.run,
    "export": export.run,
    "report": report.run,
    "resume": resume.run,
    "repeat": runs_repeat.run,
}


@pytest.fixture
def received(trained, tmp_path) -> Path:
    (tmp_path / "received").mkdir()
    return Path(shutil.copytree(trained, tmp_path / "received" / "run"))


@pytest.fixture
def made(tmp_path) -> Path:
    return make_run(tmp_path / "made", rows=(row(1), row(2)))


def call(command: str, run: Path, *more: str) -> int:
    if command == "predict":
        more = (f"input={run.parent}", f"output={run.parent / 'scores.csv'}", *more)
        return predict.run([f"run={run}", *more])
    if command == "diff":
        return runs_diff.run([f"a={run}", f"b={run}"])
    if command == "load_model":
        runner.load_model(run)
        return 0
    return COMMANDS[command]([f"run={run}", *(("format=torchscript",) if command == "export" else ()), *more])


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


# Links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoints", "logs", "evaluation", "model", "tensorboard", "export", "report.html"])
@pytest.mark.parametrize("command", [*COMMANDS, "predict", "diff", "load_model"])
def test_nothing_is_read_written_or_deleted_behind_a_link(received, tmp_path, name, command):
    elsewhere = tmp_path / "elsewhere"
    if (received / name).exists():
        (received / name).rename(elsewhere)
    elif name == "report.html":
        elsewhere.write_text("mine")
    else:
        elsewhere.mkdir()
    (received / name).symlink_to(elsewhere)
    before = tree(tmp_path)
    with pytest.raises(CheckpointError, match=rf"{name} leads to {elsewhere}, which is not in .*put there what"):
        call(command, received)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "logs/rank_0.log"])
def test_a_list_follows_no_link_either(received, tmp_path, name, capsys):
    (received / name).rename(tmp_path / "moved")
    (received / name).symlink_to(tmp_path / "moved")
    assert "leads to" in str(line_of(received).error)
    assert runs_list.run([f"root={tmp_path}"]) == 0
    assert "damaged" in capsys.readouterr().out


# Files of other content ----------------------------------------------------------------------------------------------

DEEP = '{"a":' + "[" * 50_000
HUGE = "9" * 4000
RECORDS: dict[str, Any] = {
    "list": [],
    "status": {"status": "excellent"},
    "attempts": {"attempts": "one"},
    "negative": {"attempts": -1},
    "best": {"best": []},
    "best epoch": {"best": {"metric": "val_top1", "value": 1, "epoch": "last"}},
    "best value": {"best": {"metric": "val_top1", "value": None, "epoch": 1}},
    "error": {"status": "failed", "error": "it failed"},
    "error name": {"status": "failed", "error": {"message": "no name"}},
    "data": {"data": "photos"},
    "counts": {"data": {"num_train": "many"}},
    "git": {"git": ["abc"]},
    "dirty": {"git": {"commit": 3}},
    "versions": {"versions": {"torch": {}}},
    "test": {"test": {"top1": "good"}},
    "warnings": {"warnings": 3},
    "overrides": {"overrides": {"a": 1}},
    "world": {"world_size": 0},
    "start": {"start": 20261120},
    "host": {"host": {"name": "x"}},
}


@pytest.mark.parametrize("case", RECORDS)
@pytest.mark.parametrize("command", ["report", "resume", "diff"])
def test_a_record_of_another_form_is_damaged(made, case, command):
    values = RECORDS[case]
    record = json.loads((made / "run.json").read_text())
    (made / "run.json").write_text(json.dumps({**record, **values} if isinstance(values, dict) else values))
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        call(command, made)
    assert line_of(made).status == "damaged"


LINES = {
    "number": "3",
    "list": "[1]",
    "no epoch": '{"step": 3}',
    "negative": '{"epoch": -1}',
    "word": '{"epoch": "one"}',
    "true": '{"epoch": true}',
    "nan": '{"epoch": 1, "lr": NaN}',
    "huge": f'{{"epoch": {HUGE}}}',
    "text": '{"epoch": 1, "val_top1": "good"}',
    "nested": '{"epoch": 1, "val_top1": [1]}',
    "seconds": '{"epoch": 1, "epoch_seconds": -5}',
    "deep": DEEP,
    "none": "",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_metrics_of_another_form_are_damaged(made, line):
    (made / "metrics.jsonl").write_text(f"{json.dumps(row(1))}\n{line}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged: line 2"):
        call("report", made)


FILES: dict[str, tuple[str, bytes]] = {
    "config list": ("config.yaml", b"[1, 2]"),
    "config group": ("config.yaml", b"data: 3\nmodel: []"),
    "config keys": ("config.yaml", b"{1: 2}"),
    "config object": ("config.yaml", b"a: !!python/object/apply:os.system [ls]"),
    "config itself": ("config.yaml", b"a: &a [*a]"),
    "config deep": ("config.yaml", b"[" * 50_000),
    "config keys many": ("config.yaml", b"".join(b"k%d: 1\n" % n for n in range(20_000))),
    "config bytes": ("config.yaml", b"\xff\xfe\x00"),
    "record deep": ("run.json", DEEP.encode()),
    "record nan": ("run.json", b'{"status": "completed", "attempts": NaN}'),
    "record huge": ("run.json", f'{{"status": "completed", "attempts": {"9" * 5000}}}'.encode()),
    "record bytes": ("run.json", b"\xff"),
    "pointer out": ("checkpoints/last", b"../../../etc\n"),
    "pointer absolute": ("checkpoints/last", b"/etc\n"),
    "pointer nul": ("checkpoints/last", b"0001-\x00\n"),
    "pointer long": ("checkpoints/last", b"1" * 10_000),
    "evaluation list": ("evaluation/metrics.json", b"[]"),
    "evaluation empty": ("evaluation/metrics.json", b"{}"),
    "predictions": ("evaluation/predictions.csv", b"image,path\n1,2\n"),
    "predictions bytes": ("evaluation/predictions.csv", b"image,path,label,predicted,probability,loss\n\xff\n"),
    "predictions line": ("evaluation/predictions.csv", b"x" * 3_000_000),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_of_another_form_is_named(received, case):
    name, content = FILES[case]
    (received / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name.rpartition("/")[2]):
        call("report", received)


EVALUATIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "classes": lambda found: found["classes"].pop(),
    "no classes": lambda found: found.update(classes=[]),
    "per class": lambda found: found["per_class"].append({}),
    "matrix": lambda found: found["confusion_matrix"].pop(),
    "row": lambda found: found["confusion_matrix"][0].append(1),
    "negative": lambda found: found["confusion_matrix"][0].__setitem__(0, -1),
    "entries": lambda found: found.update(confusion_matrix={"truth": [99], "predicted": [0], "count": [1]}),
    "lengths": lambda found: found.update(confusion_matrix={"truth": [0, 1], "predicted": [0], "count": [1]}),
    "count": lambda found: found.update(count=0),
    "top1": lambda found: found.update(top1="good"),
    "average": lambda found: found.pop("macro_average"),
    "split": lambda found: found.update(split="../.."),
}


@pytest.mark.parametrize("change", EVALUATIONS.values(), ids=EVALUATIONS)
def test_an_evaluation_that_does_not_fit_itself_is_damaged(received, change):
    file = received / "evaluation" / "metrics.json"
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match=r"metrics\.json is damaged"):
        call("report", received)


@pytest.mark.parametrize("content", ["[]", "{}", "[1, 2]", '["a", "a", "b"]', "null", "[" * 50_000, '["a"'])
def test_classes_are_a_list_of_different_names(received, content):
    (received / "classes.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"classes\.json"):
        call("evaluate", received)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["a", "b"]},
        {"num_classes": 10**12},
        {"classes": ["a", "a", "b"]},
        {"best": {}},
        {"format": True},
        {"format": [1]},
        {"architecture": {"family": "torchvision", "name": "no_such", "weights": None}},
        {"preprocessing": None},
    ],
)
@pytest.mark.parametrize("command", ["predict", "load_model"])
def test_a_card_that_does_not_fit_itself_is_refused(received, change, command):
    file = received / "model" / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    (received.parent / "x.png").write_bytes(b"")
    with pytest.raises((CheckpointError, InvalidModelError)):
        call(command, received)


@pytest.mark.parametrize("command", ["report", "evaluate", "predict", "resume", "export", "load_model"])
def test_reading_a_fifo_does_not_block(received, command):
    for name in ("run.json", "model/model.json"):
        (received / name).unlink()
        os.mkfifo(received / name)
    with pytest.raises(CheckpointError, match="is a FIFO"):
        call(command, received)


@pytest.mark.parametrize("key", ["run", "output"])
@pytest.mark.parametrize("text", ["~nosuchuser/x", '"a\\x00b"'])
def test_an_invalid_path_is_an_error_of_the_call(received, key, text):
    typed = {"run": str(received), "output": str(received.parent / "x.html"), key: text.replace("\\x00", "\0")}
    with pytest.raises(ConfigError, match=f"{key} = .*no path|has a NUL"):
        report.run([f"{name}={value}" for name, value in typed.items()])


# Weights -------------------------------------------------------------------------------------------------------------


def spoil(run: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the packaged weights, and let the card and the checkpoint say that they are right."""
    weights, card = run / "model" / "model.safetensors", run / "model" / "model.json"
    tensors = {name: value.clone() for name, value in load_file(weights).items()}
    change(tensors)
    save_file(tensors, weights)
    card.write_text(json.dumps({**json.loads(card.read_text()), "weights_sha256": sha256_of(weights)}))


WEIGHTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "nan": (
        lambda found: found["fc.weight"].view(-1)[7:8].fill_(float("nan")),
        r"fc\.weight holds values that are inf",
    ),
    "inf": (lambda found: found["conv1.1.running_var"].fill_(float("inf")), r"conv1\.1\.running_var holds values"),
    "shape": (lambda found: found.update({"fc.bias": torch.zeros(7)}), r"fc\.bias is 7 of float32, must be 3"),
    "dtype": (lambda found: found.update({"fc.bias": torch.zeros(3, dtype=torch.int32)}), "of int32, must be"),
    "missing": (lambda found: found.pop("fc.bias"), r"fc\.bias is missing"),
    "surplus": (lambda found: found.update({"../x": torch.zeros(1)}), "is none of its tensors"),
}


@pytest.mark.parametrize("case", WEIGHTS)
@pytest.mark.parametrize("command", ["predict", "evaluate", "export", "load_model"])
def test_weights_that_do_not_fit_or_are_not_finite_are_not_loaded(received, write_image, case, command):
    change, message = WEIGHTS[case]
    spoil(received, change)
    write_image(received.parent / "x.png")
    with pytest.raises(CheckpointError, match=rf"model\.safetensors.*{message}"):
        call(command, received)
    assert not (received.parent / "scores.csv").exists()


def test_more_classes_than_the_weights_have_take_no_memory(received):
    """The head of ten million classes would take 40 GB."""
    (received / "classes.json").write_text(json.dumps([f"c{number}" for number in range(10_000_000 // 100)]))
    with pytest.raises(CheckpointError, match=r"fc\.weight is 3×1024 of float32, must be 100000×1024"):
        call("export", received)


@pytest.fixture
def overflowing(monkeypatch) -> None:
    """Weights that are finite, and scores that are not, of the first image of each batch."""
    from runner.training import assemble_trained

    load = assemble_trained.load_weights

    def hooked(module: torch.nn.Module, *rest: Any) -> None:
        load(module, *rest)
        first = torch.tensor([0])
        module.register_forward_hook(lambda _, __, scores: scores.index_fill(0, first, float("inf")))

    monkeypatch.setattr(assemble_trained, "load_weights", hooked)


@pytest.mark.usefixtures("overflowing")
def test_an_image_without_finite_scores_gets_a_row_with_the_reason(received, write_image, tmp_path, caplog):
    for name in ("a", "b", "c"):
        write_image(tmp_path / "images" / f"{name}.png")
    output = tmp_path / "scores.jsonl"
    predict.run([f"run={received}", f"input={tmp_path / 'images'}", f"output={output}"])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [bool(found["Scored Labels"]) for found in rows] == [False, True, True]
    assert rows[0]["error"] == "the model's scores are infinite or not a number"
    assert "1 of 3 images have no scores: the model's scores are infinite or not a number: a.png" in caplog.text


@pytest.mark.usefixtures("overflowing")
def test_an_evaluation_names_the_images_without_finite_scores(received):
    before = (received / "evaluation" / "metrics.json").read_text()
    with pytest.raises(InvalidModelError, match=r"3 of 21 images have no scores: .*0\.png.*data\.on_bad_image=skip"):
        call("evaluate", received)
    assert (received / "evaluation" / "metrics.json").read_text() == before


@pytest.mark.usefixtures("overflowing")
def test_an_evaluation_that_skips_bad_images_skips_those_without_finite_scores(received):
    assert call("evaluate", received, "data.on_bad_image=skip", "data.max_bad_fraction=0.5") == 0
    found = json.loads((received / "evaluation" / "metrics.json").read_text())
    assert (found["count"], found["num_skipped"], [bad["image"] for bad in found["skipped"]]) == (18, 3, [0, 8, 16])
    assert sum(map(sum, found["confusion_matrix"])) == 18


@pytest.mark.usefixtures("overflowing")
def test_an_evaluation_without_any_finite_score_is_none(received):
    with pytest.raises(InvalidModelError, match=r"for each of 21 images; the first: .*0\.png"):
        call("evaluate", received, "data.on_bad_image=skip", "data.batch_size=1")


# Downloads and writes ------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("somebody opens a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("data", ["data=torchvision data.name=CIFAR10", "data=digits"])
@pytest.mark.parametrize("command", ["report", "evaluate", "export"])
def test_what_reads_a_run_neither_downloads_nor_writes_its_data(received, tmp_path, monkeypatch, data, command):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "theirs"
    config = runner.load_config([*data.split(), *SMALL_NET]).model_dump(mode="json")
    # As a run saves them.
    splits = {name: str(place / name) for name in ("train", "val")} if data == "data=digits" else {}
    config["data"] |= {"root": str(place), **splits}
    (received / "config.yaml").write_text(yaml.safe_dump(config))
    if command == "report":
        assert call(command, received) == 0
        assert "what only reads" in (received / "report.html").read_text()
    else:
        with pytest.raises(InvalidDatasetError, match="what only reads"):
            call(command, received)
    assert not place.exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["run.json", "model/model.json", "checkpoints/last", "evaluation/metrics.json"])
def test_every_refusal_is_one_of_the_runner(received, name):
    """Whatever byte of a small file is another one."""
    good = (received / name).read_bytes()
    for position in range(0, len(good), max(1, len(good) // 20)):
        (received / name).write_bytes(good[:position] + b"[" + good[position + 1 :])
        with contextlib.suppress(RunnerError):
            call("load_model" if name.startswith("model") else "diff", received)
