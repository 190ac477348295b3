"""Metrics on maps whose answer is known by hand."""

import math

import pytest
import torch

from antiphase.analysis.ground_truth import GroundTruth
from antiphase.analysis.metrics import (
    allocation,
    cancellation,
    dynamics,
    rank,
    redundancy,
    sparsity,
)
from antiphase.analysis.metrics.sinks import outliers, sink_mass

T = 10
MANY = 512  # sequences, so that the mean of a null is near 0


def truth(relevant=(3, 4), B=1):
    """Return one row with 10 visible keys: the first a sink, two relevant, the last the query."""
    kinds = torch.zeros(3, T, dtype=torch.bool)
    kinds[0, list(relevant)] = True
    kinds[1, 0] = True
    kinds[2] = ~(kinds[0] | kinds[1])
    kinds[2, T - 1] = False
    R, S, I = (k.expand(B, 1, T) for k in kinds)  # noqa: E741
    return GroundTruth(torch.full((B, 1), T - 1), R, S, I, torch.zeros(B, 1))


def row(*weights):
    return torch.tensor(weights, dtype=torch.double).view(1, 1, 1, -1)


UNIFORM = row(*[1 / T] * T)
ONE_HOT = row(*[float(i == 4) for i in range(T)])
VISIBLE = torch.ones(1, 1, T, dtype=torch.bool)


def test_allocation_of_known_rows():
    found = allocation.allocation(UNIFORM, truth())
    assert float(found["relevant"]) == pytest.approx(0.2)
    assert float(found["sink"]) == pytest.approx(0.1)
    assert float(found["irrelevant"]) == pytest.approx(0.6)
    assert float(found["own"]) == pytest.approx(0.1)
    assert float(allocation.allocation(ONE_HOT, truth())["relevant"]) == 1
    signed = row(-1, 0, 0, 4, 0, 0, 0, -1, 0, -2)
    found = allocation.allocation(signed, truth())
    assert [float(v) for v in found.values()] == pytest.approx([0.5, 0.125, 0.125, 0.25])
    assert float(allocation.allocation(torch.zeros_like(UNIFORM), truth())["sink"]) == 0


def test_signal_gain_is_relative():
    signal = row(0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05)
    assert float(allocation.signal_gain(signal, signal, truth())) == pytest.approx(0)
    better = row(0, 0, 0, 0.2, 0.2, 0.1, 0, 0, 0, 0)  # 0.8 of its mass where 0.2 was
    assert float(allocation.signal_gain(better, signal, truth())) == pytest.approx(3.0)
    nothing = torch.zeros_like(signal)
    assert bool(allocation.signal_gain(signal, nothing, truth()).isnan())


def test_signal_gain_is_pooled_over_rows():
    """A row with almost no A1 on R must not decide the gain of the sequence."""
    t = truth()
    two = GroundTruth(*(x.expand(-1, 2, *x.shape[2:]) for x in vars(t).values()))
    strong = row(0.5, 0, 0, 0.25, 0.25, 0, 0, 0, 0, 0)
    weak = row(1 - 1e-6, 0, 0, 1e-6, 0, 0, 0, 0, 0, 0)
    signal = torch.cat([strong, weak], 2)
    better = torch.cat([ONE_HOT, row(0.9, 0, 0, 0.1, 0, 0, 0, 0, 0, 0)], 2)
    found = allocation.signal_gain(better, signal, two)
    assert found.shape == (1, 1)
    assert float(found) == pytest.approx(1.1 / 0.5 - 1, rel=1e-4)


def test_two_equal_maps_agree_and_are_removed_at_weight_one():
    A1 = torch.rand(2, 3, 1, T, dtype=torch.double).softmax(-1)
    t = truth(B=2)
    assert torch.allclose(cancellation.correlation(A1, A1, t.irrelevant), torch.ones(2, 3).double())
    assert float(cancellation.disagreement(A1, A1, t.irrelevant).abs().max()) == 0
    assert float(cancellation.divergence(A1, A1, t.irrelevant).abs().max()) < 1e-12
    assert torch.allclose(cancellation.optimal_weight(A1, A1, t), torch.ones(2, 3).double())


