"""The branch scales that docs/models.md states are what its script measures."""

import re

import pytest

from tests.docs.pages import script, text


@pytest.mark.parametrize("attention", ["standard", "diff_v1", "diff_v2", "low_rank_noise"])
def test_the_committed_table_is_current(attention):
    measure = script("branch_scale_table")
    row = re.search(rf"^\| `{attention}` \| (\d.*) \|$", text("docs/models.md"), re.MULTILINE)
    assert row, "run python docs/branch_scale_table.py"
    published, scaled = row[1].split(" | ")[:2]
    for start, cell in (("published", published), ("scaled", scaled)):
        found = measure.ratios("nano", attention, start)
        stated = [float(number) for number in cell.split(" / ")]
        assert stated == pytest.approx([found[0], found[-1]], abs=0.01, rel=0.01), start
