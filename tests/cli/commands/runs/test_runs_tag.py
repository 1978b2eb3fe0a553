import pytest

from runner.base.errors import CheckpointError, ConfigError
from runner.cli.commands.runs.tag import run
from runner.run.run_folder import read_record
from tests.made_runs import make_run


def test_names_are_added_changed_and_removed(tmp_path, capsys):
    folder = make_run(tmp_path / "a", tags={"draft": True, "set": "v1"}, group="old")
    before = read_record(folder)
    assert run([f"run={folder}", "set=v2", "seed=3", "~draft", "name=a base line", "tags.reviewed=true"]) == 0
    after = read_record(folder)
    assert after == before | {"name": "a base line", "tags": {"set": "v2", "seed": 3, "reviewed": True}}
    assert capsys.readouterr().out.splitlines() == [
        "name    a base line",
        "group   old",
        "tag     reviewed = True",
        "tag     seed = 3",
        "tag     set = v2",
    ]
    run([f"run={folder}", "notes=why"])
    assert read_record(folder) == after | {"notes": "why"}


def test_a_run_of_before_has_no_tags_yet(tmp_path):
    folder = make_run(tmp_path / "a")
    run([f"run={folder}", "set=v2"])
    assert read_record(folder)["tags"] == {"set": "v2"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "needs what to change"),
        (["~absent"], "the run has no tag 'absent'"),
        (["a b=1"], "a key has letters, digits and _"),
        (["name=''"], "must not be empty"),
        (["set=[1,2]"], "tags.set"),
        (["notes.x=1"], "notes"),
    ],
)
def test_a_wrong_call_changes_nothing(tmp_path, argv, message):
    folder = make_run(tmp_path / "a")
    before = (folder / "run.json").read_bytes()
    with pytest.raises(ConfigError, match=message):
        run([f"run={folder}", *argv])
    assert (folder / "run.json").read_bytes() == before


def test_a_folder_that_is_no_run_stays_as_it_is(tmp_path):
    with pytest.raises(CheckpointError, match="is no run folder"):
        run([f"run={tmp_path}", "a=b"])
    assert list(tmp_path.iterdir()) == []
