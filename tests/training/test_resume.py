"""Resuming in one process: what is put back, what is refused, and that leaving anything out would be noticed."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import runner
from runner.base.errors import CheckpointError, ConfigError, OutputError, RunnerError
from runner.base.files import sha256_of
from runner.cli.call import read_call
from runner.config.saved import load_saved
from runner.config.schema.calls.of_trained import ResumeCall
from runner.config.schema.checks.effects import check_changes
from runner.launch import launch
from runner.launch.preflight import preflight
from runner.model import build_architecture
from runner.run import run_folder
from runner.run.checkpoint import Checkpoint, CheckpointStore, write_manifest
from runner.run.package import read_package
from runner.run.run_folder import NAMES, RunFolder, read_record, rename_run
from runner.trainer.loop import Trainer
from runner.trainer.progress import Best, Progress
from runner.trainer.state import TrainingState
from runner.trainer.step import Stepper
from runner.training import run_record as record
from runner.training.assemble import Assembled
from runner.training.attempt import Attempt, Training
from tests.made_package import make_package

# With BatchNorm, which keeps statistics, and dropout, which draws at each step.
NET = """
from collections import OrderedDict
from torch import nn

def net(num_classes):
    return nn.Sequential(OrderedDict(
        conv=nn.Conv2d(3, 8, 3, stride=2, bias=False), norm=nn.BatchNorm2d(8), relu=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(2), flat=nn.Flatten(), dropout=nn.Dropout(0.2), head=nn.Linear(32, num_classes),
    ))