def shared_noise(seed=0, common=1.0, B=MANY):
    """Return two maps of one row with a fraction `common` of noise in common; one has a signal."""
    g = torch.Generator().manual_seed(seed)
    noise, own = torch.randn(2, B, 2, 1, T, generator=g, dtype=torch.double)
    A2 = noise.softmax(-1)
    mixed = common * noise + math.sqrt(1 - common**2) * own
    mixed[..., [3, 4]] += 3.0
    return mixed.softmax(-1), A2


def test_shared_noise_and_separate_signal_cancel():
    t = truth(B=MANY)
    A1, A2 = shared_noise()
    lam = cancellation.optimal_weight(A1, A2, t)[..., None, None]
    rejected = cancellation.rejection(A1, A1 - lam * A2, t)
    assert float(rejected.min()) > 40  # common noise is removed exactly
    assert float(cancellation.correlation(A1, A2, t.irrelevant).min()) > 0.999
    null = cancellation.from_another_head(A2)
    assert abs(float(cancellation.correlation(A1, null, t.irrelevant).mean())) < 0.1


def test_rows_of_other_lengths_do_not_make_maps_agree():
    """Two unrelated maps whose rows have 4 and 400 visible keys."""
    g = torch.Generator().manual_seed(0)
    where = torch.arange(400) < torch.tensor([4, 400])[:, None]
    maps = (
        torch.randn(8, 1, 2, 400, generator=g).masked_fill(~where, -torch.inf).softmax(-1)
        for _ in range(2)
    )
    found = cancellation.correlation(*maps, where.expand(8, 2, 400))
    assert float(found.abs().max()) < 0.2


def test_separate_noise_does_not_cancel():
    t = truth(B=MANY)
    A1, A2 = shared_noise(common=0.0)
    lam = cancellation.optimal_weight(A1, A2, t)[..., None, None]
    assert float(cancellation.rejection(A1, A1 - lam * A2, t).median()) < 10
    assert abs(float(cancellation.correlation(A1, A2, t.irrelevant).mean())) < 0.1


