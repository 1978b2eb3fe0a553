from __future__ import annotations

import json
import os
import shutil
import sys
import time

import pytest

from runner.base.errors import CheckpointError, OutputError, RegistryError
from runner.base.files import locked
from runner.tools.registry import folder_registry
from runner.tools.registry.folder_registry import FolderRegistry
from tests.kills import killed_at
from tests.tools.registry.conftest import FACTS, small_draft

forks = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def check_whole(registry: FolderRegistry) -> None:
    """Each version is there with all its files, and each alias names one of them."""
    for name in registry.names():
        versions = registry.versions(name)
        assert versions == list(range(1, len(versions) + 1))
        for version in versions:
            folder = registry.package(name, version).parent
            record = json.loads((folder / "version.json").read_text())
            assert {*record["files"], "version.json", "README.md"} == {
                path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
            }
            assert (folder / "README.md").read_text() == f"# {name}, version {version}\n"
        assert set(registry.aliases(name).values()) <= set(versions)


def test_versions_are_numbered_by_name(registry):
    assert registry.names() == [] and registry.versions("birds") == []
    assert [registry.add(name, small_draft()) for name in ("birds", "birds", "ants", "birds")] == [1, 2, 1, 3]
    assert registry.names() == ["ants", "birds"]
    check_whole(registry)
    record = registry.read("birds", 2)
    assert (record.name, record.version, record.best) == ("birds", 2, FACTS["best"])
    assert record.lineage.git_commit == "a" * 40


def test_a_version_can_t_be_written_to(registry):
    registry.add("birds", small_draft())
    folder = registry.package("birds", 1).parent
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "README.md":
            assert file.stat().st_mode & 0o222 == 0, "its people fill in the card, and nothing else"


def test_a_draft_that_fails_leaves_nothing(registry, tmp_path):
    def fail(folder):
        (folder / "half").write_text("")
        raise RegistryError("no")

    draft = small_draft()
    object.__setattr__(draft, "write", fail)
    with pytest.raises(RegistryError):
        registry.add("birds", draft)
    assert list((tmp_path / "models" / "birds").iterdir()) == []


def test_the_number_of_a_deleted_version_that_an_alias_names_is_not_given_again(registry):
    for version in (1, 2):
        assert registry.add("birds", small_draft()) == version
    registry.set_alias("birds", "champion", 2)
    shutil.rmtree(registry.package("birds", 2).parent)
    assert registry.add("birds", small_draft()) == 3
    assert registry.aliases("birds") == {"champion": 2}


def test_an_alias_is_moved(registry):
    registry.add("birds", small_draft())
    registry.add("birds", small_draft())
    registry.set_alias("birds", "champion", 1, holder=None)
    registry.set_alias("birds", "old", 1)
    registry.set_alias("birds", "champion", 2, holder=1)
    assert registry.aliases("birds") == {"champion": 2, "old": 1}
    with pytest.raises(RegistryError, match=r"was set to version 2 meanwhile, .* it is version 1 that version 1 was"):
        registry.set_alias("birds", "champion", 1, holder=1)
    with pytest.raises(RegistryError, match=r"has no birds/3; versions are 1, 2"):
        registry.set_alias("birds", "champion", 3)
    with pytest.raises(RegistryError, match=r"has no model 'ants'"):
        registry.set_alias("ants", "champion", 1)
    assert registry.aliases("birds") == {"champion": 2, "old": 1}


@forks
def test_each_of_many_who_register_at_once_gets_a_version(registry):
    children = []
    for child in range(8):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                numbers = [registry.add("birds", small_draft(f"{child} {turn}".encode())) for turn in range(3)]
                for number, turn in zip(numbers, range(3), strict=True):
                    weights = registry.package("birds", number) / "model.safetensors"
                    assert weights.read_text() == f"{child} {turn}"
                registry.set_alias("birds", f"of-{child}", numbers[-1])
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 8
    assert registry.versions("birds") == list(range(1, 25))
    assert set(registry.aliases("birds")) == {f"of-{child}" for child in range(8)}
    check_whole(registry)


@forks
def test_a_kill_at_any_moment_of_a_registration_leaves_a_whole_registry(registry):
    registry.add("birds", small_draft())
    event_number = 1
    found = []
    while killed_at(event_number, lambda: registry.add("birds", small_draft(b"new"))):
        check_whole(registry)
        found.append(len(registry.versions("birds")))
        event_number += 1
    assert len(found) > 20
    assert {1, 2} <= set(found), "before it is there, and after"
    check_whole(registry)


@forks
def test_a_kill_at_any_moment_of_a_promotion_leaves_the_old_or_the_new_alias(registry):
    for _ in range(2):
        registry.add("birds", small_draft())
    registry.set_alias("birds", "champion", 1)
    event_number, found = 1, []
    while killed_at(event_number, lambda: registry.set_alias("birds", "champion", 2)):
        found.append(registry.aliases("birds")["champion"])
        event_number += 1
    assert found == sorted(found) and set(found) == {1, 2}
    assert registry.aliases("birds") == {"champion": 2}