"""
SMALL = ("model=custom", "model.name=resumed_net")
SCENARIO = (
    *SMALL,
    "trainer.epochs=4",
    "trainer.ema_decay=0.7",
    "trainer.checkpoint_every=2",
    "trainer.patience=2",
    "optimizer.lr=0.05",
)
# Nothing is learnt: the validation loss of the first epoch is never beaten, so patience alone decides the end.
PATIENCE = (
    "schedule=constant",
    *SMALL,
    "trainer.epochs=9",
    "trainer.patience=3",
    "trainer.checkpoint_every=2",
    "trainer.freeze_backbone_epochs=8",
    "optimizer.lr=1e-15",
    "optimizer.weight_decay=0",
)


@pytest.fixture(scope="module", autouse=True)
def small_net(tmp_path_factory) -> Iterator[None]:
    site = make_package(tmp_path_factory.mktemp("site"), "resumed_net", NET, resumed_net="resumed_net:net")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield


class Killed(Exception):
    """Stands for a kill: nothing is saved on the way out."""


def begin(overrides: list[str], output_dir: Path, monkeypatch: pytest.MonkeyPatch, at_step: int) -> Path:
    """Train until a step and die there."""
    take_step = Stepper.take

    def dying(stepper: Stepper, stream: object) -> None:
        if stepper.state.progress.step == at_step:
            raise Killed
        take_step(stepper, stream)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "take", dying)
        with pytest.raises(Killed):
            runner.fit(runner.load_config(overrides))
    (record,) = output_dir.glob("outputs/*/*/run.json")
    return record.parent


def resume(run_dir: Path, *overrides: str) -> Path:
    ready = preflight(load_saved(run_dir, overrides))
    launch(ready, Training(attempt=Attempt(is_resumed=True)), folder=run_dir)
    return run_dir


def outcome(run_dir: Path) -> dict:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    store = CheckpointStore(run_dir / "checkpoints", keep=2)
    last = store.load(store.pointed("last"))
    return {
        "best": json.loads((run_dir / "run.json").read_text())["best"],
        "rows": [{key: value for key, value in row.items() if "second" not in key} for row in rows],
        "package": sha256_of(run_dir / "model" / "model.safetensors"),
        **{
            f"{stem}/{name}": value.numpy().tobytes()
            for stem, tensors in last.tensors.items()
            for name, value in tensors.items()
        },
    }


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory) -> Callable[[tuple[str, ...]], dict]:
    from tests.conftest import TINY

    found: dict[tuple[str, ...], dict] = {}

    def of(scenario: tuple[str, ...]) -> dict:
        if scenario not in found:
            folder = tmp_path_factory.mktemp("unkilled")
            typed = {item.partition("=")[0]: item for item in (*TINY, f"output_dir={folder}", *scenario)}
            found[scenario] = outcome(runner.fit(runner.load_config(list(typed.values()))).run_dir)
        return found[scenario]

    return of


@pytest.mark.parametrize("at_step", [1, 3, 5, 8, 11])
def test_a_resumed_run_equals_one_that_never_stopped(tiny, tmp_path, monkeypatch, unkilled, at_step):
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, at_step)
    assert outcome(resume(run_dir)) == unkilled(SCENARIO)
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["attempts"], record["error"]) == ("completed", 2, None)


ON_DEVICE = (
    *SCENARIO,
    "data.cache=device",
    "trainer.mixup_alpha=0.2",
    "data.train_transforms=[{name: random_crop, size: 32, padding: 4}, {name: random_horizontal_flip}]",
)


def test_crops_that_are_drawn_on_the_device_go_on_as_well(tiny, tmp_path, monkeypatch, unkilled):
    run_dir = begin(tiny(*ON_DEVICE), tmp_path, monkeypatch, 13)
    assert outcome(resume(run_dir)) == unkilled(ON_DEVICE)
    assert unkilled(ON_DEVICE) != unkilled(SCENARIO)


restore_progress = TrainingState._restore_progress


def without(field: str) -> Callable[[TrainingState, Checkpoint], None]:
    def forgetful(state: TrainingState, checkpoint: Checkpoint) -> None:
        restore_progress(state, checkpoint)
        setattr(state.progress, field, getattr(Progress(), field))

    return forgetful


def nothing(*_: object) -> None:
    pass


MUTATIONS = {
    **{part: (f"_restore_{part}", nothing) for part in ("model", "optimizer", "ema", "meter")},
    **{f"progress.{field}": ("_restore_progress", without(field)) for field in ("epoch", "position", "step")},
}


def test_no_restored_part_is_without_such_a_test():
    # Of the scaler and of the best see below.
    tried = {method for method, _ in MUTATIONS.values()} | {"_restore_scaler"}
    assert {name for name in vars(TrainingState) if name.startswith("_restore")} == tried


@pytest.mark.parametrize("name", MUTATIONS)
def test_leaving_out_any_restored_part_is_noticed(tiny, tmp_path, monkeypatch, unkilled, name):
    # Killed in the third epoch, after a checkpoint in its middle.
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, 13)
    monkeypatch.setattr(TrainingState, *MUTATIONS[name])
    assert is_noticed(run_dir, unkilled(SCENARIO))


@pytest.mark.parametrize("field", ["best", "lowest_val_loss", "epochs_without_improvement"])
def test_leaving_out_the_best_and_patience_is_noticed(tiny, tmp_path, monkeypatch, unkilled, field):
    run_dir = begin(tiny(*PATIENCE), tmp_path, monkeypatch, 13)
    intact = outcome(resume_copy(run_dir, tmp_path))
    assert intact == unkilled(PATIENCE)
    monkeypatch.setattr(TrainingState, "_restore_progress", without(field))
    assert is_noticed(run_dir, unkilled(PATIENCE))


DRAWS = (*SMALL, "trainer.epochs=2", "trainer.checkpoint_every=2")


def a_generator_of_the_process(*_: object, counter: list[int]) -> int:
    """Instead of a key of seed, epoch and position: goes on from draw to draw, and begins anew with the process."""
    counter[0] += 1
    return counter[0]


@pytest.mark.parametrize("is_left_out", [False, True])
def test_a_generator_whose_state_is_left_out_is_noticed(tiny, tmp_path, monkeypatch, is_left_out):
    """There is no generator state to restore because draws are keyed; a generator of the process would be noticed."""

    def begin_process() -> None:
        if is_left_out:
            monkeypatch.setattr("runner.trainer.step.key", partial(a_generator_of_the_process, counter=[0]))

    begin_process()
    unkilled = outcome(runner.fit(runner.load_config(tiny(*DRAWS, f"output_dir={tmp_path}/whole"))).run_dir)
    begin_process()
    run_dir = begin(tiny(*DRAWS), tmp_path, monkeypatch, 3)
    begin_process()
    assert (outcome(resume(run_dir)) == unkilled) is not is_left_out


@pytest.mark.parametrize("is_left_out", [False, True])
def test_the_scaler_of_fp16_goes_on(tiny, tmp_path, monkeypatch, is_left_out):
    """On the CPU no run uses it; switched on, its factor decides bits as soon as it is no power of two."""

    def scaler(device: str, **_: object) -> torch.amp.GradScaler:
        return real(device, init_scale=3.0, growth_factor=1.5, growth_interval=4, enabled=True)

    real = torch.amp.GradScaler
    monkeypatch.setattr("torch.amp.GradScaler", scaler)
    scenario = (*SCENARIO, "trainer.epochs=2", "trainer.keep=9")
    whole = runner.fit(runner.load_config(tiny(*scenario, f"output_dir={tmp_path}/whole"))).run_dir
    run_dir = begin(tiny(*scenario), tmp_path, monkeypatch, 7)
    if is_left_out:
        monkeypatch.setattr(TrainingState, "_restore_scaler", nothing)
    resume(run_dir)
    saved = [last_state(folder)["scaler"] for folder in (whole, run_dir)]
    assert saved[0]["scale"] == 3.0 * 1.5**2
    assert (saved[0] == saved[1]) is not is_left_out
    assert (outcome(whole) == outcome(run_dir)) is not is_left_out


@pytest.mark.parametrize("is_scaled_first", [False, True])
def test_a_run_goes_on_in_fp16_or_leaves_it(tiny, tmp_path, monkeypatch, is_scaled_first):
    def scaler(device: str, **_: object) -> torch.amp.GradScaler:
        return real(device, init_scale=4.0, enabled=is_scaled)

    real, is_scaled = torch.amp.GradScaler, is_scaled_first
    monkeypatch.setattr("torch.amp.GradScaler", scaler)
    run_dir = begin(tiny(), tmp_path, monkeypatch, 3)
    is_scaled = not is_scaled_first
    resume(run_dir)
    assert json.loads((run_dir / "run.json").read_text())["status"] == "completed"
    assert last_state(run_dir)["scaler"].get("scale") == (4.0 if is_scaled else None)


def last_state(run_dir: Path) -> dict:
    store = CheckpointStore(run_dir / "checkpoints", keep=2)
    return store.load(store.pointed("last")).state


def resume_copy(run_dir: Path, tmp_path: Path) -> Path:
    import shutil

    return resume(Path(shutil.copytree(run_dir, tmp_path / "copy")))


def is_noticed(run_dir: Path, expected: dict) -> bool:
    try:
        return outcome(resume(run_dir)) != expected
    except (AssertionError, RunnerError):
        return True


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(tiny, tmp_path, monkeypatch, unkilled, caplog):
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, 9)
    newest = max((run_dir / "checkpoints").glob("0*"))
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert outcome(resume(run_dir)) == unkilled(SCENARIO)
    assert f"{file} is damaged" in caplog.text


def test_without_any_checkpoint_it_starts_from_the_start(tiny, tmp_path, monkeypatch, unkilled):
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, 0)
    assert not (run_dir / "checkpoints" / "last").exists()
    assert outcome(resume(run_dir)) == unkilled(SCENARIO)


def test_names_that_are_typed_replace_and_others_stay(tiny, tmp_path, monkeypatch):
    named = ("run.name=first", "run.notes=why", "run.tags={set: v1, seed: 3}")
    run_dir = begin(tiny(*named), tmp_path, monkeypatch, at_step=3)
    rename_run(run_dir, group="later", notes="because", tags={"ok": True})
    ready = preflight(load_saved(run_dir, ["run.name=second", "run.tags.set=v2"]))
    attempt = Attempt(is_resumed=True, overrides=("run.name=second", "run.tags.set=v2"))
    launch(ready, Training(attempt=attempt), folder=run_dir)
    record = read_record(run_dir)
    assert {key: record[key] for key in NAMES} == {
        "name": "second",
        "group": "later",
        "tags": {"set": "v2", "seed": 3, "ok": True},
        "notes": "because",
    }


def swap(one, other):
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def test_other_classes_and_other_images_are_refused(tmp_path, tiny, monkeypatch):
    from PIL import Image

    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(8):
                Image.new("RGB", (32, 32), (number, 0, 0)).save(tmp_path / "data" / split / name / f"{number}.png")
    overrides = [item for item in tiny("trainer.checkpoint_every=1") if not item.startswith("data")]
    folder = ["data=folder", f"data.root={tmp_path / 'data'}", "data.image_size=32", "data.batch_size=8"]
    run_dir = begin([*overrides, *folder], tmp_path, monkeypatch, 2)

    moved = (tmp_path / "data").rename(tmp_path / "moved")
    Image.new("RGB", (32, 32)).save(moved / "train" / "a" / "9.png")
    with pytest.raises(CheckpointError, match=r"other images than the run was started with.*resume\.allow=\[data\]"):
        resume(run_dir, f"data.root={moved}")
    (moved / "train" / "a" / "9.png").unlink()
    one, other = moved / "train" / "a" / "1.png", moved / "train" / "b" / "2.png"
    swap(one, other)
    with pytest.raises(CheckpointError, match=r"data\.train: files of its images h.*resume\.allow=\[data\]"):
        resume(run_dir, f"data.root={moved}")
    swap(one, other)
    for split in ("train", "val"):
        (moved / split / "b").rename(moved / split / "c")
    with pytest.raises(CheckpointError, match=r"gone \['b'\], new \['c'\]"):
        resume(run_dir, f"data.root={moved}")
    for split in ("train", "val"):
        (moved / split / "c").rename(moved / split / "b")
    resume(run_dir, f"data.root={moved}")  # the very same data elsewhere


@pytest.mark.parametrize(
    ("overrides", "allow", "refused"),
    [
        (["data.workers=3", "trainer.print_every=7", "trainer.keep=9"], [], []),
        (["trainer.epochs=9"], [], []),
        (["model.stem=small", "data.batch_size=4"], [], ["model.stem", "data.batch_size"]),
        (["optimizer=adamw"], ["optimizer"], ["optimizer.name"]),
        (["optimizer.lr=1.0", "seed=2"], ["optimizer.lr", "seed"], ["seed"]),
        (["trainer.ema_decay=0.9"], ["trainer"], ["trainer.ema_decay"]),
        (["optimizer.layer_decay=0.5"], [], ["optimizer.layer_decay"]),
        (["optimizer.groups=[{part: head}]", "optimizer.layer_decay=0.5"], ["optimizer"], []),
        (["trainer.epochs=1"], [], ["trainer.epochs"]),
    ],
)
def test_changes_are_judged(tiny, tmp_path, overrides, allow, refused):

    saved = runner.load_config(tiny("model=resnet18"))
    (tmp_path / "config.yaml").write_text(saved.to_yaml())
    wanted = load_saved(tmp_path, overrides)
    try:
        notes = check_changes(saved, wanted, finished_epochs=2, allow=allow)
    except ConfigError as error:
        assert set(refused) <= {problem.key for problem in error.problems}
        assert refused
    else:
        assert refused == []
        assert len(notes) >= len(overrides)


CHANGES = (
    "optimizer.lr=0.001",
    "optimizer.weight_decay=0",
    "data.batch_size=4",
    "data.last_batch=drop",
    "schedule.power=1",
    "trainer.monitor=val_loss",
    "trainer.clip_norm=1",
    "trainer.label_smoothing=0.1",
    "trainer.mixup_alpha=0.2",
    "trainer.freeze_backbone_epochs=1",
    "trainer.accumulate_steps=2",
    "trainer.epochs=5",
    "trainer.precision=bf16",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_allowed_really_goes_on(tiny, tmp_path, monkeypatch, change):
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, 8)
    saved, wanted = load_saved(run_dir), load_saved(run_dir, [change])
    check_changes(saved, wanted, finished_epochs=1, allow=["optimizer", "data", "schedule", "trainer"])
    resume(run_dir, change)
    record = run_folder.read_record(run_dir)
    assert record["status"] == "completed"
    assert record["best"]["metric"] == wanted.trainer.monitor


@pytest.mark.parametrize("seam", ["check", "point", "prune"])
def test_a_kill_at_each_seam_of_a_save_loses_nothing(tiny, tmp_path, monkeypatch, unkilled, seam):
    """Killed within the save of the first epoch's checkpoint, which is the best one."""

    class Gone(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Gone

    scenario = (*SCENARIO, "trainer.keep=1", "trainer.checkpoint_every=5")
    targets = {"check": "runner.run.checkpoint.check_written", "point": "runner.run.checkpoint.CheckpointStore.point"}
    with monkeypatch.context() as patch:
        patch.setattr(targets.get(seam, "runner.run.checkpoint.CheckpointStore.prune"), die)
        # In the thread nothing survives a kill: it ends where it is.
        patch.setattr("threading.excepthook", lambda _: None)
        run_dir = begin(tiny(*scenario), tmp_path, monkeypatch, 6)
    assert outcome(resume(run_dir)) == unkilled(scenario)
    assert CheckpointStore(run_dir / "checkpoints", keep=1).pointed("best") is not None


def test_a_row_that_was_written_before_the_kill_is_not_written_twice(tiny, tmp_path, monkeypatch, unkilled):
    """The checkpoint of the epoch's last step exists, the row too, but not yet the checkpoint of the finished epoch."""
    scenario = (*SCENARIO, "trainer.checkpoint_every=5")
    save, calls = Trainer.save, []

    def dying(trainer: Trainer) -> None:
        calls.append(trainer.state.progress.epoch)
        if trainer.state.progress.epoch == 1:
            trainer.writer.wait()
            raise Killed
        save(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", dying)
        with pytest.raises(Killed):
            runner.fit(runner.load_config(tiny(*scenario)))
    (record,) = tmp_path.glob("outputs/*/*/run.json")
    assert len((record.parent / "metrics.jsonl").read_text().splitlines()) == 1
    assert outcome(resume(record.parent)) == unkilled(scenario)


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_best_is_put_aside_and_the_best_of_what_is_left_takes_its_place(tiny, tmp_path, monkeypatch, caplog):
    run_dir = begin(tiny(*PATIENCE, "trainer.keep=9"), tmp_path, monkeypatch, at_step=16)
    store = CheckpointStore(run_dir / "checkpoints", keep=9)
    damaged = store.pointed("best")
    assert damaged == "0001-00000005", "nothing is learnt, and a tie keeps the earlier"
    flip_a_byte(store.folder / damaged / "model.safetensors")
    resume(run_dir)
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "completed"
    (told,) = record["damaged"]
    assert (told["checkpoint"], told["instead"]) == (damaged, "0002-00000010")
    assert "it was the best, and is put aside: the best of the others is 0002-00000010" in caplog.text
    assert record["best"]["epoch"] == 2
    assert store.pointed("best") == "0002-00000010"
    assert len(list(store.folder.glob(f"damaged-{damaged}-*"))) == 1
    packaged = sha256_of(run_dir / "model" / "model.safetensors")
    assert packaged == sha256_of(store.folder / "0002-00000010" / "model.safetensors")
    assert read_package(run_dir).card.best["epoch"] == 2


def test_a_best_that_is_found_damaged_in_the_end_is_replaced_too(tiny, tmp_path, monkeypatch):
    package = record.package_best

    def damaged_before(folder: RunFolder, assembled: Assembled) -> Best:
        best = assembled.trainer.state.progress.best
        flip_a_byte(folder.checkpoints / best.checkpoint / "model.safetensors")
        return package(folder, assembled)

    monkeypatch.setattr("runner.training.train.package_best", damaged_before)
    result = runner.fit(runner.load_config(tiny(*PATIENCE, "trainer.keep=9")))
    assert result.best.epoch == 2
    found = json.loads((result.run_dir / "run.json").read_text())
    assert (found["status"], found["best"]["epoch"], len(found["damaged"])) == ("completed", 2, 1)
    evaluated = json.loads((result.run_dir / "evaluation" / "metrics.json").read_text())["weights"]
    assert (evaluated["epoch"], evaluated["sha256"]) == (2, sha256_of(result.run_dir / "model" / "model.safetensors"))


def test_a_best_without_another_that_is_known_is_found_anew(tiny, tmp_path, monkeypatch):
    run_dir = begin(tiny(*PATIENCE), tmp_path, monkeypatch, at_step=8)
    flip_a_byte(run_dir / "checkpoints" / "0001-00000005" / "model.safetensors")
    resume(run_dir)
    found = json.loads((run_dir / "run.json").read_text())
    assert (found["status"], found["damaged"][0]["instead"], found["best"]["epoch"]) == ("completed", None, 2)


def test_a_resumed_run_needs_no_weights_to_start_from(tiny, tmp_path, monkeypatch):
    """Those that it once started from may be gone, or be another's to name."""
    started_from = tmp_path / "started_from.safetensors"
    config = runner.load_config(tiny(*SCENARIO))
    save_file(dict(build_architecture(config.model, 4).state_dict()), started_from)
    scenario = (*SCENARIO, f"model.weights={started_from}")
    whole = outcome(runner.fit(runner.load_config(tiny(*scenario))).run_dir)
    run_dir = begin(tiny(*scenario, f"output_dir={tmp_path}/cut/outputs"), tmp_path / "cut", monkeypatch, at_step=8)

    def read(*_: object) -> None:
        raise AssertionError("the weights are those of the checkpoint")

    monkeypatch.setattr("runner.model.build.read_weights_file", read)
    assert outcome(resume(run_dir)) == whole


STATES: dict[str, Callable[[dict], object]] = {
    "progress": lambda state: state.update(progress=[]),
    "no progress": lambda state: state.pop("progress"),
    "negative epoch": lambda state: state["progress"].update(epoch=-1),
    "huge step": lambda state: state["progress"].update(step=10**30),
    "surplus": lambda state: state["progress"].update(more=1),
    "best out": lambda state: state["progress"]["best"].update(checkpoint="../../x"),
    "best metric": lambda state: state["progress"]["best"].update(metric="__class__"),
    "position": lambda state: state["progress"].update(position=3),
    "far position": lambda state: state["progress"].update(position=10**9),
    "digest": lambda state: state["meter"].update(samples_digest=5),
    "meter": lambda state: state.update(meter=None),
    "threads": lambda state: state["numerics"].update(num_threads=10**9),
    "precision": lambda state: state["numerics"].update(precision="fp8"),
    "numerics": lambda state: state.pop("numerics"),
    "classes": lambda state: state.update(classes=3),
    "scaler": lambda state: state.update(scaler="x"),
    "format": lambda state: state.update(format="one"),
    "rate": lambda state: state.update(learning_rate=None),
}


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> Path:
    from tests.conftest import TINY

    folder = tmp_path_factory.mktemp("cut")
    with pytest.MonkeyPatch.context() as patch:
        typed = {item.partition("=")[0]: item for item in (*TINY, *SCENARIO, f"output_dir={folder}/outputs")}
        return begin(list(typed.values()), folder, patch, at_step=8)


@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_a_state_of_another_form_is_refused_by_name(cut, tmp_path, change):
    run_dir = Path(shutil.copytree(cut, tmp_path / "run"))
    folder = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()
    state = json.loads((folder / "state.json").read_text())
    change(state)
    (folder / "state.json").write_text(json.dumps(state))
    write_manifest(folder)
    before = (run_dir / "run.json").read_text()
    with pytest.raises(CheckpointError):
        resume(run_dir)
    assert (run_dir / "run.json").read_text() == before


@pytest.mark.parametrize("key", ["conv.weight/momentum_buffer", "conv.weight/../x", "conv.weight/step"])
def test_an_optimizer_state_of_another_form_is_refused_by_name(cut, tmp_path, key):
    run_dir = Path(shutil.copytree(cut, tmp_path / "run"))
    folder = run_dir / "checkpoints" / (run_dir / "checkpoints" / "last").read_text().strip()
    tensors = load_file(folder / "optimizer.safetensors")
    if key in tensors:
        tensors = {name: value.clone() for name, value in tensors.items() if name != key}
    else:
        tensors[key] = torch.zeros(1)
    save_file(tensors, folder / "optimizer.safetensors")
    write_manifest(folder)
    with pytest.raises(CheckpointError, match="optimizer state"):
        resume(run_dir)


def test_all_checkpoints_damaged_is_no_reason_to_start_over(tiny, tmp_path, monkeypatch):
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, 9)
    for manifest in (run_dir / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    before = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    with pytest.raises(CheckpointError, match=r"all 3 checkpoints are damaged"):
        resume(run_dir)
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == before


def test_a_refused_resume_changes_nothing(tiny, tmp_path, monkeypatch, unkilled):
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, 9)
    before = (run_dir / "run.json").read_bytes()
    with pytest.raises(CheckpointError):
        resume(run_dir, "seed=2")
    assert (run_dir / "run.json").read_bytes() == before
    assert outcome(resume(run_dir)) == unkilled(SCENARIO)


@pytest.mark.parametrize(
    ("allow", "meant"),
    [("optimiser.lr", "optimizer.lr"), ("lr", "optimizer.lr"), ("dat", "data"), ("everything", None)],
)
def test_an_unknown_key_to_allow_is_refused_with_the_nearest(tiny, allow, meant):
    saved = runner.load_config(tiny())
    with pytest.raises(ConfigError) as caught:
        check_changes(saved, saved, finished_epochs=0, allow=["data", "optimizer.lr", allow])
    hint = f"; did you mean {meant}?" if meant else ""
    assert str(caught.value) == f"resume.allow = '{allow}': no such key or group{hint}"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("resume.alow=[data]", 'resume.alow = ["data"]: no such key; did you mean resume.allow?'),
        ("resume.allow=data", "resume.allow = 'data': must be a list"),
        ("resume.allow=[1]", "resume.allow.0 = 1: must be text"),
        ("resume=x", "resume = 'x': must be a group of keys"),
        ("run=''", "run = '': must not be empty"),
    ],
)
def test_the_keys_of_the_command_are_judged_in_the_same_words(typed, message):
    with pytest.raises(ConfigError) as caught:
        read_call("resume", ResumeCall, ["run=somewhere", typed])
    assert str(caught.value) == f"{message} [from the command line]"


