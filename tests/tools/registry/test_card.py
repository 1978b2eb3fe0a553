from __future__ import annotations

from runner.tools.registry.card import write_card
from runner.tools.registry.versions import VersionRecord
from tests.tools.registry.conftest import FACTS
from tests.tools.registry.test_versions import RECORD


def test_the_card_says_what_is_known_and_what_people_have_to_say():
    text = write_card(VersionRecord.model_validate(RECORD), ("ant", "bee"), ("loss.svg", "accuracy.svg"))
    assert text.startswith("# birds, version 1\n")
    for part in (
        f"| Commit | {'a' * 40} with uncommitted changes |",
        "| val | 1,200 | 75.00% | 100.00% | 0.5000 | – |",
        "![loss](loss.svg)",
        "![accuracy](accuracy.svg)",
        f"photos, fingerprint {'f' * 64}.",
        "Classes: ant, bee.",
        "## Intended use\n*To be filled in",
    ):
        assert part in text, part


def test_names_of_others_are_shown_as_they_are():
    lineage = {**FACTS["lineage"], "data": "<img src=x> | [a](b)\n# x"}
    record = VersionRecord.model_validate({**RECORD, "lineage": lineage})
    text = write_card(record, ("<script>", "a|b", "\x1b[2J"), ())
    assert r"\<script\>, a\|b, \\x1b\[2J." in text
    assert r"\<img src=x\> \| \[a\](b)\\x0a\# x, fingerprint" in text


def test_of_many_classes_the_first_are_named():
    names = tuple(f"c{number}" for number in range(60))
    assert "c49 and 10 more." in write_card(VersionRecord.model_validate(RECORD), names, ())
