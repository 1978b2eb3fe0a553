"""What is wrong in a YAML or JSON text, in words for people who wrote one: the place, the mistake, what to do."""

from __future__ import annotations

import json
import re

import yaml

# Messages of PyYAML and of OmegaConf's loader as patterns; {1} is what the first group matched, {context} the line in
# which the value began that could not be read to its end.
_YAML = (
    (r"found character '\\t' that cannot start any token", "a tab stands here; indent with spaces"),
    (
        r"found character '(.+)' that cannot start any token",
        "a value can't begin with {1}; put quotes around it, as in '{1}…'",
    ),
    (
        r"expected ',' or '([\]}])', but got '<stream end>'",
        "the bracket that opens in line {context} is not closed; add {1}",
    ),
    (
        r"expected ',' or '([\]}])', but got .*",
        "in the brackets that open in line {context} a comma or {1} is missing before this place",
    ),
    (
        r"mapping values are not allowed here",
        "a colon stands where no key can be; indent keys of a group alike, and quote a text with ': ' in it",
    ),
    (r"mapping keys are not allowed here", "a key can't stand here; look at how these lines are indented"),
    (
        r"sequence entries are not allowed here",
        "a list entry (- …) can't stand here; begin it in a line of its own below its key",
    ),
    (r"could not find expected ':'", "line {context} has no colon after its key; write KEY: VALUE"),
    (
        r"expected <block end>, but found .*",
        "this line is not indented like the lines above that belong to the same group",
    ),
    (r"found unexpected (?:end of stream|document separator)", "the quote that opens in line {context} is not closed"),
    (r"found unknown escape character '(.*)'", "\\{1} means nothing in double quotes; use single quotes"),
    (r"found duplicate key (.*)", "the key {1} stands here a second time; remove one of the two"),
    (
        r"found undefined alias '(.*)'",
        "*{1} refers to an anchor &{1} that does not stand before it; put quotes around a *",
    ),
    (r"found duplicate anchor '(.*)'.*", "the anchor &{1} stands here a second time"),
    (r"found unhashable key", "a key must be a text; put quotes around it"),
    (
        r"could not determine a constructor for the tag '(?:tag:yaml\.org,2002:)?(.*)'",
        "the tag {1} is not read: values are texts, numbers, true, false, null, lists and groups; quote a !",
    ),
    (r"but found another document", "a second document begins here (---); a file holds one"),
    (
        r"expected '<document start>', but found .*",
        "this does not belong to the value before it; is a line cut or a key missing?",
    ),
    (r"expected the node content, but found .*", "a value is missing here"),
)
_JSON = (
    (r"Expecting value", "a value is missing, or is none: texts stand in double quotes"),
    (r"Expecting property name enclosed in double quotes", "a key in double quotes is missing"),
    (r"Illegal trailing comma before end of .*", "the comma before the closing bracket is one too many"),
    (r"Expecting ':' delimiter", "a colon is missing after a key"),
    (r"Expecting ',' delimiter", "a comma or a closing bracket is missing"),
    (r"Unterminated string starting at", "the text that begins here is not closed by a double quote"),
    (r"Invalid control character at", "a text holds a line end or another control character; write it as \\n or \\u…"),
    (r"Invalid \\.*", "a backslash in a text begins no known escape; write it twice"),
    (r"Extra data", "something follows after the end of the value"),
)


def yaml_mistake(error: Exception) -> str:
    """The place and the mistake, to follow a file's name: `, line 3, column 9: this is no YAML: …`."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark, opening = error.problem_mark, error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        said = error.problem or error.context or ""
        return f"{place}: this is no YAML: {_in_our_words(said, _YAML, opening.line + 1 if opening else '?')}"
    if isinstance(error, yaml.reader.ReaderError):
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        place = f": this is no YAML: character {error.position + 1} is \\x{code:02x}"
        return f"{place}, a control character; remove it"
    if isinstance(error, RecursionError):
        return " is nested too deep to be read"
    # A date such as 2024-99-99, or a number with too large parts such as 1:1:1:…:1.5.
    return f" is no YAML: a value looks like a date or a number and is none ({error}); put quotes around it"


def json_mistake(error: json.JSONDecodeError) -> str:
    """The place and the mistake, to follow a file's name."""
    if not error.doc.strip():
        return " is no JSON: it is empty"
    line = f", line {error.lineno}" if "\n" in error.doc.strip() else ""
    end = " (the end of the file: is it cut off?)" if error.pos >= len(error.doc.rstrip()) else ""
    return f"{line}, column {error.colno}{end}: this is no JSON: {_in_our_words(error.msg, _JSON)}"


def _in_our_words(said: str, table: tuple[tuple[str, str], ...], context: object = "") -> str:
    for pattern, words in table:
        if match := re.fullmatch(pattern, said):
            return words.replace("{context}", str(context)).replace("{1}", match[1] if match.groups() else "")
    return f"it can't be understood ({said})"