def test_a_stretched_schedule_is_said(tiny, tmp_path):
    saved = runner.load_config(tiny())
    longer = saved.model_copy(update={"trainer": saved.trainer.model_copy(update={"epochs": 9})})
    (note,) = check_changes(saved, longer, finished_epochs=0, allow=())
    assert "the curve of the poly schedule is stretched over 9 epochs" in note
    constant = runner.load_config(tiny("schedule=constant"))
    longer = constant.model_copy(update={"trainer": constant.trainer.model_copy(update={"epochs": 9})})
    assert check_changes(constant, longer, finished_epochs=0, allow=()) == ["trainer.epochs: 2 → 9"]


def test_a_full_disk_keeps_the_run_and_its_last_good_checkpoint(tiny, tmp_path, monkeypatch):
    import collections

    usage = collections.namedtuple("usage", "total used free")
    answers = iter([usage(10, 0, 10**12)])
    monkeypatch.setattr("runner.run.checkpoint_writer.shutil.disk_usage", lambda _: next(answers, usage(10, 10, 1000)))
    with pytest.raises(OutputError, match=r"a checkpoint needs .* MB, but the disk has .*resume the run"):
        runner.fit(runner.load_config(tiny()))
    (record_file,) = tmp_path.glob("outputs/*/*/run.json")
    record = json.loads(record_file.read_text())
    assert (record["status"], record["error"]["name"]) == ("failed", "OutputError")
    assert CheckpointStore(record_file.parent / "checkpoints", keep=2).newest_valid()[0].name == "0001-00000005"
    monkeypatch.undo()
    resume(record_file.parent)
    assert run_folder.read_record(record_file.parent)["status"] == "completed"


