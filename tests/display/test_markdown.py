from labkit.display import markdown


def test_a_table_has_a_head_its_rows_and_paragraphs_below():
    shown = markdown.table(("format", "step at 1"), [("FP16", "0.000977"), ("INT8", "1")], ["One note.", "Another."])
    assert shown.data == (
        "| format | step at 1 |\n| --- | --- |\n| FP16 | 0.000977 |\n| INT8 | 1 |\n\nOne note.\n\nAnother."
    )