@forks
def test_a_kill_at_any_moment_of_a_download_leaves_a_whole_copy_or_none(registry, tmp_path):
    registry.add("birds", small_draft())
    event_number, found = 1, []
    while killed_at(event_number, lambda: registry.download("birds", 1, tmp_path / "copy")):
        found.append((tmp_path / "copy").exists())
        if found[-1]:
            shutil.rmtree(tmp_path / "copy")
        event_number += 1
    assert len(found) > 10
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"README.md", "index.html", "model", "version.json"}
    check_whole(registry)


def test_what_was_abandoned_is_removed_after_a_day(registry, tmp_path):
    home = tmp_path / "models" / "birds"
    for name in (".new.1-aaaaaa.tmp", ".new.2-bbbbbb.tmp"):
        (home / name).mkdir(parents=True)
    long_ago = time.time() - 90_000
    os.utime(home / ".new.1-aaaaaa.tmp", (long_ago, long_ago))
    registry.add("birds", small_draft())
    assert sorted(path.name for path in home.iterdir()) == [".lock", ".new.2-bbbbbb.tmp", "1"]


def test_a_lock_that_is_held_for_long_is_said(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_registry, "_LOCK_WAIT_SECONDS", 0.0)
    with locked(tmp_path / "models" / "birds" / ".lock"), pytest.raises(RegistryError, match="has held its lock"):
        registry.add("birds", small_draft())
    assert registry.versions("birds") == []


@pytest.mark.parametrize("file", ["model/model.safetensors", "model/model.json"])
@pytest.mark.parametrize("spoil", ["longer", "other", "gone", "a FIFO", "a link"])
def test_a_file_that_is_not_what_was_registered_is_refused(registry, tmp_path, file, spoil):
    registry.add("birds", small_draft())
    path = registry.package("birds", 1).parent / file
    content = path.read_bytes()
    path.unlink()
    if spoil == "longer":
        path.write_bytes(content + b"x")
    elif spoil == "other":
        path.write_bytes(b"x" * len(content))
    elif spoil == "a FIFO":
        os.mkfifo(path)
    elif spoil == "a link":
        (tmp_path / "outside").write_bytes(content)
        path.symlink_to(tmp_path / "outside")
    for use in (
        lambda: registry.package("birds", 1),
        lambda: registry.download("birds", 1, tmp_path / "copy"),
        lambda: registry.set_alias("birds", "champion", 1),
    ):
        with pytest.raises((RegistryError, CheckpointError), match=r"SHA-256|is a FIFO|leads to"):
            use()
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name != "outside") == ["models"]
    assert registry.aliases("birds") == {}


def test_a_page_that_was_changed_is_not_downloaded(registry, tmp_path):
    registry.add("birds", small_draft())
    page = registry.package("birds", 1).parent / "index.html"
    page.chmod(0o644)
    page.write_text("<script>")
    with pytest.raises(RegistryError, match=r"index\.html is missing or differs"):
        registry.download("birds", 1, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_download_replaces_nothing(registry, tmp_path):
    registry.add("birds", small_draft())
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("")
    with pytest.raises(OutputError, match="already exists"):
        registry.download("birds", 1, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "models"]


def test_what_was_written_into_the_card_comes_along(registry, tmp_path):
    registry.add("birds", small_draft())
    (registry.package("birds", 1).parent / "README.md").write_text("for ringing stations")
    registry.download("birds", 1, tmp_path / "copy")
    assert (tmp_path / "copy" / "README.md").read_text() == "for ringing stations"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deep"),
        (b"{}", "is damaged"),
        (b"\xff", "UTF-8"),
        (b'{"version": NaN}', "holds NaN"),
        (None, "has no version.json"),
    ],
)
def test_a_damaged_record_is_refused(registry, content, message):
    registry.add("birds", small_draft())
    file = registry.package("birds", 1).parent / "version.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises((CheckpointError, RegistryError), match=message):
        registry.package("birds", 1)


def test_a_version_that_was_renamed_is_refused(registry, tmp_path):
    registry.add("birds", small_draft())
    (tmp_path / "models" / "birds" / "1").rename(tmp_path / "models" / "birds" / "4")
    with pytest.raises(RegistryError, match=r"its version\.json is that of birds/1"):
        registry.package("birds", 4)


@pytest.mark.parametrize("place", ["birds", "birds/1", "birds/aliases.json", "birds/.lock"])
def test_links_out_of_the_registry_are_not_followed(registry, tmp_path, place):
    registry.add("birds", small_draft())
    registry.set_alias("birds", "champion", 1)
    moved = tmp_path / "outside"
    (tmp_path / "models" / place).rename(moved)
    (tmp_path / "models" / place).symlink_to(moved)
    with pytest.raises(CheckpointError, match="links out of"):
        registry.set_alias("birds", "champion", 1)


def test_a_registry_that_is_full_of_numbers_takes_no_more(registry, tmp_path):
    (tmp_path / "models" / "birds" / "999999999").mkdir(parents=True)
    with pytest.raises(RegistryError, match="after which there is no other"):
        registry.add("birds", small_draft())


def test_a_registry_that_can_t_be_written_is_named(tmp_path):
    (tmp_path / "models").write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        FolderRegistry(tmp_path / "models").add("birds", small_draft())
