"""Mistakes in YAML and JSON texts: the place, and what is wrong in words that name what to do."""

from __future__ import annotations

import pytest

from runner.base.untrusted import UntrustedFileError, parse_json, parse_yaml

YAML = [
    ("a:\n\tb: 3\n", "line 2, column 1: this is no YAML: a tab stands here; indent with spaces"),
    ("a: @x\n", "line 1, column 4: this is no YAML: a value can't begin with @; put quotes around it"),
    ("a: 1\nb: [1, 2\n", "the bracket that opens in line 2 is not closed; add ]"),
    ("b: {x: 1\n", "the bracket that opens in line 1 is not closed; add }"),
    ("b: [1 2: 3, [4}\n", "in the brackets that open in line 1 a comma or ] is missing"),
    ("a: 'x\n", "the quote that opens in line 1 is not closed"),
    ('a: "\\d"\n', "\\d means nothing in double quotes; use single quotes"),
    ("a: 1: 2\n", "a colon stands where no key can be"),
    ("a: - 1\n", "a list entry (- …) can't stand here"),
    ("a: 1\nbcd\nc: 2\n", "line 2 has no colon after its key; write KEY: VALUE"),
    ("a:\n  b: 1\n c: 2\n", "this line is not indented like the lines above"),
    ("a: *x\n", "*x refers to an anchor &x that does not stand before it"),
    ("? [1]\n: 2\n", "a key must be a text"),
    ("a: !foo x\n", "the tag !foo is not read"),
    ("a: !!python/name:os.system x\n", "the tag python/name:os.system is not read"),
    ("a: 1\n---\nb: 2\n", "a second document begins here (---); a file holds one"),
    ("a: \x07\n", "this is no YAML: character 4 is \\x07, a control character; remove it"),
    ("a: 2024-99-99\n", "a value looks like a date or a number and is none"),
]
JSON = [
    ("", "f is no JSON: it is empty"),
    ('{"a": "b', "column 7: this is no JSON: the text that begins here is not closed by a double quote"),
    (
        '{"a": 1',
        "column 8 (the end of the file: is it cut off?): this is no JSON: a comma or a closing bracket is missing",
    ),
    ("{a: 1}", "column 2: this is no JSON: a key in double quotes is missing"),
    ('{\n"a" 1}', "line 2, column 5: this is no JSON: a colon is missing after a key"),
    ('{"a": nope}', "column 7: this is no JSON: a value is missing, or is none"),
    ('{"a": 1} 2', "column 10: this is no JSON: something follows after the end of the value"),
    ('{"a": "\\q"}', "a backslash in a text begins no known escape; write it twice"),
]
OF_THE_LIBRARIES = ("while ", "found ", "expected ", "Expecting", "char ", "token", "scalar", "mapping", "delimiter")


@pytest.mark.parametrize(("text", "said"), YAML, ids=[repr(text) for text, _ in YAML])
def test_a_mistake_in_yaml_is_told_in_our_words(text: str, said: str) -> None:
    with pytest.raises(UntrustedFileError) as caught:
        parse_yaml(text, "f")
    assert said in str(caught.value)
    assert not any(word in str(caught.value) for word in OF_THE_LIBRARIES)


@pytest.mark.parametrize(("text", "said"), JSON, ids=[repr(text) for text, _ in JSON])
def test_a_mistake_in_json_is_told_in_our_words(text: str, said: str) -> None:
    with pytest.raises(UntrustedFileError) as caught:
        parse_json(text, "f")
    assert said in str(caught.value)
    assert not any(word in str(caught.value) for word in OF_THE_LIBRARIES)
