"""Messages of Hydra, OmegaConf and their parser in the runner's words: what is wrong, where, what to do."""

from __future__ import annotations

import re
from typing import Final

_CLOSING: Final = {"[": "]", "{": "}", "(": ")"}
_KEY = re.compile(r"[~+]*[\w./@$-]*")
_FUNCTIONS = "choice, range, interval, glob, sort, shuffle, tag, extend_list, int, float, str, bool, json_str"
_IN_FILE = r"In '(?P<x>[^']*)': \w+ raised while composing config:; "
_HYDRA = (
    (
        r"No completion plugin for '(?P<x>.*)' found, available :; .*",
        "there is no shell {x!r} to complete for; there are bash, fish and zsh, one at a time",
    ),
    (
        r"Expecting one subcommand from .* to be set",
        "-sc takes one of install=SHELL, uninstall=SHELL and query=SHELL, where SHELL is bash, fish or zsh",
    ),
    (
        r"Error parsing line '(?P<x>.*)'",
        "COMP_LINE = {x!r} is no command line that begins with `python -m runner` or `runner`; shells set it",
    ),
    (
        r"KeyError raised while resolving interpolation: \"Environment variable '(?P<x>.*)' not found\"",
        "the environment variable {x} is not set; set it, or write ${{oc.env:{x},DEFAULT}}",
    ),
    (
        r"Interpolation key '(?P<x>.*)' not found",
        "${{{x}}} names a key that is not there; write its full name, such as ${{optimizer.lr}}",
    ),
    (
        r"Could not delete from config\. '(?P<x>.*)' does not exist\.",
        "{x}: ~ takes a key away, and this one is not there; leave ~{x} out",
    ),
    (
        r"Could not delete from config\. The value of '(?P<x>.*)' is (?P<y>.*) and not (?P<z>.*)\.",
        "{x}: ~{x}={z} takes the key away where its value is {z}, but it is {y}; leave ~{x}={z} out",
    ),
    (
        r"Could not delete\. No match for '(?P<x>.*)' in the defaults list\.",
        "{x}: ~ takes a group away, and this one is not there; leave ~{x} out",
    ),
    (
        r"In '(?P<x>[^']*)': Overriding hydra\.searchpath is only supported from the primary config",
        "{x}.yaml: hydra.searchpath can't be set by an experiment; type --config-dir FOLDER",
    ),
    (
        r"Duplicate _self_ defined in (?P<x>.*)",
        "{x}.yaml: its defaults list has _self_ more than once; remove all but one",
    ),
    (
        r"Multiple values for (?P<x>\S+)\. To override a value use '?override (?P<y>[^:]*): (?P<z>.*?)'?",
        "{x}: its option is chosen twice; write `- override /{y}: {z}` in the defaults list",
    ),
    (
        _IN_FILE + r"Cannot merge (?:DictConfig with ListConfig|ListConfig with DictConfig).*",
        "{x}.yaml: a list stands where a group of keys must be, or the other way round; keys are written KEY: VALUE, "
        "without a dash",
    ),
    (
        _IN_FILE + r"Merge error: (?P<y>\w+) is not a subclass of \w+\. value: (?P<z>.*)",
        "{x}.yaml: one of Hydra's own groups of keys is set to the value {z}; remove it",
    ),
    (
        _IN_FILE + r"Value '(?P<y>.*)' is not a valid bool \(type \w+\)",
        "{x}.yaml: {y!r} must be true or false",
    ),
    (
        _IN_FILE + r"Value '(?P<y>.*)' (?:of type '\w+' )?could not be converted to Integer.*",
        "{x}.yaml: {y!r} must be a whole number",
    ),
    (
        r"Invalid defaults list in '(?P<x>.*)', defaults must be a list \(got (?P<y>\w+)\)",
        "{x}.yaml: `defaults` must be a list, such as `- override /model: resnet50`",
    ),
    (
        r"(?:In \S+: )?(?:Unsupported (?:type|item value) in defaults :|Too many keys in default item) .*",
        "an entry of a defaults list can't be read; write one group and the name of its option, such as "
        "`- override /model: resnet50`",
    ),
    (
        r"Error merging override (?P<x>[^=]+)=.*?; Cannot merge DictConfig with ListConfig",
        "a list stands where a group of keys must be; write {{KEY: VALUE}}",
    ),
    (
        r"Error merging override (?P<x>[^=]+)=.*?; Cannot merge ListConfig with DictConfig",
        "a group of keys stands where a list must be; write [A,B]",
    ),
    (
        r"Error merging override (?P<x>[^=]+)=.*?; Value '(?P<y>.*)' is not a valid bool \(type \w+\)",
        "{y!r} must be true or false",
    ),
    (
        r"Error merging override (?P<x>[^=]+)=.*?; Value '(?P<y>.*)' (?:of type '\w+' )?could not be converted to .*",
        "{y!r} must be a number",
    ),
    (
        r"Could not (?:override|delete) '(?P<x>[^'@]+)@(?P<y>[^']*)'\.?.*",
        "{x}@{y}: an option always goes into its own group; leave @{y} out",
    ),
    (
        r"Could not override '(?P<x>[^']+)'\.?.*",
        "{x}: there is no such key or config group; keys have dots, such as optimizer.lr, and groups a slash at most",
    ),
)


