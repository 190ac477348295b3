"""Test 14: is it DEX's operation that helps? DEX and its controls, at equal steps and data."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from antiphase.analysis.before_after import Measured
from antiphase.analysis.before_after_plots import draw_against
from antiphase.analysis.before_after_table import ROWS, measured
from antiphase.analysis.statistics import Values, bootstrap, difference
from antiphase.experiments.engine import LocalEngine, train_all
from antiphase.experiments.report.markdown import markdown_table
from antiphase.experiments.unchain import RESULTS, Settings, content_of, read_results, unchain_run
from antiphase.experiments.verdicts import Effect, Prediction, Verdict
from antiphase.pretrained.methods import CONTROLS, METHODS
from antiphase.training.callbacks import read_metrics
from antiphase.training.checkpoints import write_whole

LOSS, RIGHT = "loss of held-out text", "needles found"
COUNTS = {LOSS: 0.01, RIGHT: 0.05}  # nats; share of the questions

# Written before any run. The claim: the operation itself helps. The doubt: it is inert, what helps
# is the tuning of W_K, W_V and W_O around it.
PREDICTIONS = (
    Prediction("claim", Effect(LOSS, "dex", "kvo-only"), "below", COUNTS[LOSS], "it helps"),
    Prediction("claim", Effect(LOSS, "dex", "plus-sign"), "below", COUNTS[LOSS], "minus cancels"),
    Prediction("claim", Effect(RIGHT, "dex", "kvo-only"), "above", COUNTS[RIGHT], "it helps"),
    Prediction("claim", Effect(RIGHT, "dex", "plus-sign"), "above", COUNTS[RIGHT], "minus cancels"),
    Prediction("doubt", Effect(LOSS, "dex", "kvo-only"), "equal", COUNTS[LOSS], "it is inert"),
    Prediction("doubt", Effect(LOSS, "dex", "plus-sign"), "equal", COUNTS[LOSS], "signs are alike"),
    Prediction("doubt", Effect(RIGHT, "dex", "kvo-only"), "equal", COUNTS[RIGHT], "it is inert"),
    Prediction(
        "doubt", Effect(RIGHT, "dex", "plus-sign"), "equal", COUNTS[RIGHT], "signs are alike"
    ),
)


@dataclass(frozen=True)
class TuningJob:
    """One method and seed, for the engine."""

    settings: Settings

    @property
    def key(self) -> str:
        """Return a name of everything that decides the outcome."""
        return f"{self.settings.method}-{self.settings.seed}-{self.settings.digest()}"

    @property
    def title(self) -> str:
        """Return a few words for people."""
        return f"{self.settings.method}, seed {self.settings.seed}"

    @property
    def cost(self) -> float:
        """Return how long it takes, beside others."""
        return float(self.settings.steps * self.settings.batch_size * self.settings.length)

    def done(self, root: Path) -> float:
        """Return the share that is done."""
        folder = root / self.key
        if (folder / RESULTS).is_file():
            return 1.0
        lines = read_metrics(folder)
        return min(lines[-1]["step"] / self.settings.steps, 0.999) if lines else 0.0

    def perform(self, root: Path) -> None:
        """Do it, go on with it, or do nothing if it is finished."""
        unchain_run(self.settings, root / self.key, quiet=True, keep_model=False, shared=root)

    def measured(self, root: Path) -> tuple[Measured, Measured]:
        """Return before and after."""
        return measured(read_results(root / self.key))


def compare_controls(
    settings: Settings,
    root: Path,
    console: Console,
    seeds: Sequence[int],
    engine: LocalEngine | None = None,
) -> dict[str, Any]:
    """Run DEX and every control with each seed; return tables, effects and verdicts."""
    methods = ["dex", *CONTROLS]
    jobs = {
        method: [
            TuningJob(dataclasses.replace(settings, method=method, seed=seed, threads=1))
            for seed in seeds
        ]
        for method in methods
    }
    every = [job for of_a_seed in zip(*jobs.values(), strict=True) for job in of_a_seed]
    _refuse_other_content(root, content_of(settings))
    faults = train_all(every, root, console, engine)
    if faults:
        key, fault = next(iter(faults.items()))
        raise ValueError(f"{key}: {fault} ({len(faults)} of {len(every)} runs failed)")
    found = {method: [job.measured(root) for job in mine] for method, mine in jobs.items()}
    effects = {p.effect: _effect(p.effect, found) for p in PREDICTIONS}
    results = {
        "settings": asdict(settings),
        "seeds": list(seeds),
        "table": _rows(found),
        "against_dex": _against(found),
        "verdicts": [
            {
                "reading": p.reading,
                "predicts": f"{p.effect}: {p.bound}",
                "measured": str(effects[p.effect]),
                "verdict": p.judge(effects[p.effect]).value,
            }
            for p in PREDICTIONS
        ],
    }
    drawn = {
        what: {
            control: bootstrap(difference(_after(found["dex"], f), _after(found[control], f)))
            for control in CONTROLS
        }
        for what, f in ((LOSS, "loss"), (RIGHT, "right"))
    }
    draw_against(drawn, root / "controls.png")
    write_whole(root / "controls.json", json.dumps(results, indent=1))
    write_whole(root / "controls.md", as_markdown(results))
    return results


def _refuse_other_content(root: Path, content: str) -> None:
    """Refuse to mix runs of other weights or texts with these."""
    path = root / "content.txt"
    root.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        write_whole(path, content)
    elif path.read_text(encoding="utf-8") != content:
        raise ValueError(f"{root}: holds runs of other weights or another text; give another --out")


def _effect(effect: Effect, found: dict[str, list[tuple[Measured, Measured]]]) -> Any:
    assert effect.versus is not None
    field = "loss" if effect.metric == LOSS else "right"
    one, other = found[effect.arm], found[effect.versus]
    return bootstrap(difference(_after(one, field), _after(other, field)))


def _after(runs: list[tuple[Measured, Measured]], field: str) -> Values:
    return [getattr(after, field) for _, after in runs]


COLUMNS = ["", *(title.partition(",")[0] for title in ROWS)]


def _rows(found: dict[str, list[tuple[Measured, Measured]]]) -> list[list[str]]:
    """Return a row a method: every measure after it; the base model first."""
    base = [[before] for before, _ in found["dex"]][:1]
    rows = [["base", *(str(bootstrap([getattr(m[0], f) for m in base])) for f in ROWS.values())]]
    for method, runs in found.items():
        rows.append([method, *(str(bootstrap(_after(runs, f))) for f in ROWS.values())])
    return rows


def _against(found: dict[str, list[tuple[Measured, Measured]]]) -> list[list[str]]:
    """Return a row a control: DEX minus it, paired by seed and example."""
    dex = found["dex"]
    return [
        [
            f"dex minus {method}",
            *(str(bootstrap(difference(_after(dex, f), _after(runs, f)))) for f in ROWS.values()),
        ]
        for method, runs in found.items()
        if method != "dex"
    ]


VERDICT_COLUMNS = ["reading", "predicts", "measured", "verdict"]


def as_markdown(results: dict[str, Any]) -> str:
    """Return the tables."""
    parts = [
        markdown_table(COLUMNS, results["table"]),
        markdown_table(COLUMNS, results["against_dex"]),
        markdown_table(VERDICT_COLUMNS, verdict_rows(results)),
        "\n".join(f"- **{m}**: {METHODS[m]}" for m in ("dex", *CONTROLS)),
    ]
    return "\n\n".join(parts) + "\n"


def verdict_rows(results: dict[str, Any]) -> list[list[str]]:
    """Return a row a prediction."""
    return [
        [v["reading"], v["predicts"], v["measured"], Verdict(v["verdict"]).label]
        for v in results["verdicts"]
    ]
