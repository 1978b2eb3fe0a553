"""The promises about structure that a reader relies on."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "runner").rglob("*.py"))
BUILDERS = {
    "build_model",
    "build_architecture",
    "build_optimizer",
    "train_transform",
    "eval_transform",
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def test_assemble_is_the_only_importer_of_the_builders():
    # In two modules: what is trained, and what was.
    importers = {
        (module_name(path), name)
        for path in SOURCES
        for module, name in imports(path)
        if name in BUILDERS and module.startswith("runner")
    }
    within = {item for item in importers if item[0].startswith(("runner.model", "runner.data"))}
    assert {importer for importer, _ in importers - within} == {
        "runner.training.assemble",
        "runner.training.assemble_trained",
        "runner.training.teacher",
    }
    assert {name for _, name in importers} >= BUILDERS


FLOORS = (
    {"base"},
    {"config"},
    {"dist"},
    {"data", "model", "optimizer", "schedule"},
    {"run"},
    {"trainer"},
    {"evaluation"},
    {"training"},
    {"launch"},
    {"tools"},
    {"cli"},
    {"library", "", "__main__"},
)
"""From the ground to the roof; see "The house: rooms on floors" in CONTRIBUTING.md."""


def floor_of(module: str) -> int:
    room = module.split(".")[1] if "." in module else ""
    (floor,) = (number for number, rooms in enumerate(FLOORS) if room in rooms)
    return floor


def test_imports_go_down():
    for path in SOURCES:
        own = module_name(path)
        for module, name in imports(path):
            if module == "runner":
                module = f"runner.{name}" if any(name in rooms for rooms in FLOORS) else module  # noqa: PLW2901
            if module == "runner" or module.startswith("runner."):
                assert floor_of(module) <= floor_of(own), f"{own} imports {module}, which lies above"


def test_builders_of_the_same_floor_know_nothing_of_each_other():
    for path in SOURCES:
        room = module_name(path).split(".")[1:2]
        if room and room[0] in FLOORS[3]:
            others = {f"runner.{other}" for other in FLOORS[3] - set(room)}
            found = {module for module, _ in imports(path) if module.startswith(tuple(others))}
            assert not found, f"{path} imports {found}"


def test_few_things_lie_side_by_side():
    assert len(list((ROOT / "runner").glob("*.py"))) <= 10
    folders = {path.parent for path in SOURCES}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("[!_]*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > 12} == {}


def test_no_pickle_goes_over_the_network():
    """What is handed to processes that we start is pickled in `pickled_file.py`; what others may write is JSON."""
    for path in SOURCES:
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not names & {"all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"}, path
        is_handing = path == ROOT / "runner" / "launch" / "elastic" / "pickled_file.py"
        assert is_handing or not {"pickle", "cloudpickle"} & {module for module, _ in imports(path)}, path


def test_only_the_console_prints():
    for path in SOURCES:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert "print" not in names, path


@pytest.mark.parametrize(
    "module",
    [
        "runner",
        "runner.cli.front_door",
        "runner.config.compose",
        "runner.launch.plan",
        "runner.launch.preflight",
        "runner.config.reference",
        "runner.cli.commands.evaluate",
        "runner.cli.commands.predict",
    ],
)
def test_help_and_refusals_import_no_torch(module):
    code = f"import {module}, sys; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("argv", [["trainer.epchos=5"], ["--help"]])
def test_a_mistake_in_the_config_is_told_without_the_code_for_data(argv):
    code = "import sys; from runner.__main__ import main; main(); print('numpy' in sys.modules, 'PIL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


def test_functions_fit_on_a_screen():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 50, f"{path}:{node.lineno} {node.name}"
