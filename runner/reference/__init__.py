"""The reference of all keys, made from the schema and conf/: `--help`, docs/config.md, a JSON schema for editors.

`python -m runner.reference` rewrites the two files in docs/.
"""

from __future__ import annotations

from runner.reference.editor import experiment_schema
from runner.reference.help import help_text
from runner.reference.page import config_page

__all__ = ["config_page", "experiment_schema", "help_text"]
