"""The state in the address bar: what is allowed, and what is said about the rest."""

import pytest

from antiphase.explorer.edits import Edits, HeadEdit
from antiphase.explorer.state import Drawn, Slot, State, parse_state

MODELS = {"diff_v1": 1, "standard": 2}


def parse(**fields):
    return parse_state({k.replace("_", "."): v for k, v in fields.items()}, MODELS, "standard")


def test_an_empty_address_shows_the_first_model():
    assert parse() == State((Slot("standard"),))


def test_everything_at_once():
    found = parse_state(
        {
            "a": "diff_v1",
            "a.step": "400",
            "a.head": "1.2",
            "a.lam": "0:0.5,1:2",
            "a.edits": "1.2:off,1.0:head:3,0.1:rank:4",
            "b": "standard",
            "task": "needle",
            "length": "96",
            "depth": "0.5",
            "noise": "1",
            "near": "0",
            "needles": "3",
            "seed": "7",
            "example": "11",
            "row": "40",
            "view": "map",
            "map": "A1",
        },
        MODELS,
        "standard",
    )
    heads = (HeadEdit(1, 2, "off"), HeadEdit(1, 0, "head", 3), HeadEdit(0, 1, "rank", 4))
    assert found == State(
        (Slot("diff_v1", 400, (1, 2), Edits(((0, 0.5), (1, 2.0)), heads)), Slot("standard")),
        None,
        Drawn("needle", 96, 0.5, 1.0, 0.0, 3, 7, 11),
        40,
    )
    assert [str(edit) for edit in heads] == ["1.2:off", "1.0:head:3", "0.1:rank:4"]


def test_a_factor_of_one_is_no_edit():
    assert not parse(a="diff_v1", a_lam="1").slots[0].edits
    assert parse(a="diff_v1", a_lam="0.95").slots[0].edits
    assert parse(a="diff_v1", a_lam="1:0").slots[0].edits.factor(0) == 1.0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([], "got list, expected names and values"),
        ({"a": "../../etc/passwd"}, "is no model of this explorer"),
        ({"a": "diff_v2"}, "did you mean 'diff_v1'"),
        ({"a": 3}, "a: got int, expected a string"),
        ({"rwo": "3"}, "did you mean 'row'"),
        ({"row": "-1"}, "row: got '-1', expected a whole number"),
        ({"row": "9" * 30}, "at most 9 digits"),
        ({"row": "x" * 201}, "has 201 characters, at most 200"),
        ({"a.head": "1"}, "expected LAYER.HEAD"),
        ({"a.lam": "2.5"}, "a factor of lam from 0 to 2"),
        ({"a.lam": "nan"}, "a factor of lam from 0 to 2"),
        ({"a.lam": "1,0:2"}, "one factor for all layers, or by layer"),
        ({"a.edits": "1.2:eval"}, "LAYER.HEAD:off"),
        ({"a.edits": "1.2:rank:x"}, "LAYER.HEAD:rank:R"),
        ({"a.edits": "1.2:off,1.2:rank:2"}, "two edits of layer 1, head 2"),
        ({"a.edits": ",".join(f"0.{i}:off" for i in range(30))}, "characters, at most 200"),
        ({"depth": "1.5"}, "depth: got '1.5', expected a number from 0 to 1"),
        ({"noise": "nan"}, "noise: got 'nan'"),
        ({"length": "²"}, "expected a whole number"),
    ],
)
def test_wrong_fields_say_what_is_allowed(fields, says):
    with pytest.raises(ValueError, match=says.replace("[", r"\[")):
        parse_state(fields, MODELS, "diff_v1")
