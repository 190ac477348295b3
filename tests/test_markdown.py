from antiphase.markdown import markdown_table


def test_a_cell_with_a_bar_stays_one_cell():
    found = markdown_table(["a|b", "c"], [["1", "x | y"]])
    assert found == "| a\\|b | c |\n| --- | --- |\n| 1 | x \\| y |"
