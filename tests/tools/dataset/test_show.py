from __future__ import annotations

import pytest
from PIL import Image, ImageDraw

from runner.tools.dataset import show as fonts
from runner.tools.dataset.show import fitting


@pytest.mark.parametrize("text", ["ants", "Käfer", "муравей", "μύρμηξ"])
def test_alphabets_are_drawn_by_the_font_that_is_always_there(text):
    shown, font = fitting(text, 15)
    assert (shown, font.getname()[0]) == (text, "DejaVu Sans")


def test_characters_without_a_glyph_and_unprintable_ones_are_escaped(monkeypatch):
    monkeypatch.setattr(fonts, "_installed", lambda: ())
    shown, font = fitting("蚂\n\udcff🐧é", 15)
    assert shown == "\\u8682\\n\\udcff\\U0001f427é"
    ImageDraw.Draw(Image.new("RGB", (300, 30))).text((0, 0), shown, font=font)


def test_another_font_is_taken_where_it_has_all_characters(monkeypatch):
    other = fonts._dejavu().replace("Sans.ttf", "Sans-Bold.ttf")
    monkeypatch.setattr(fonts, "_installed", lambda: ("/no/such.ttf", other))
    monkeypatch.setattr(fonts, "_characters", lambda path: frozenset(map(ord, "a" if path == other else "b")))
    assert (fitting("a", 15)[0], fitting("a", 15)[1].getname()[1]) == ("a", "Bold")


def test_a_file_that_is_no_font_has_no_characters(tmp_path):
    (tmp_path / "x.ttf").write_bytes(b"no font")
    assert fonts._characters(str(tmp_path / "x.ttf")) == frozenset()
