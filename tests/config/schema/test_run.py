import pytest

import runner
from runner.base.errors import ConfigError


def test_names_are_read_as_typed():
    config = runner.load_config(
        [
            "run.name=007",
            "run.group=1e3",
            "run.tags.set=v2",
            "run.tags.seed=3",
            "+run.tags.ok=true",
            "run.notes='a: b, c'",
        ]
    )
    assert (config.run.name, config.run.group, config.run.notes) == ("007", "1e3", "a: b, c")
    assert config.run.tags == {"set": "v2", "seed": 3, "ok": True}
    assert hash(config.run) == hash(config.run.model_copy())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.name=''", "must not be empty"),
        ("run.name='two\nlines'", "one line"),
        ("run.tags=[a]", r"run\.tags"),
        ("run.tags={a: {b: 1}}", r"run\.tags\.a"),
        ("run.tags={a b: 1}", "letters, digits, _ and -"),
        ("run.nmae=x", r"did you mean run\.name"),
    ],
)
def test_what_is_no_name_is_refused(override, message):
    with pytest.raises(ConfigError, match=message):
        runner.load_config([override])
