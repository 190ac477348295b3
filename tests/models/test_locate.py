"""Finding the model that a user names: at once, or an error at once with advice."""

import time

import pytest

from antiphase.models.locate import locate_model, shipped_models


def test_a_shipped_model_is_found_by_name():
    assert locate_model("diff_v1") == str(shipped_models()["diff_v1"])


def test_a_run_folder_means_the_model_inside(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert locate_model(str(tmp_path)) == str(tmp_path / "model")
    assert locate_model(str(tmp_path / "model")) == str(tmp_path / "model")


def test_an_unfinished_run_says_how_to_resume(tmp_path):
    (tmp_path / "recipe.yaml").write_text("task: needle")
    with pytest.raises(ValueError, match=r"antiphase train --resume"):
        locate_model(str(tmp_path))


@pytest.mark.parametrize("content", ["[]", "3", "null", "{", "[" * 100_000])
def test_a_config_without_fields_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json: (expected fields|is not JSON)"):
        locate_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smollm", "did you mean 'smollm2'"),
        ("dif_v1", "did you mean 'diff_v1'"),
        ("./nothing/here", "no such folder"),
        ("nobody/nothing-like-this", "give one of"),
        ("bad name!", "not a valid name on the hub"),
    ],
)
def test_a_wrong_name_fails_at_once_with_advice(name, says):
    began = time.process_time()
    with pytest.raises(ValueError, match=says):
        locate_model(name)
    assert time.process_time() - began < 5  # CPU: the hub's retries would take longer


def test_offline_is_said(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        locate_model("nobody/nothing")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no config.json"):
        locate_model(str(tmp_path))
