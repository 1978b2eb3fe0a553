"""A config folder from others: regular files within it, and within limits."""

from __future__ import annotations

import os

import pytest

from tests.composed import refused


@pytest.mark.parametrize(
    "text",
    [
        "defaults:\n  - override /model: ../../evil\n",
        "defaults:\n  - ../../evil\n",
        "defaults:\n  - /model@x: ../evil\n",
        "defaults:\n  - override /model: ${{data}}/../../evil\n",
    ],
)
def test_names_in_defaults_lists_must_not_lead_out_of_their_group(experiment, tmp_path, text):
    (tmp_path / "evil.yaml").write_text("seed: 7\n")
    assert "must be the name of an option" in refused(*experiment(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x0: aaaaaaaa\n" + "".join(f"x{n + 1}: ${{{{x{n}}}}}${{{{x{n}}}}}\n" for n in range(60)), "grows too large"),
        (
            "x0: {{a: 1}}\n"
            + "".join(f"x{n + 1}: {{{{a: '${{{{x{n}}}}}', b: '${{{{x{n}}}}}'}}}}\n" for n in range(60)),
            "large",
        ),
        ("x: &a [1, *a]\n", "holds itself"),
        ("\n".join(f"k{n}: 1" for n in range(20_000)), "more than 10,000 values"),
        ("x: " + "[" * 200 + "]" * 200, "levels"),
        ("a: &a [1,1]\n" + "".join(f"b{n}: *a\n" for n in range(101)), "aliases"),
    ],
    ids=["text bomb", "node bomb", "recursive", "many keys", "deep", "aliases"],
)
def test_bombs_are_refused(experiment, text, told):
    assert told in refused(*experiment(text))


def test_a_device_or_a_fifo_is_no_experiment(experiment, tmp_path):

    argv = experiment("seed: 1\n")
    os.mkfifo(tmp_path / "my" / "experiment" / "pipe.yaml")
    (tmp_path / "my" / "experiment" / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        assert "no regular file" in refused(*argv[:2], f"experiment={name}")
