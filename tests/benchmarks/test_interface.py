"""What `antiphase bench interface` compares: the same model, by PyTorch's attention and by ours."""

import torch

from antiphase.benchmarks import interface
from antiphase.models import attention_interface
from tests.pretrained.small import SIZES


def test_only_the_second_model_calls_our_kernels(monkeypatch):
    lengths = []
    real = attention_interface.attention

    def counted(q, *args, **kwargs):
        lengths.append((q.shape[2], q.dtype))
        return real(q, *args, **kwargs)

    monkeypatch.setattr(attention_interface, "attention", counted)
    costs = interface.compare(2, 12, bf16=True, rounds=1, shape=SIZES)
    found = [(cost.workload, cost.implementation) for cost in costs]
    assert found == [
        (workload, name)
        for workload in (interface.TRAINING, interface.FORWARD)
        for name in (interface.BASELINE, attention_interface.NAME)
    ]
    assert lengths == [(12, torch.bfloat16)] * (2 * 2 * SIZES["num_hidden_layers"])
    assert [cost.wall.median for cost in costs[::2]] == [1.0, 1.0]