def test_rejection_in_decibels_of_a_planted_row():
    """R keeps half of its weight, I a twentieth; the sink and the query do not count."""
    signal = row(0.1, 0.1, 0, 0.2, 0.2, 0.1, 0.1, 0, 0, 0.2)
    kept = row(9, -0.005, 0, 0.1, -0.1, 0.005, -0.005, 0, 0, -9)
    assert float(cancellation.rejection(signal, kept, truth())) == pytest.approx(20)
    only_sink = row(1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert bool(cancellation.rejection(only_sink, kept, truth()).isnan())


def test_rejection_in_the_output_of_a_planted_row():
    """Weights of both signs on the same value cancel in the sum, though their magnitudes do not."""
    signal = row(0.1, 0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0, 0, 0.1)
    kept = row(9, 0.11, 0.11, 0.1, 0.1, -0.09, -0.09, 0, 0, -9)  # I: 0.4 -> 0.04; R: 0.4 -> 0.2
    same = torch.ones(1, 1, 10, 3)
    found = cancellation.output_rejection(signal, kept, same, truth())
    assert float(found) == pytest.approx(20 * math.log10(0.5 / 0.1))
    assert float(cancellation.rejection(signal, kept, truth())) < 0
    apart = torch.eye(10)[None, None]
    found = cancellation.output_rejection(signal, kept, apart, truth())
    norms = math.hypot(0.11, 0.11, 0.09, 0.09) / 0.2
    assert float(found) == pytest.approx(20 * math.log10(0.5 / norms))
    only_sink = row(1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert bool(cancellation.output_rejection(only_sink, kept, same, truth()).isnan())


def test_the_optimal_weight_does_not_look_at_the_query_or_the_sink():
    A1 = row(0.3, 0.04, 0.06, 0.2, 0.1, 0, 0, 0, 0, 0.3)
    A2 = row(0.1, 0.08, 0.12, 0.0, 0.0, 0, 0, 0, 0, 0.7)
    assert float(cancellation.optimal_weight(A1, A2, truth())) == pytest.approx(0.5)


def test_nulls_take_the_noise_map_of_another_head_and_of_another_example():
    t = truth(B=MANY)
    A1, A2 = shared_noise()
    for null in (cancellation.from_another_head(A2), cancellation.from_another_example(A2)):
        assert not torch.equal(null, A2)
        assert abs(float(cancellation.correlation(A1, null, t.irrelevant).mean())) < 0.1
    assert torch.equal(cancellation.from_another_example(A2)[1], A2[0])
    assert torch.equal(cancellation.from_another_head(A2)[:, 1], A2[:, 0])
    with pytest.raises(ValueError, match="the layer has 1 head, expected at least 2"):
        cancellation.from_another_head(A2[:, :1])
    with pytest.raises(ValueError, match="the batch has 1 sequence, expected at least 2"):
        cancellation.from_another_example(A2[:1])


def test_another_example_is_compared_where_both_rows_see():
    """Unrelated maps whose rows are at 30 and at 60: unseen keys must not make them disagree."""
    g = torch.Generator().manual_seed(0)
    rows = torch.tensor([[29], [59]]).repeat(32, 1)
    nothing = torch.zeros(64, 1, 60, dtype=torch.bool)
    irrelevant = torch.arange(60) < rows[..., None]
    t = GroundTruth(rows, nothing, nothing, irrelevant, torch.zeros(64, 1))
    hidden = ~t.visible[:, None]
    A1, A2 = (
        torch.randn(64, 1, 1, 60, generator=g).masked_fill(hidden, -torch.inf).softmax(-1)
        for _ in range(2)
    )
    both = cancellation.visible_in_both(t.irrelevant, t)
    assert both.sum(-1).unique().tolist() == [29, 30]
    found = cancellation.correlation(A1, cancellation.from_another_example(A2), both)
    assert abs(float(found.mean())) < 0.1
    assert float(found.abs().max()) < 0.8


def test_a_correlation_without_two_positions_is_undefined():
    A = torch.rand(2, 1, 1, T, dtype=torch.double).softmax(-1)
    one = torch.arange(T) == torch.tensor([[[3]], [[4]]])
    assert bool(cancellation.correlation(A, A, one).isnan().all())


def test_no_subtraction_is_no_rejection():
    A1, _ = shared_noise()
    assert float(cancellation.rejection(A1, A1, truth(B=MANY)).abs().max()) < 1e-9


def test_divergence_of_maps_with_nothing_in_common_is_one_bit():
    a, b = row(0, 1, 1, 0, 0, 0, 0, 0, 0, 0), row(0, 0, 0, 0, 0, 1, 1, 0, 0, 0)
    everywhere = torch.ones(1, 1, T, dtype=torch.bool)
    assert float(cancellation.divergence(a, b, everywhere)) == pytest.approx(1.0)
    assert float(cancellation.disagreement(a, b, everywhere)) == pytest.approx(0.4)


@pytest.mark.parametrize("r", [1, 2, 5])
def test_rank_by_construction(r):
    g = torch.Generator().manual_seed(0)
    U, _ = torch.linalg.qr(torch.randn(20, r, generator=g, dtype=torch.double))
    V, _ = torch.linalg.qr(torch.randn(30, r, generator=g, dtype=torch.double))
    A = U @ V.mT  # r equal singular values
    assert float(rank.effective_rank(A)) == pytest.approx(r)
    assert float(rank.participation_ratio(A)) == pytest.approx(r)
    assert float(rank.energy_rank(A, 1.0)) == r
    found = rank.ranks_of_spectrum(rank.singular_values(A))
    assert {name: round(float(value), 6) for name, value in found.items()} == {
        "effective rank": r,
        "participation ratio": r,
        "rank at 90% energy": r,
    }
    torch.testing.assert_close(rank.truncated(A, r), A)
    assert float((rank.truncated(A, r) - A).norm()) < 1e-9


def test_rank_is_taken_where_causality_adds_none():
    causal = rank.uniform_causal(16)
    assert causal[3, :5].tolist() == [0.25, 0.25, 0.25, 0.25, 0]
    assert float(rank.effective_rank(causal)) > 5
    assert float(rank.effective_rank(rank.lower_left(causal))) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="expected the complete map"):
        rank.lower_left(causal[:3])


@pytest.mark.parametrize(
    ("measure", "uniform", "one"),
    [
        (sparsity.entropy, 1.0, 0.0),
        (sparsity.gini, 0.0, 0.9),
        (sparsity.hoyer, 0.0, 1.0),
        (sparsity.fraction_above_uniform, 0.0, 0.1),
        (sparsity.negative_mass, 0.0, 0.0),
        (sparsity.max_weight, 0.1, 1.0),
        (sparsity.fraction_outside_simplex, 0.0, 0.0),
    ],
)
def test_sparsity_of_uniform_and_one_hot(measure, uniform, one):
    assert float(measure(UNIFORM, VISIBLE)) == pytest.approx(uniform, abs=1e-9)
    assert float(measure(ONE_HOT, VISIBLE)) == pytest.approx(one, abs=1e-9)


def test_sparsity_counts_visible_keys_only():
    visible = torch.arange(T) < 4
    half = row(*[0.25] * 4, *[0.0] * 6)
    assert float(sparsity.entropy(half, visible[None, None])) == pytest.approx(1)
    assert float(sparsity.gini(half, visible[None, None])) == pytest.approx(0)
    assert float(sparsity.hoyer(half, visible[None, None])) == pytest.approx(0)


def test_weights_outside_the_simplex():
    wild = row(1.5, -0.5, 0, 0, 0, 0, 0, 0, 0, 0)
    assert float(sparsity.fraction_outside_simplex(wild, VISIBLE)) == pytest.approx(0.2)
    assert float(sparsity.negative_mass(wild, VISIBLE)) == pytest.approx(0.25)


def test_outliers_and_sinks():
    found = outliers(torch.arange(-200.0, 1))
    assert (found["top-1"], found["top-10"], found["median"]) == (200, 191, 100)
    assert float(sink_mass(ONE_HOT.roll(-4, -1), truth())) == 1


def test_heads_that_repeat_each_other():
    A = torch.rand(2, 1, 4, T)
    assert float(redundancy.cosine_distance(A.expand(2, 3, 4, T)).abs().max()) < 1e-6
    apart = torch.eye(3).view(1, 3, 1, 3)
    assert float(redundancy.cosine_distance(apart)) == pytest.approx(1)
    x = torch.randn(1, 500, 1, 4)
    rotated = x @ torch.linalg.qr(torch.randn(4, 4))[0]
    assert redundancy.cka(torch.cat([x, rotated], 2)) == pytest.approx(1, abs=1e-5)
    assert redundancy.cka(torch.randn(1, 5000, 2, 4)) < 0.05


def test_lanczos_finds_the_extremes():
    g = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(40, 40, generator=g, dtype=torch.double))
    H = Q @ torch.diag(torch.linspace(-3, 7, 40, dtype=torch.double)) @ Q.mT
    top, bottom = dynamics.lanczos(lambda v: H @ v, 40, 40, 0, H)
    assert top == pytest.approx(7, rel=1e-6)
    assert bottom == pytest.approx(-3, rel=1e-6)


def test_a_correlation_over_sequences_is_defined_where_a_row_has_two_positions():
    g = torch.Generator().manual_seed(0)
    B, h, n, T = 64, 3, 1, 20
    where = torch.zeros(B, n, T, dtype=torch.bool)
    where[..., 4:6] = True  # two positions per row: within a row, any correlation is 1 or -1
    common, own = torch.randn(2, B, h, n, T, generator=g)
    for share, expected in ((1.0, 1.0), (0.0, 0.0)):
        A1 = common.exp()
        A2 = (share * common + (1 - share) * own).exp()
        found = cancellation.correlation_over_sequences(A1, A2, where)
        assert found.shape == (B, h)
        assert found[0].numpy() == pytest.approx(expected, abs=0.25)
        assert (found == found[:1]).all()
        assert cancellation.correlation(A1, A2, where).abs().numpy() == pytest.approx(1.0)
    nowhere = torch.zeros_like(where)
    assert cancellation.correlation_over_sequences(A1, A2, nowhere).isnan().all()
