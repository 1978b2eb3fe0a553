"""The generated reference says all that the schema and conf/ say, and the files in docs/ are up to date."""

from __future__ import annotations

import copy
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from runner.config import CONF_DIR, group_options
from runner.config.hydra_compose import ComposedJob
from runner.config.reference import config_page, experiment_schema, help_text
from runner.config.reference.editor import as_text
from runner.config.reference.keys import descriptions, read_experiments, read_groups, read_transforms
from runner.config.reference.words import allowed
from runner.config.schema import Config
from runner.config.schema.base import variants_of
from runner.config.schema.transforms import Normalize, Transform
from tests.composed import compose_jobs

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"train": "train an experiment", "validate": "check what train would refuse"}
GROUPS = [group for group in read_groups() if group.name]
KEYS = {key.name: key for group in read_groups() for variant in group.variants for key in variant.keys}


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Every class of the schema with the prefix of its keys."""
    yield "", Config
    for name, field in Config.model_fields.items():
        yield from ((f"{name}.", section) for section in variants_of(field.annotation))
    yield "data.normalize.", Normalize
    yield from (("", section) for section in variants_of(Transform))


FIELDS = [(prefix, section, name) for prefix, section in sections() for name in section.model_fields]


@pytest.mark.parametrize("name", ["config.md", "config.schema.json"])
def test_the_files_in_docs_are_up_to_date(name):
    fresh = {"config.md": config_page(), "config.schema.json": as_text(experiment_schema())}[name]
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == fresh, "run `make docs`"


def test_one_command_writes_both_files(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "runner.config.reference"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in ("config.md", "config.schema.json"):
        assert (tmp_path / "docs" / name).read_bytes() == (ROOT / "docs" / name).read_bytes()


@pytest.mark.parametrize(
    ("prefix", "section", "name"), FIELDS, ids=[f"{section.__name__}.{name}" for _, section, name in FIELDS]
)
def test_each_field_has_a_description_that_help_and_page_show(prefix, section, name):
    description = descriptions(section).get(name)
    assert description, f"a docstring under {section.__name__}.{name} is missing"
    words = " ".join(description.split())
    page, text = " ".join(config_page_text().split()), " ".join(wide_help().split())
    assert words in page
    if (prefix, name) != ("", "name"):  # In help the name of a transform heads its lines.
        assert words in text
        assert re.search(rf"(^|\s){re.escape(prefix + name)}([=:\s])", wide_help())


@functools.cache
def config_page_text() -> str:
    return (ROOT / "docs" / "config.md").read_text(encoding="utf-8")


@functools.cache
def wide_help() -> str:
    return help_text(COMMANDS, width=100_000)


@pytest.mark.parametrize("group", GROUPS, ids=[group.name for group in GROUPS])
def test_help_has_each_option_of_each_group(group):
    listed = [option for variant in group.variants for option in variant.options]
    assert sorted(listed) == group_options(group.name)
    block = next(block for block in help_text(COMMANDS).split("\n\n") if block.startswith(f"{group.name}="))
    for option in listed:
        assert re.search(rf"\b{option}\b", block)
    if len(listed) > 1:
        assert f"{group.default_option} (default)" in block


def test_help_has_commands_flags_and_experiments():
    text = help_text(COMMANDS)
    for word in (*COMMANDS, *COMMANDS.values(), *group_options("experiment")):
        assert word in text
    for flag in ("--multirun", "--config-dir", "--cfg job", "--info", "--shell-completion install=bash"):
        assert flag in text


def test_help_on_a_command_names_it_alone():
    text = help_text(COMMANDS, "validate")
    assert text.startswith("Check what train would refuse\n\nUsage: python -m runner validate ")
    assert "train an experiment" not in text


def test_help_on_evaluate_and_export_shows_only_what_they_take():
    about = {"evaluate": "measure a run", "export": "write a run"}
    evaluate, export = (" ".join(help_text(about, command).split()) for command in about)
    for words in (
        "checkpoint=best",
        "weights=auto",
        "split=val",
        "data=OPTION",
        "data.batch_size Images per",
        "trainer · ",
    ):
        assert words in evaluate
    assert "what else is typed must be of data.root, data.train, data.val or data.test, and changes" in export
    assert "Usage: python -m runner export [KEY=VALUE …]" in export
    assert "data.root Folder of the data set" in export
    for words in (
        "optimizer.lr",
        "model.weights",
        "schedule.power",
        "seed=1",
        "experiment=NAME",
        "(default)",
        "data.source Where",
    ):
        assert words not in evaluate
    for words in ("data.batch_size", "trainer.epochs", "optimizer."):
        assert words not in export


@pytest.mark.parametrize("width", [80, 100, 140])
def test_help_keeps_to_the_width(width):
    lines = help_text(COMMANDS, width=width).splitlines()
    # What can't be broken stays whole: usage, titles and a default that is longer than its column.
    broken = [line for line in lines if line.startswith("   ") or re.match(r"  \S+ {2,}\S", line)]
    assert len(broken) > 100
    assert max(map(len, broken)) <= width


def test_defaults_are_those_of_the_composed_config():
    jobs: list[ComposedJob] = []
    compose_jobs([], jobs.append)
    checked = 0
    for group in read_groups():
        variant = next(variant for variant in group.variants if group.default_option in variant.options)
        position = variant.options.index(group.default_option)
        for key in variant.keys:
            refers_to_another = key.name.endswith(("_transforms", ".eval_image_size"))
            if key.defaults and not refers_to_another:
                node: Any = jobs[0].config.model_dump(mode="json")
                for part in key.name.split("."):
                    node = node[part]
                assert key.defaults[position] == node, key.name
                checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("trainer.epochs=5", "[whole number ≥ 1]"),
        ("trainer.patience=3", "[whole number ≥ 1 or null]"),
        ("trainer.compile=false", "[true or false]"),
        ("trainer.precision=auto", "[auto, fp32, bf16 or fp16]"),
        ("trainer.ema_decay=null", "[number > 0 and < 1, or null]"),
        ("data.workers=auto", "[auto, or whole number ≥ 0 and ≤ 256]"),
        (
            "data.image_size=32",
            "[whole number ≥ 1 and ≤ 8192, or list of 2, each: whole number ≥ 1 and ≤ 8192; "
            "224 with data=folder, csv or synthetic]",
        ),
        (
            "optimizer.lr=0.01",
            "[number > 0; 0.001 with optimizer=adamw or muon; 2.0 with optimizer=lars; 0.005 with optimizer=lamb]",
        ),
        ("optimizer.name=sgd", "[sgd, adamw, lars, lamb or muon]"),
        ("optimizer.betas=[0.9, 0.999]", "[list of 2, each: number ≥ 0 and < 1]"),
        ("model.weights=null", "[text or null]"),
        ("model.name=…", "[text]"),
        ("seed=1", "[whole number ≥ 0 and < 2^63]"),
        ("sweep.dir=null", "[text or null]"),
    ],
)
def test_help_shows_default_and_what_is_allowed(left, right):
    line = next(line for line in wide_help().splitlines() if line.strip().startswith(left))
    assert line.endswith(right)


def test_keys_of_some_options_stand_under_a_line_that_says_so():
    lines = [line.strip() for line in wide_help().splitlines()]
    after = lines[lines.index("only where optimizer.name is adamw or lamb:") :]
    assert after[1].startswith("optimizer.betas=")
    assert "only where schedule.name is poly or cosine:" in lines


def test_the_page_has_a_table_for_each_variant_and_transform():
    page = config_page_text()
    for group in GROUPS:
        assert f"## `{group.name}`" in page
        if len(group.variants) > 1:
            for variant in group.variants:
                assert f"`{group.name}={variant.options[0]}`" in page
    for variant in read_transforms():
        assert f"### `{variant.tag}`" in page
    assert "| `optimizer.lr` | number > 0 | `0.001` | Peak learning rate for one process. |" in page
    assert "| `model.name` | text | must be given |" in page


def test_each_experiment_has_a_title():
    titles = read_experiments()
    assert sorted(titles) == group_options("experiment")
    assert all(title.endswith(".") for title in titles.values())


def test_descriptions_of_types_that_no_key_has_yet():
    assert allowed({"type": "array", "items": {"type": "string"}}, {}) == "list, each: text"
    assert allowed({"type": "number", "exclusiveMaximum": 0.5}, {}) == "number < 0.5"


# --- The JSON schema, checked by a reading of our own of the keywords that it uses. ---


def violations(node: dict[str, Any], value: Any, root: dict[str, Any], where: str = "") -> Iterator[str]:
    """Where a value breaks a schema. Knows the keywords that are used here, and no others."""
    known = {"$ref", "type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern"}
    known |= {"properties", "patternProperties", "additionalProperties", "required", "items", "additionalItems"}
    known |= {"minItems", "anyOf", "oneOf", "description", "title", "definitions", "$schema"}
    assert set(node) <= known, f"unknown keywords: {set(node) - known}"
    if "$ref" in node:
        yield from violations(root["definitions"][node["$ref"].rpartition("/")[2]], value, root, where)
    for kind, is_right in (("anyOf", lambda count: count >= 1), ("oneOf", lambda count: count == 1)):
        if kind in node:
            count = sum(not any(violations(choice, value, root, where)) for choice in node[kind])
            if not is_right(count):
                yield f"{where}: fits {count} of {len(node[kind])} choices"
    types = node.get("type", [])
    if types and not any(is_of(value, name) for name in ([types] if isinstance(types, str) else types)):
        yield f"{where}: is no {types}"
        return
    yield from limits(node, value, where)
    if isinstance(value, dict):
        yield from members(node, value, root, where)
    if isinstance(value, list):
        items = node.get("items", {})
        if len(value) < node.get("minItems", 0) or (isinstance(items, list) and len(value) > len(items)):
            yield f"{where}: has {len(value)} entries"
        for position, entry in enumerate(value):
            rule = items if isinstance(items, dict) else (items[position : position + 1] or [{}])[0]
            yield from violations(rule, entry, root, f"{where}.{position}")


def is_of(value: Any, name: str) -> bool:
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    if name in kinds:
        return isinstance(value, kinds[name])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (name == "number" or float(value).is_integer())


def limits(node: dict[str, Any], value: Any, where: str) -> Iterator[str]:
    if "const" in node and value != node["const"]:
        yield f"{where}: is not {node['const']}"
    if "enum" in node and value not in node["enum"]:
        yield f"{where}: is none of {node['enum']}"
    if isinstance(value, str) and "pattern" in node and not re.search(node["pattern"], value):
        yield f"{where}: does not match {node['pattern']}"
    if isinstance(value, int | float):
        below = value < node.get("minimum", value) or value <= node.get("exclusiveMinimum", value - 1)
        above = value > node.get("maximum", value) or value >= node.get("exclusiveMaximum", value + 1)
        if below or above:
            yield f"{where}: is out of range"


def members(node: dict[str, Any], value: dict[str, Any], root: dict[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where}.{name}: is missing" for name in node.get("required", []) if name not in value)
    for name, child in value.items():
        rules = [node.get("properties", {}).get(name)]
        rules += [rule for pattern, rule in node.get("patternProperties", {}).items() if re.search(pattern, name)]
        found = [rule for rule in rules if rule is not None]
        if not found and node.get("additionalProperties") is False:
            yield f"{where}.{name}: no such key"
        for rule in found:
            yield from violations(rule, child, root, f"{where}.{name}")


SCHEMA = experiment_schema()
EXPERIMENTS = sorted((CONF_DIR / "experiment").rglob("*.yaml"))


def judged(text: str) -> list[str]:
    return list(violations(SCHEMA, yaml.safe_load(text), SCHEMA))


@pytest.mark.parametrize("file", EXPERIMENTS, ids=[file.stem for file in EXPERIMENTS])
def test_the_editor_accepts_each_shipped_experiment_and_flags_any_slip_in_it(file):
    experiment = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert list(violations(SCHEMA, experiment, SCHEMA)) == []
    for group, section in experiment.items():
        if isinstance(section, dict):
            for name in section:
                wrong = copy.deepcopy(experiment)
                wrong[group][f"{name}x"] = wrong[group].pop(name)
                assert list(violations(SCHEMA, wrong, SCHEMA)) == [f".{group}.{name}x: no such key"]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "seed: 3",
        "trainer: {epochs: 5, patience: null, ema_decay: 0.999}",
        "trainer: {epochs: '${seed}'}",
        "model: {name: efficientnet_b0, weights: DEFAULT}",
        "model: {arguments: {width: 64, deep: {er: [1]}}}",
        "optimizer: {betas: [0.9, 0.95]}",
        "optimizer: {betas: ['${optimizer.momentum}', 0.95]}",
        "data: {normalize: {mean: [0.5, 0.5, 0.5]}}",
        "data: {train_transforms: [{name: resize, size: '${data.image_size}'}, {name: random_horizontal_flip}]}",
        "data: {workers: auto}",
        "defaults: [digits, _self_, {override /model: my_own_model}, {override /hydra/launcher: joblib}]",
        "hydra: {sweeper: {params: {seed: '1,2'}}}",
    ],
)
def test_the_editor_accepts_parts_of_a_config(text):
    assert judged(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "sead: 3",
        "seed: -1",
        "seed: one",
        "trainer: {epohcs: 5}",
        "trainer: {epochs: 0}",
        "trainer: {epochs: 2.5}",
        "trainer: {epochs: true}",
        "trainer: {epochs: null}",
        "trainer: {precision: bf61}",
        "trainer: 5",
        "model: resnet50",
        "optimizer: {betas: [0.9]}",
        "optimizer: {betas: [0.9, 0.9, 0.9]}",
        "optimizer: {betas: [0.9, 1.5]}",
        "optimizer: {name: adamw}",  # It follows from the option.
        "data: {source: folder}",
        "data: {workers: many}",
        "data: {normalize: {mean: 0.5}}",
        "data: {normalize: {means: [0.5, 0.5, 0.5]}}",
        "data: {train_transforms: [{name: resize}]}",
        "data: {train_transforms: [{name: resize, sise: 3}]}",
        "data: {train_transforms: [{name: rezise, size: 3}]}",
        "data: {train_transforms: {name: resize, size: 3}}",
        "defaults: [{override /modle: resnet50}]",
        "defaults: [{override model: resnet50}]",
        "defaults: {override /model: resnet50}",
    ],
)
def test_the_editor_flags_what_the_runner_refuses(text):
    assert judged(text) != []


def test_the_schema_is_one_that_all_editors_know():
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert json.loads(as_text(SCHEMA)) == SCHEMA
    assert "$defs" not in as_text(SCHEMA)


def test_the_schema_has_each_key_but_those_that_follow_from_the_option():
    for name in set(KEYS) - {"model.family", "data.source", "optimizer.name", "schedule.name"}:
        node = SCHEMA
        for part in name.split("."):
            node = node["properties"][part]
        assert '"description"' in as_text(node), name