@pytest.mark.parametrize(("first", "then"), [(3, "null"), (8, "null"), (10, "null"), (13, "17")])
def test_a_run_with_more_steps_goes_on_in_the_middle_of_the_epoch(tiny, unkilled, first, then):
    """As if it had never had a last step: the row of the epoch that was cut short is written anew, for all of it."""
    scenario = (*SCENARIO, "trainer.keep=1", "trainer.patience=null")
    run_dir = runner.fit(runner.load_config(tiny(*scenario, f"trainer.max_steps={first}"))).run_dir
    cut = outcome(run_dir)
    assert [row["step"] for row in cut["rows"]] == [*range(5, first, 5), first]
    resume(run_dir)  # nothing is left to do
    assert outcome(run_dir) == cut
    resume(run_dir, f"trainer.max_steps={then}")
    never_cut = scenario if then == "null" else (*scenario, f"trainer.max_steps={then}")
    assert outcome(run_dir) == unkilled(never_cut)
    record = run_folder.read_record(run_dir)
    assert (record["status"], record["attempts"]) == ("completed", 3)


def test_a_kill_in_the_evaluation_of_the_last_step_loses_nothing(tiny, monkeypatch, tmp_path, unkilled):
    scenario = (*SCENARIO, "trainer.max_steps=8")

    def dying(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("runner.trainer.metrics_log.Recorder.end", dying)  # all is written but that it is completed
        with pytest.raises(Killed):
            runner.fit(runner.load_config(tiny(*scenario)))
    (record,) = tmp_path.glob("outputs/*/*/run.json")
    assert outcome(resume(record.parent)) == unkilled(scenario)


def test_a_resumed_run_lets_go_of_its_checkpoint_before_it_trains(tiny, tmp_path, monkeypatch):
    """Its tensors are as large as the weights and the optimizer's state."""
    run_dir = begin(tiny(*SCENARIO), tmp_path, monkeypatch, 8)
    found, alive = [], []
    load, fit = CheckpointStore.load, Trainer.fit

    def loading(store: CheckpointStore, name: str) -> Checkpoint:
        checkpoint = load(store, name)
        found.append(weakref.ref(checkpoint))
        return checkpoint

    def fitting(trainer: Trainer) -> None:
        gc.collect()
        alive.extend(reference() is not None for reference in found)
        fit(trainer)

    monkeypatch.setattr(CheckpointStore, "load", loading)
    monkeypatch.setattr(Trainer, "fit", fitting)
    resume(run_dir)
    assert alive == [False]


def test_a_change_is_told_without_what_comes_from_the_environment(tiny, tmp_path, monkeypatch):

    monkeypatch.setenv("GATHERED_AT", "sesame.example:29500")
    (tmp_path / "config.yaml").write_text(runner.load_config(tiny("dist.rendezvous=${oc.env:GATHERED_AT}")).to_yaml())
    saved = load_saved(tmp_path, only_reads=True)
    assert saved.dist.rendezvous == "sesame.example:29500"
    other = load_saved(tmp_path, ["dist.rendezvous=null"])
    assert check_changes(saved, other, finished_epochs=0, allow=()) == ["dist.rendezvous: ${oc.env:GATHERED_AT} → None"]