def in_our_words(said: str) -> str:
    """What Hydra or OmegaConf said, its lines joined by `; `; a message that is not known stands in parentheses."""
    for pattern, words in _HYDRA:
        if match := re.fullmatch(pattern, said):
            return words.format(**match.groupdict())
    return f"the config can't be composed ({said.rstrip('.')})"


def why_no_override(override: str) -> str:
    """Why Hydra's grammar can't read an override: an open bracket or quote, or the character in the way."""
    key, equals, value = override.partition("=")
    if not equals:
        return "an = is missing after the key; write KEY=VALUE, or ~KEY to take a key away"
    if not _KEY.fullmatch(key) or ".." in key or key.endswith("."):
        wrong = next((repr(letter) for letter in key if not _KEY.fullmatch(letter)), "a dot too many")
        return f"its key has {wrong} in it; a key has letters, digits and _, with single dots between its parts"
    return _unbalanced(value) or _misplaced(value)


def _unbalanced(value: str) -> str | None:
    """A quote or bracket without its partner."""
    opened: list[str] = []
    quote = ""
    for position, letter in enumerate(value):
        if quote:
            quote = "" if letter == quote and value[position - 1] != "\\" else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _CLOSING:
            opened.append(letter)
        elif letter in _CLOSING.values() and (not opened or _CLOSING[opened.pop()] != letter):
            return f"the bracket {letter} closes none that is open"
    if quote:
        return f"the quote {quote} is not closed"
    return f"the bracket {opened[-1]} is not closed; add {_CLOSING[opened[-1]]}" if opened else None


def _misplaced(value: str) -> str:
    call = re.fullmatch(r"(\w+)\((.*)\)", value, re.DOTALL)
    if call and call[1] not in _FUNCTIONS.split(", "):
        return f"there is no function {call[1]}; there are {_FUNCTIONS}"
    if call:
        return f"{call[1]}(…) can't take {call[2] or 'nothing'}" + _USES.get(call[1], "")
    unquoted = re.sub(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", "", value)
    wrong = next((letter for letter in unquoted if re.fullmatch(r"[^\w\s./@%:+*?|$\[\]{}(),~-]", letter)), None)
    if wrong is None:
        wrong = next((letter for letter in unquoted if letter in "(){}[],"), None)
    return f"{wrong!r} can't stand in a value without quotes" if wrong else "its value needs quotes"


_USES: Final = {
    "range": "; it takes numbers: range(START,STOP) or range(START,STOP,STEP)",
    "choice": "; it takes values: choice(A,B,C)",
    "interval": "; it takes two numbers: interval(LOW,HIGH)",
    "glob": "; it takes a pattern: glob(resnet*)",
    "int": "; it takes a number",
    "float": "; it takes a number",
    "bool": "; it takes true or false",
}
