"""The reference of all keys, made from the schema and conf/: `--help`, docs/config.md, a JSON schema for editors.

`python -m runner.config.reference` rewrites two files in docs/; `.ci/write-commands` writes docs/commands.md, for which
the commands are needed.
"""

from __future__ import annotations

from runner.config.reference.editor import experiment_schema
from runner.config.reference.help import help_text
from runner.config.reference.markdown import config_page
from runner.config.reference.pages import help_page, topics

__all__ = ["config_page", "experiment_schema", "help_page", "help_text", "topics"]
