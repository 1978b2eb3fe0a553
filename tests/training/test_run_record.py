from __future__ import annotations

import logging

import runner
from runner.base.console import LOGGER


def test_the_log_says_what_learns_when(tiny, caplog, monkeypatch):
    monkeypatch.setattr(LOGGER, "propagate", True)
    stages = "trainer.unfreeze=[{after_epochs: 1, pattern: stage4.*}, {after_epochs: 0, pattern: conv5.*}]"
    frozen = ("trainer.freeze_backbone_epochs=2", "trainer.epochs=2", "trainer.max_steps=1")
    with caplog.at_level(logging.INFO, LOGGER.name):
        runner.fit(runner.load_config(tiny(stages, *frozen)))
    (line,) = [message for message in caplog.messages if message.startswith("learning")]
    assert line.split(maxsplit=1)[1] == "the head and conv5.*; after 1 epoch stage4.*; after 2 epochs everything"
