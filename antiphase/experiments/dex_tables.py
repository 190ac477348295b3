"""Tables and verdicts of test 14, from its finished runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from antiphase.analysis.statistics import Interval, Values, example_interval, seed_interval
from antiphase.experiments.e14_dex import (
    ARMS,
    KV,
    LOSS,
    NUMBER,
    OPERATION,
    PREDICTIONS,
    QUESTION,
    STUDY_ID,
    TITLE,
    Runs,
    contrast,
    measured_effects,
    metrics_of,
    values_of,
)
from antiphase.experiments.report.markdown import cells_table
from antiphase.experiments.results import Result, Study
from antiphase.experiments.verdicts import MIN_SEEDS, Effect, Verdict


def judged(
    runs: Runs, rates: Mapping[str, float], lock: dict[str, Any] | None, seeds: Sequence[int]
) -> dict[str, Any]:
    """Return tables, effects and verdicts of finished arms.

    Args:
        runs: of each arm that was trained with every seed; a prediction about another is `not run`.
        rates: learning rate of each arm.
        lock: of the study, whose primary predictions Holm's method counts.
        seeds: of the runs.
    """
    effects = measured_effects(runs)
    measured = [p for p in PREDICTIONS if {*p.required} <= {*effects}]
    result = Result(NUMBER, TITLE, QUESTION, measured, effects, study_id=STUDY_ID)
    result.seeds = list(seeds)
    study = Study([result], [], [], {}, {}, STUDY_ID, list(seeds), lock)
    adjusted = study.adjusted_p()
    verdicts = []
    for p in PREDICTIONS:
        judgement = p.judge(effects if p in measured else None)
        corrected = adjusted.get((NUMBER, p.reading)) if p.primary else None
        verdicts.append(
            {
                "reading": p.reading,
                "primary": p.primary,
                "predicts": f"{p.effect}: {p.bound}",
                "measured": str(effects[p.effect]) if p in measured else "-",
                "gates": "; ".join(map(str, judgement.gates)),
                "verdict": judgement.verdict.value,
                "p": judgement.p,
                "p_holm": corrected,
            }
        )
    return {
        "table": arm_rows(runs, rates),
        "against_kv_only": against_rows(runs),
        "over_sequences": sequence_rows(effects, runs),
        "by_seed": {
            name: {
                metric: seed_interval(found).by_seed
                for metric in [*metrics_of(runs), OPERATION]
                if (found := values_of(own, metric)) is not None
            }
            for name, own in runs.items()
        },
        "effects": [asdict(effect) | asdict(interval) for effect, interval in effects.items()],
        "verdicts": verdicts,
    }


def arm_rows(runs: Runs, rates: Mapping[str, float]) -> dict[str, Any]:
    """Return every metric after training, one row per arm; the base model first."""
    metrics = metrics_of(runs)
    first = next(iter(runs.values()))[0]
    base = [f"{float(first.before.loss.mean()):.4f}"]
    base += [f"{before:.3g}" for before, _ in first.benchmarks.values()]
    rows = [["base", "-", *base, "-", "-"]]
    for name, own in runs.items():
        losses = seed_interval([run.after.loss for run in own])
        scores = [_loss(losses), *(_interval(values_of(own, metric)) for metric in metrics[1:])]
        lam = [sum(run.lam) / len(run.lam) for run in own if run.lam]
        mean = f"{sum(lam) / len(lam):.3g}" if lam else "-"
        rows.append([name, f"{rates[name]:g}", *scores, _interval(values_of(own, OPERATION)), mean])
    return {"columns": ["", "lr", *metrics, "operation", "lam"], "rows": rows}


def _loss(found: Interval) -> str:
    """Return an interval with four decimals, since differences of 0.005 count."""
    if math.isnan(found.low):
        return f"{found.mean:.4f}"
    return f"{found.mean:.4f} [{found.low:.4f}, {found.high:.4f}]"


def _interval(values: Values | None) -> str:
    return "-" if values is None else str(seed_interval(values))


def against_rows(runs: Runs) -> dict[str, Any]:
    """Return every arm minus `kv-only`, paired by seed and example."""
    metrics = metrics_of(runs)
    by_metric = [minus_kv_only(runs, metric) for metric in metrics]
    rows = [
        [f"{name} minus {KV.name}", *(str(found[name]) for found in by_metric)]
        for name in by_metric[0]
    ]
    return {"columns": ["", *metrics], "rows": rows}


def sequence_rows(effects: Mapping[Effect, Interval], runs: Runs) -> dict[str, Any]:
    """Return differences of losses with intervals over seeds, and over held-out sequences.

    The first, which verdicts use, is about other orders of the training data, the second about
    other text: an effect that only one of them tells from 0 is not certain.
    """
    rows = []
    for effect, over_seeds in effects.items():
        if effect.metric == LOSS and effect.versus is not None:
            pairs = zip(runs[effect.arm], runs[effect.versus], strict=True)
            gaps = np.mean([one.after.loss - other.after.loss for one, other in pairs], axis=0)
            rows.append([str(effect), _loss(over_seeds), _loss(example_interval(gaps))])
    return {"columns": ["difference", "over seeds", "over held-out sequences"], "rows": rows}


def minus_kv_only(runs: Runs, metric: str) -> dict[str, Interval]:
    """Return each other arm minus `kv-only`; nothing if that was not trained."""
    found = {name: contrast(runs, Effect(metric, name, KV.name)) for name in runs}
    return {name: v for name, v in found.items() if v is not None and name != KV.name}


VERDICT_COLUMNS = ["reading", "predicts", "measured", "gates", "verdict", "p (Holm)"]


def verdict_rows(results: dict[str, Any]) -> list[list[str]]:
    """Return one row per prediction; a primary one is marked."""
    return [
        [
            v["reading"] + (" (primary)" if v["primary"] else ""),
            v["predicts"],
            v["measured"],
            v["gates"],
            Verdict(v["verdict"]).label,
            "" if v["p_holm"] is None else f"{v['p_holm']:.2g}",
        ]
        for v in results["verdicts"]
    ]


def status_line(results: dict[str, Any]) -> str:
    """Say which seeds were run under which lock, and whether that allows verdicts."""
    lock, seeds = results["lock"], results["seeds"]
    line = (
        f"Seeds {', '.join(map(str, seeds))} of {len(lock['seeds'])} locked; lock "
        f"{lock['digest'][:16]} of {lock['time']}, commit {lock['commit'][:12]}"
        f"{' with changes' if lock['dirty'] else ''}."
    )
    if len(seeds) < MIN_SEEDS:
        line += f" Fewer than {MIN_SEEDS} seeds: descriptive, without verdicts."
    return line


def as_markdown(results: dict[str, Any]) -> str:
    """Return all tables as Markdown."""
    tables = [results[n] for n in ("table", "against_kv_only", "over_sequences", "tuning")]
    arms, against, sequences, tuning = (cells_table(t["columns"], t["rows"]) for t in tables)
    failed = [f"- **failed**: {title}: {why}" for title, why in results["failed"].items()]
    parts = [
        status_line(results),
        *(["\n".join(failed)] if failed else []),
        cells_table(VERDICT_COLUMNS, verdict_rows(results)),
        arms,
        against,
        sequences,
        tuning,
        results["tuning"]["note"],
        "\n".join(f"- **{arm.name}**: {arm.summary}" for arm in ARMS),
    ]
    return "\n\n".join(parts) + "\n"
