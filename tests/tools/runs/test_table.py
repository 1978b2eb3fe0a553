from runner.tools.runs.table import as_table


def test_columns_line_up_with_wide_letters_and_show_control_characters():
    text = as_table(("name", "x"), [("🐜", "1"), ("a\nb\x1b[31m", "2")])
    assert text.splitlines() == ["name          x", "🐜            1", "a\\nb\\x1b[31m  2"]
