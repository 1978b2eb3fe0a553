"""The reference of all keys, made from the schema and conf/: `--help`, docs/config.md, a JSON schema for editors.

`python -m runner.config.reference` rewrites the two files in docs/.
"""

from __future__ import annotations

from runner.config.reference.editor import experiment_schema
from runner.config.reference.help import help_text
from runner.config.reference.page import config_page

__all__ = ["config_page", "experiment_schema", "help_text"]
