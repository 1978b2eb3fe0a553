"""The documentation site: what its builder makes and refuses, and that its pages name keys that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.config.reference.keys import read_transforms
from tests.conftest import ROOT
from tests.documented import GROUPS, KEYS, judge

TRANSFORMS = {variant.tag for variant in read_transforms()}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def build(root: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci/build-site"), "--root", str(root), "--output", str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path):
    """A copy of the pages and of what they link to, to be spoilt."""
    root = tmp_path / "repository"
    for name in ("docs", "tests", "examples", "benchmarks/results"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("*.md"), *ROOT.glob("*.txt"), ROOT / "LICENSE"):
        shutil.copy(file, root)
    return root


def test_the_site_is_built_from_all_pages_and_loads_nothing_from_elsewhere(tmp_path):
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    built = {str(file.relative_to(tmp_path / "site")) for file in (tmp_path / "site").rglob("*.html")}
    for page in PAGES:
        name = str(page.relative_to(ROOT)).removesuffix(".md").replace("README", "index")
        assert f"{name}.html" in built
    # A file of the repository that a page links to came along.
    assert (tmp_path / "site/tests/hostile/test_hostile.py").is_file()
    assert "googleapis" not in (tmp_path / "site/index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "text", "complaint"),
    [
        ("docs/data.md", "[gone](gone.md)", "docs/data.md: gone.md is no file of the repository"),
        ("docs/data.md", "[gone](resume.md#gone)", "anchor"),
        ("docs/data.md", "[gone](#gone)", "anchor"),
        ("docs/data.md", '<a href="nowhere.html">gone</a>', "docs/data.html: nowhere.html leads nowhere"),
        ("docs/data.md", "![far](https://example.org/far.png)", "docs/data.html: loads https://example.org/far.png"),
        ("docs/data.md", "A list:\n- first `a`\n- second", "docs/data.html: not read as a list: - first"),
        ("docs/lonely.md", "# Lonely", "docs/site.toml: docs/lonely.md is not in the navigation"),
        ("docs/site.css", "p { background: url(//example.org/a.png) }", "site.css: loads //example.org/a.png"),
    ],
)
def test_what_is_broken_is_not_built(repository, tmp_path, page, text, complaint):
    with (repository / page).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{text}\n")
    done = build(repository, tmp_path / "site")
    assert done.returncode == 1
    assert complaint in done.stdout + done.stderr
    assert not (tmp_path / "site").exists()


# --- Each KEY=VALUE that the pages show is one that the runner takes. ---


def ours(page: str) -> list[str]:
    """Code of the runner's own: in tables of the last column, as the others hold what is typed elsewhere."""
    found = []
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        text = re.split(r"(?<!\\)\|", line)[-2] if line.startswith("|") and line.count("|") > 1 else line
        found += re.findall(r"`([^`]+)`", text)
    return list(dict.fromkeys(found))


def shown(page: str) -> list[str]:
    """Pieces of command lines."""
    return [code for code in ours(page) if re.match(r"(python -m runner |-m |'?[a-z_]+([./][a-z_]+)*=)", code)]


def typed(page: str) -> list[str]:
    """Whole command lines, as a shell takes them."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    found = [re.match(r"(?:\w+)?\$? ?(python -m runner .+)", line) for line in lines]
    return [
        re.sub(r"\s+#.*", "", match[1])
        for match in found
        if match and " --" not in match[1] and "epchos" not in match[1]
    ]


@pytest.mark.parametrize("line", shown("coming_from.md") + shown("why.md") + typed("README.md"))
def test_what_the_pages_show_is_taken(line):
    judge(line)


def test_there_is_much_to_judge():
    assert len(shown("coming_from.md")) > 90


def test_a_key_that_is_named_alone_exists():
    for page in ("coming_from.md", "why.md", "run_folder.md"):
        named = {code for code in ours(page) if re.fullmatch(rf"({'|'.join(GROUPS)})\.[a-z_.]+", code)}
        assert named <= KEYS, named - KEYS
    assert {"rand_augment", "random_erasing", "trivial_augment", "auto_augment"} <= TRANSFORMS & set(
        ours("coming_from.md")
    )


# --- docs/run_folder.md, compared with a run. ---


def table(title: str) -> list[str]:
    """The first column of a table of the page, its names one by one."""
    text = (ROOT / "docs" / "run_folder.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)))


def as_pattern(name: str) -> str:
    return re.sub(r"<[^>]*>", "[^/]+", re.sub(r"[.]", r"[.]", name))


def test_the_page_of_the_run_folder_lists_what_a_run_leaves(trained):
    always, sometimes = table("What each completed run has"), table("What some have")
    files = {str(file.relative_to(trained)) for file in trained.rglob("*") if file.is_file()}
    missing = [name for name in always if not any(re.fullmatch(as_pattern(name), file) for file in files)]
    assert missing == []
    untold = [file for file in files if not any(re.fullmatch(as_pattern(name), file) for name in always + sometimes)]
    assert untold == []


def test_it_explains_each_key_of_what_is_written(trained):
    record = json.loads((trained / "run.json").read_text(encoding="utf-8"))
    row = json.loads((trained / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    metrics = json.loads((trained / "evaluation/metrics.json").read_text(encoding="utf-8"))
    assert set(table("run.json")) == set(record) | {"warnings", "resumes", "damaged", "snapshot"}
    assert set(table("metrics.jsonl")) == set(row)
    assert set(table("evaluation/metrics.json")) == set(metrics)
