"""The blocks of the help, the whole of it (`--help all`), and the help on one command."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from runner.config import conf_of_working_folder, group_options
from runner.config.reference.keys import (
    Group,
    Key,
    Variant,
    about_other_keys,
    as_yaml,
    read_command_keys,
    read_experiments,
    read_groups,
    read_parts,
    read_transforms,
)
from runner.config.reference.words import listed
from runner.config.schema import VARIANT_KEYS
from runner.config.schema.calls import CALLS, LAID_OVER, TAKES_EXPERIMENT, TAKES_NOTHING_ELSE
from runner.config.schema.checks.parts import LOSSES, TRANSFORMS
from runner.config.schema.checks.validation import MISSING

_LEFT_WIDTH = 36
_FLAGS = {
    "-m, --multirun": "Run one job for each combination: -m model=resnet18,resnet34 optimizer.lr=0.01,0.1",
    "--config-dir FOLDER": "Also look for configs in FOLDER, whose experiment/mine.yaml is experiment=mine; "
    "no flag is needed for ./conf, if it has experiment/",
    "--cfg job": "Show the composed config and do nothing else",
    "--info": "Show where configs are looked for, which were chosen, and Hydra's plugins",
    "--shell-completion install=bash": "Complete groups, options and keys with the tab key, in bash, zsh or fish: "
    'eval "$(runner --shell-completion install=bash)"',
    "--version": "Show the version",
    "-h, --help": "Show help; on a command, a group or a key: --help predict, model --help, help trainer.epochs",
}
_ENDING = "In the repository, docs/config.md has all this in tables and says how an editor checks experiment files."


def help_text(commands: Mapping[str, str], command: str | None = None, width: int = 100) -> str:
    """Usage, commands, flags, each group with its options, each key with its default.

    Args:
        commands: all commands, each with a description of one line.
        command: one of them, for help on this command; None for all.
        width: columns of the terminal.
    """
    own = [usage(commands, command), *_keys_of_command(command, width)]
    if command in TAKES_NOTHING_ELSE:
        return "\n\n".join([*own, _ENDING])
    general, *groups = read_groups()
    if command in LAID_OVER:
        return "\n\n".join([*own, *_laid_over(groups, LAID_OVER[command], width), _ENDING])
    if command:
        flags = [] if command in CALLS and command not in TAKES_EXPERIMENT else [flags_block(width)]
        return "\n\n".join([*own, *flags, experiments_block(width), groups_block(groups, width), _ENDING])
    blocks = [
        *own,
        table("Commands", commands.items(), width),
        flags_block(width),
        experiments_block(width),
        lines("General keys (KEY=VALUE, with the default)", key_rows(general, general.variants, width)),
        *(group_block(group, width) for group in groups),
        transforms_block(width),
        losses_block(width),
        _ENDING,
    ]
    return "\n\n".join(filter(None, blocks))


def flags_block(width: int) -> str:
    """The flags."""
    return table("Flags", _FLAGS.items(), width)


def experiments() -> list[str]:
    """The experiments in conf/ and in the working folder."""
    own = conf_of_working_folder()
    return group_options("experiment", [] if own is None else [own])


def experiments_block(width: int) -> str:
    """The experiments, each with its title."""
    shipped = read_experiments()
    rows = ((name, shipped.get(name, f"conf/experiment/{name}.yaml of this folder")) for name in experiments())
    return table("Experiments (experiment=NAME)", rows, width)


def groups_block(groups: Iterable[Group], width: int) -> str:
    """The groups, each with its default option; where their keys are explained."""
    rows = ((f"{group.name}={group.default_option}", group.description) for group in groups)
    return table("Groups (GROUP=OPTION, here the default; more of each: --help GROUP)", rows, width, 20)


def transforms_block(width: int) -> str:
    """The transforms with their keys, those of installed packages too."""
    shipped = lines(
        "Entries of data.train_transforms and data.eval_transforms", _part_rows("name", read_transforms(), width)
    )
    own = parts_block(TRANSFORMS, "part", "name: custom", width)
    return f"{shipped}\n\n{own}" if own else shipped


def parts_block(entry_points: str, key: str, where: str, width: int) -> str:
    """The parts that installed packages offer under an entry point group, with their settings; "" without any."""
    parts = read_parts(entry_points)
    return lines(f"Of installed packages, with {where}", _part_rows(key, parts, width)) if parts else ""


def losses_block(width: int) -> str:
    """The losses of installed packages; "" without any."""
    return parts_block(LOSSES, "loss", "trainer.loss=NAME and trainer.loss_arguments", width)


def usage(commands: Mapping[str, str], command: str | None) -> str:
    """What a command, or the runner, is for, and how it is called."""
    about = commands[command] if command else "Train, evaluate and package image classifiers described in YAML."
    word = command or "[COMMAND]"
    has_no_groups = command in TAKES_NOTHING_ELSE or not any("." not in key for key in LAID_OVER.get(word, ("",)))
    words = "[KEY=VALUE …]" if has_no_groups else "[FLAG …] [GROUP=OPTION …] [KEY=VALUE …]"
    return f"{about[0].upper()}{about[1:]}\n\nUsage: python -m runner {word} {words}"


def _keys_of_command(command: str | None, width: int) -> Iterator[str]:
    call = read_command_keys(command) if command else None
    if call is not None:
        title = f"Keys of {command}; what else is typed {about_other_keys(str(command))}"
        yield lines(textwrap.fill(title, width), key_rows(call, call.variants, width))


def _laid_over(groups: Iterable[Group], taken: Collection[str], width: int) -> Iterator[str]:
    """The keys of a saved config that a command may change, without defaults, which only new runs have."""
    for group in groups:
        is_whole = group.name in taken
        variants = tuple(
            replace(
                variant,
                keys=tuple(
                    replace(key, defaults=())
                    for key in variant.keys
                    if (is_whole or key.name in taken) and not _is_tag(group, key)
                ),
            )
            for variant in group.variants
        )
        if is_whole:
            yield group_block(replace(group, variants=variants, default_option=""), width)
        elif any(variant.keys for variant in variants):
            yield lines(f"Keys of {group.name}", key_rows(group, variants, width))


def lines(title: str, rows: Iterable[str]) -> str:
    """A title and rows."""
    return "\n".join([title, *rows])


def table(title: str, rows: Iterable[tuple[str, str]], width: int, left_width: int = _LEFT_WIDTH) -> str:
    """A title and two columns."""
    return lines(title, itertools.chain.from_iterable(_row([left], right, width, left_width) for left, right in rows))


def _row(lefts: list[str], right: str, width: int, left_width: int = _LEFT_WIDTH) -> Iterator[str]:
    """Two columns; a left cell that is too long gets its own line."""
    rights = textwrap.wrap(right, max(width - left_width - 4, 24), break_long_words=False, break_on_hyphens=False)
    if max(map(len, lefts)) > left_width:
        rights = [""] * len(lefts) + rights
    for one, other in itertools.zip_longest(lefts, rights, fillvalue=""):
        yield f"  {one:<{left_width}}  {other}".rstrip()


def group_block(group: Group, width: int) -> str:
    """The options of a group, then its keys."""
    rows: list[str] = []
    if sum(len(variant.options) for variant in group.variants) > 1:
        for variant in group.variants:
            is_default = group.default_option in variant.options
            names = [f"{group.default_option} (default)"] if is_default else []
            names += [option for option in variant.options if option != group.default_option]
            text = variant.description if len(group.variants) > 1 else "the same keys with other values"
            rows += _row(textwrap.wrap(", ".join(names), _LEFT_WIDTH), text, width)
        rows.append("")
    option = "OPTION" if rows else group.default_option
    return lines(
        f"{group.name}{'=' if option else ''}{option} · {group.description}",
        [*rows, *key_rows(group, group.variants, width)],
    )


def key_rows(group: Group, variants: tuple[Variant, ...], width: int) -> Iterator[str]:
    """Each key once: first those of all variants, then those of some variants, under a line that names these."""
    sharing: dict[tuple[str, ...], list[tuple[Variant, Key]]] = {}
    for variant in variants:
        for key in variant.keys:
            what = "" if _is_tag(group, key) else key.allowed
            sharing.setdefault((key.name, key.description, what), []).append((variant, key))
    by_owners: dict[tuple[str, ...], list[list[tuple[Variant, Key]]]] = {}
    for owners in sharing.values():
        by_owners.setdefault(tuple(str(variant.tag) for variant, _ in owners), []).append(owners)
    for tags, rows in sorted(by_owners.items(), key=lambda item: len(item[0]) < len(variants)):
        if len(tags) < len(variants):
            yield f"  only where {group.name}.{VARIANT_KEYS[group.name]} is {listed(list(tags))}:"
        for owners in rows:
            left, right = _key_row(group, owners)
            yield from _row([left], right, width)


def _key_row(group: Group, owners: list[tuple[Variant, Key]]) -> tuple[str, str]:
    key = owners[0][1]
    if not key.defaults:
        return key.name, f"{key.description} [{key.allowed}]"
    by_option = {
        option: _default(value)
        for variant, key in owners
        for option, value in zip(variant.options, key.defaults, strict=True)
    }
    shown = by_option.get(group.default_option) or next(iter(by_option.values()))
    allowed = listed(list(dict.fromkeys(key.allowed for _, key in owners)))
    is_set_by_option = _is_tag(group, key) or all(option == default for option, default in by_option.items())
    notes = [allowed, *([] if is_set_by_option else _other_defaults(group, by_option, shown))]
    return f"{key.name}={shown}", f"{key.description} [{'; '.join(notes)}]"


def _is_tag(group: Group, key: Key) -> bool:
    return key.name == f"{group.name}.{VARIANT_KEYS.get(group.name)}"


def _other_defaults(group: Group, by_option: Mapping[str, str], shown: str) -> Iterator[str]:
    options_of: dict[str, list[str]] = {}
    for option, default in by_option.items():
        options_of.setdefault(default, []).append(option)
    for default, options in options_of.items():
        if default != shown:
            yield f"{default} with {group.name}={listed(options)}"


def _default(value: object) -> str:
    """A default in brief: a list of transforms is shown as their names."""
    if value == MISSING:
        return "…"
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        return "[" + ", ".join(str(entry["name"]) for entry in value) + "]"
    return as_yaml(value)


def _part_rows(title: str, variants: Iterable[Variant], width: int) -> Iterator[str]:
    for variant in variants:
        yield from _row([f"{title}: {variant.tag}"], variant.description, width)
        for key in variant.keys:
            if key.name != "name":
                default = "" if key.defaults == (MISSING,) else f": {_default(key.defaults[0])}"
                yield from _row([f"  {key.name}{default}"], f"{key.description} [{key.allowed}]", width)
