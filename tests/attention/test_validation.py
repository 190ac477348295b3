"""Invalid shapes and options: the error says what was given, what is allowed, what to change."""

import math
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import antiphase
import antiphase.attention
from antiphase.attention import (
    MECHANISMS,
    Attention,
    DiffV1,
    Grouped,
    LowDimNoise,
    Standard,
    mechanism,
)
from antiphase.attention.registry import CLASSES


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Standard(64, 7), "7 heads do not divide a hidden size of 64"),
        (lambda: Standard(64, 8, 3), "3 key/value heads do not divide 8 heads; divisors are 1, 2"),
        (lambda: Standard(64, 0), "num_heads: got 0, expected at least 1"),
        (lambda: DiffV1(63, 7), "num_heads: diff_v1 pairs the baseline's heads, and 7 cannot be"),
        (lambda: DiffV1(64, 8, 1), "num_kv_heads: diff_v1 pairs .* and 1 cannot be halved"),
        (lambda: Grouped(64, 8, ratio=2), "groups of 3, and 8 cannot be split so; use a multiple"),
        (lambda: Grouped(64, 8, 2, ratio=3), "num_kv_heads: grouped at ratio 3"),
        (lambda: Grouped(64, 8, ratio=0), "ratio: got 0, expected at least 1"),
        (lambda: LowDimNoise(64, 8, rank=3, rope_theta=1e4), "RoPE .* needs even widths"),
        (lambda: LowDimNoise(64, 8, rank=4.0), "rank: got 4.0, expected a whole number"),
        (lambda: Standard(64, 8, half_dim="no"), "half_dim: got 'no', expected true or false"),
        (lambda: Standard(64, 8, head_dim=-4), "head_dim: got -4, expected at least 1"),
        (lambda: DiffV1(64, 8, layer=-1), "layer: got -1, expected 0 for the first"),
        (lambda: DiffV1(64, 8, rope_theta=0.0), "expected finite numbers above 0"),
        (lambda: DiffV1(64, 8, eps=float("nan")), "eps, rope_theta: got nan, None"),
        (lambda: Standard(64, 8, half_dim=True, head_dim=3), "width 3 cannot be halved"),
        (lambda: Standard(64, 8, head_norm="batch"), "head_norm: got 'batch', expected 'rms' or"),
        (lambda: Standard(64, 8, lam=0.5), "'standard' has no option 'lam'; its options are head"),
        (lambda: DiffV1(64, 8, lam_int=0.5), r"no option 'lam_int'; .* did you mean 'lam_init'\?"),
        (lambda: mechanism("diff_v2")(64, 8, ratio=2), "has no option 'ratio'; it has no options"),
        (lambda: DiffV1(64, 8, lam="big"), "lam: got 'big', expected 'learned' or a number"),
        (lambda: DiffV1(64, 8, lam=float("nan")), "lam: got nan"),
        (lambda: DiffV1(64, 8, lam_init=True), "lam_init: got True, expected 'depth' or a number"),
        (lambda: DiffV1(64, 8, lam_init=1), "makes the norm's factor 1 - lam_init zero"),
        (
            lambda: DiffV1(64, 8, lam=0.5, lam_init=0.8, head_norm="none"),
            "lam_init=0.8 has no effect when lam is fixed at 0.5 and head_norm is 'none'",
        ),
        (lambda: mechanism("top_k")(64, 8, k=0), "k: got 0, expected at least 1 key"),
        (lambda: mechanism("signed_mask")(64, 8, rank=0), "rank: got 0, expected at least 1"),
        (lambda: mechanism("fixed_noise")(64, 8, gate="max"), "gate: got 'max', expected"),
        (lambda: mechanism("dif_v1"), r"got 'dif_v1', allowed are standard, .* mean 'diff_v1'\?"),
        (lambda: Standard(64, 8, head_dim=5, rope_theta=1e4), "RoPE .* needs even widths"),
    ],
)  # fmt: skip
def test_errors_say_what_to_change(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name, kind in MECHANISMS.items()
        for option, hint in get_type_hints(kind.Options).items()
        if float in (hint, *get_args(hint))
    ],
)
def test_options_are_finite_before_the_first_forward_pass(name, option, value):
    with pytest.raises(ValueError, match=rf"mechanism '{name}', .*\b{option}\b.*: got .*{value}"):
        mechanism(name)(64, 8, **{option: value})


def test_the_registry_has_every_mechanism_under_its_name():
    released = "standard diff_v1 diff_v2 grouped low_dim_noise low_rank_noise fixed_noise top_k "
    released += "signed_mask gated sink"  # saved models name them: none may disappear
    assert {*released.split()} <= {*MECHANISMS}
    for name, kind in MECHANISMS.items():
        assert kind.name == name
        assert kind.__module__ == f"antiphase.attention.{name}"
    folder = Path(antiphase.attention.__file__).parent
    defined = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"^class \w+\(Attention\)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert defined == {*MECHANISMS}  # no file without a line in the registry


def test_public_names_derive_from_the_registry():
    for name, class_name in CLASSES.items():
        kind = MECHANISMS[name]
        assert kind.__name__ == class_name
        assert kind.__bases__ == (Attention,)  # each file is readable on its own
        for package in (antiphase, antiphase.attention):
            assert getattr(package, class_name) is kind
            assert class_name in package.__all__
            assert class_name in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = antiphase.attention.nonsense
