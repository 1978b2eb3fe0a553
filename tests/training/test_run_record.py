from __future__ import annotations

import runner


def test_the_log_says_what_learns_when(tiny, messages):
    stages = "trainer.unfreeze=[{after_epochs: 1, pattern: stage4.*}, {after_epochs: 0, pattern: conv5.*}]"
    frozen = ("trainer.freeze_backbone_epochs=2", "trainer.epochs=2", "trainer.max_steps=1")
    runner.fit(runner.load_config(tiny(stages, *frozen)))
    (line,) = [message for message in messages if message.startswith("learning")]
    assert line.split(maxsplit=1)[1] == "the head and conv5.*; after 1 epoch stage4.*; after 2 epochs everything"
