"""What a configuration costs, compared with the model itself."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from antiphase.models import AntiphaseForCausalLM, preset
from antiphase.models.cost_table import MECHANISM_COLUMNS, mechanism_rows
from antiphase.models.summary import parameter_table, summarise
from tests.attention.cases import NAMES
from tests.models.tiny import config, model, token_ids


@pytest.mark.parametrize("name", NAMES)
def test_parameters_by_part_add_up(name):
    net = model(name)
    table = parameter_table(net)
    total = table.pop("total")
    assert total == sum(table.values()) == net.num_parameters()
    assert table["embeddings"] == table["head"] == 61 * 64
    assert summarise(net.config, 8, torch.float32).parameters["total"] == total


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_cache_bytes_are_those_of_a_real_cache(name):
    net = model(name, num_key_value_heads=4)
    summary = summarise(net.config, 10, torch.float32)
    cache = net(token_ids(2, 13), use_cache=True).past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert summary.cache_bytes * 2 * 13 == kept
    assert summarise(net.config, 10, torch.bfloat16).cache_bytes * 2 == summary.cache_bytes
    states = [layer.recurrent_states[0] for layer in cache.layers if summary.state_bytes]
    assert summary.state_bytes * 2 == sum(state.nbytes for state in states)


def test_flops_of_standard_are_those_counted_by_hand():
    cfg = config("standard", tie_word_embeddings=True)
    D, layers, context = 64, 2, 50
    matrices = layers * (4 * D * D + 3 * D * 160) + 61 * D
    attention = layers * 2 * D * (context + 1)  # q k^T and A V over all keys
    flops = summarise(cfg, context, torch.float32).flops
    assert flops == pytest.approx(2 * (matrices + attention), rel=1e-3)  # RoPE adds a little


def test_running_noise_costs_fewer_flops_than_a_second_map():
    flops = {
        name: summarise(preset("mini", name), 8192, torch.float32).flops
        for name in ("diff_v1", "low_dim_noise", "low_rank_noise", "fixed_noise")
    }
    assert flops["fixed_noise"] < flops["low_rank_noise"] < flops["low_dim_noise"]
    assert flops["low_dim_noise"] < flops["diff_v1"]


@pytest.mark.parametrize("name", ["linear", "delta", "gru", "lstm"])
@torch.no_grad()
def test_costs_without_keys_are_counted_after_one_token_and_hold_for_all_lengths(name, monkeypatch):
    net = model(name).to("meta")  # a real LSTM is one kernel, which the counter does not know
    net.set_attn_implementation("reference")
    ids = token_ids(1, 30).to("meta")
    cache = net(ids, use_cache=True).past_key_values
    with FlopCounterMode(display=False) as counter:
        net(ids[:, :1], past_key_values=cache)
    forward, lengths = AntiphaseForCausalLM.forward, []

    def recorded(self, ids, *args, **kwargs):
        lengths.append(ids.shape[1])
        return forward(self, ids, *args, **kwargs)

    monkeypatch.setattr(AntiphaseForCausalLM, "forward", recorded)
    summary = summarise(net.config, 30, torch.float32)
    assert lengths == [1, 1]  # prefill and decoding: a recurrence would take long for 30
    assert summary.flops == counter.get_total_flops()
    assert summary.state_bytes == sum(layer.recurrent_states[0].nbytes for layer in cache.layers)


def test_the_table_of_mechanisms_has_the_state_of_recurrent_ones():
    found = {
        name: summarise(preset("mini", name), 8, torch.bfloat16)
        for name in ("standard", "linear", "delta", "gru", "lstm")
    }
    rows = [dict(zip(MECHANISM_COLUMNS, row, strict=True)) for row in mechanism_rows(found)]
    shown = {row["mechanism"]: (row["cache"], row["state"]) for row in rows}
    assert shown["standard"] == ("9,216", "0")
    assert shown["linear"] == ("0", "304k")
    assert shown["delta"] == ("0", "378k")
    assert shown["gru"] == ("0", "5.95k")  # as on docs/choose-a-mechanism.md
    assert shown["lstm"] == ("0", "9.98k")
    assert shown["diff_v1"] == ("-", "-")  # does not fit
