"""The claims table and the figures of docs/findings.md, from the results of all studies.

    python docs/findings.py            # writes the table into the page, and the figures
    python docs/findings.py --table    # prints the table

A claim of the documents is compared with what a study measured. Where a prediction was locked, its
verdict decides: supported agrees, refuted disagrees, invalid (a gate failed) is not tested. Where a
range was published, the interval over seeds does. A study without results is named with its
command.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from antiphase.analysis.statistics import Interval
from antiphase.experiments.e14_dex import HELD, LOSS, LOWEST
from antiphase.experiments.experiment import Chart, Heatmap
from antiphase.experiments.plans import lab_command
from antiphase.experiments.report.static import write_figure
from antiphase.experiments.results import PUBLISHED, RESULTS, Result, Study, load_study
from antiphase.experiments.verdicts import Judgement, Verdict
from antiphase.markdown import markdown_table

DOCS = Path(__file__).parent
PAGE, IMAGES = DOCS / "findings.md", DOCS / "images"
BEGIN, END = "<!-- claims: python docs/findings.py -->", "<!-- end of claims -->"

FOLDERS = {
    "primary": PUBLISHED,
    "synthetic": DOCS / "results" / "synthetic",
    "ladder-nano": DOCS / "results" / "ladder" / "nano",
    "ladder-micro": DOCS / "results" / "ladder" / "micro",
}
DEX = DOCS / "results" / "unchain" / "controls.json"
DEX_COMMAND = "antiphase unchain smollm2 --controls"
DEX_EFFECT = f"{LOSS}: {LOWEST.name} minus {HELD.name}"
STRESS = "1.5x length, near distractors"  # of the primary study
SYNTHETIC_STRESS = "1.5x length, 25% near distractors"
CORRELATION, OTHER_HEAD = "corr(log A1, log A2)", "its null (A2 of another head)"
GAIN, CALIBRATED = "gain in loss over standard", "gain in calibrated loss over standard"
C = "cancelling"
NOT_RUN = "not tested: not run yet"
WORDS = {
    Verdict.SUPPORTED: "agrees",
    Verdict.REFUTED: "disagrees",
    Verdict.UNDECIDED: "undecided",
    Verdict.DESCRIPTIVE: "descriptive",
}


@dataclass(frozen=True)
class Found:
    """What we have beside a claim."""

    number: str
    gates: str
    word: str


@dataclass(frozen=True)
class Claim:
    """A claim of the documents.

    Attributes:
        text: in a few words.
        published: its number, or the direction.
        find: looks up ours.
    """

    text: str
    published: str
    find: Callable[[], Found]


@cache
def study(name: str) -> Study | None:
    """Return a study; None if it has no results yet."""
    folder = FOLDERS[name]
    return load_study(folder) if (folder / RESULTS).is_file() else None


def result(name: str, number: int) -> Result | None:
    """Return a test of a study; None if it was not run."""
    found = study(name)
    run = [] if found is None else [r for r in found.results if r.number == number]
    return run[0] if run and not run[0].why_not else None


def not_run(name: str, number: int) -> Found:
    """Return what a table says of a test that was not run."""
    command = DEX_COMMAND if name == "dex" else f"{lab_command(name)} --only {number}"
    return Found(f"`{command}`", "", NOT_RUN)


def newest(*finders: Callable[[], Found]) -> Callable[[], Found]:
    """Let the first of several studies decide that has been run; the newest is named first."""

    def find() -> Found:
        every = [finder() for finder in finders]
        return next((found for found in every if found.word != NOT_RUN), every[0])

    return find


def predicted(name: str, number: int, effect: str, reading: str) -> Callable[[], Found]:
    """Let the verdict on a locked prediction decide.

    Args:
        name: of the study.
        number: of the test.
        effect: as the report names it.
        reading: whose prediction says what the claim says.
    """

    def find() -> Found:
        test = result(name, number)
        if test is None:
            return not_run(name, number)
        for prediction, judgement in zip(test.predictions, test.judgements(), strict=True):
            if (str(prediction.effect), prediction.reading) == (effect, reading):
                measured = f"{effect} = {test.effects[prediction.effect]}"
                return Found(where(name, number, measured), gates(judgement), word(judgement))
        raise ValueError(f"test {number} of {name}: has no prediction of {reading} about {effect}")

    return find


def within(name: str, number: int, what: str, low: float, high: float) -> Callable[[], Found]:
    """Let a published range decide, by the interval of V1 in the table of published numbers.

    Args:
        name: of the study.
        number: of the test that measures it.
        what: the number's name there.
        low: of the published range.
        high: likewise.
    """

    def find() -> Found:
        test, found = result(name, number), study(name)
        if test is None or found is None:
            return not_run(name, number)
        ours = next(claim.v1 for claim in found.claims if claim.what == what)
        assert isinstance(ours, Interval)
        outside = ours.low > high or ours.high < low
        said = "disagrees" if outside else "agrees" if low <= ours.mean <= high else "undecided"
        judgement = next(iter(test.primary().values()))
        return Found(where(name, number, f"{what}: {ours}"), gates(judgement), said)

    return find


def signed(name: str, number: int, effect: str, sign: int = 1) -> Callable[[], Found]:
    """Let the sign decide, for an effect that nothing was predicted of.

    Args:
        name: of the study.
        number: of the test.
        effect: as the report names it.
        sign: 1 if the claim says that it is above 0, -1 if below.
    """

    def find() -> Found:
        test = result(name, number)
        if test is None:
            return not_run(name, number)
        ours = next(interval for key, interval in test.effects.items() if str(key) == effect)
        low, high = sorted((sign * ours.low, sign * ours.high))
        said = "agrees" if low > 0 else "disagrees" if high < 0 else "undecided"
        judgement = next(iter(test.primary().values()))
        for prediction, judged in zip(test.predictions, test.judgements(), strict=True):
            if str(prediction.effect) == effect:
                judgement = judged
                if judged.verdict is Verdict.INVALID:
                    said = word(judged)
        return Found(where(name, number, f"{effect} = {ours}"), gates(judgement), said)

    return find


def at_best_rates() -> Found:
    """Let the control of settings decide: V1 against standard attention, each at its best rate."""
    sys.path.insert(0, str(DOCS))
    from retrieval_settings import gain_at_best_rates

    ours = gain_at_best_rates()
    said = "agrees" if ours.low > 0 else "disagrees" if ours.high < 0 else "undecided"
    text = f"accuracy: V1 minus standard, {STRESS}, each at its best rate = {ours}"
    return Found(f"{text} (`docs/retrieval_settings.py`, outside the lock)", "none", said)


def not_learned(what: str, settings: int) -> Callable[[], Found]:
    """Say that no setting of a task was learned, so that nothing could be judged."""
    text = f"{what}: standard attention learned none of {settings} settings (docs/log.md)"
    return lambda: Found(text, "learned failed", "not tested: a gate failed")


def dex() -> Found:
    """Look up the primary prediction of the claim in the study of DEX."""
    if not DEX.is_file():
        return not_run("dex", 14)
    row = next(
        row
        for row in json.loads(DEX.read_text())["verdicts"]
        if row["predicts"].startswith(DEX_EFFECT) and row["reading"] == "claim"
    )
    said = {v.value: text for v, text in WORDS.items()}.get(row["verdict"], "not tested")
    return Found(where("dex", 14, f"{DEX_EFFECT} = {row['measured']}"), row["gates"], said)


def where(name: str, number: int, measured: str) -> str:
    """Return a measured number with the study and the test that it is from."""
    return f"{measured} ({name}, test {number})"


def gates(judgement: Judgement) -> str:
    """Return the gates of a prediction in a few words."""
    if judgement.failed:
        return "; ".join(f"{g.gate.kind} failed ({g.measured:.3g})" for g in judgement.failed)
    kinds = dict.fromkeys(g.gate.kind for g in judgement.gates)
    return f"{', '.join(kinds)}: passed" if kinds else "none"


def word(judgement: Judgement) -> str:
    """Return what a judgement says of the claim."""
    if judgement.verdict is Verdict.INVALID:
        return f"not tested: {judgement.void or 'a gate failed'}"
    return WORDS[judgement.verdict]


CLAIMS = (
    Claim(
        "the noise map has a low rank",
        "effective rank 2 to 5, all layers and sizes",
        within("primary", 13, "effective rank of the noise map", 2, 5),
    ),
    Claim(
        "the same, by the participation ratio",
        "",
        within("primary", 13, "the same by the participation ratio", 2, 5),
    ),
    Claim(
        "key tokens gain weight by the subtraction",
        "+30% to +50%",
        within("primary", 5, "weight of key tokens, gain by subtraction", 0.3, 0.5),
    ),
    Claim(
        "attention entropy is lower",
        "lower (other accounts: higher)",
        predicted("primary", 5, "entropy: standard minus V1", "sparsity"),
    ),
    Claim(
        "weights of other tokens go near zero",
        "noise 0.49 to 0.54 -> 0.01 to 0.02",
        predicted("primary", 5, "common-mode rejection, dB: V1", "cancelling"),
    ),
    Claim("or negative", "negative weights exist", signed("primary", 5, "negative mass: V1")),
    Claim(
        "both maps carry the same noise",
        "strong correlation on irrelevant tokens",
        predicted("primary", 1, f"{CORRELATION} on I: V1 minus {OTHER_HEAD}", "cancelling"),
    ),
    Claim(
        "and less of the same signal",
        "weak correlation on relevant tokens",
        predicted("primary", 1, f"{CORRELATION} over sequences, on I minus on R: V1", "cancelling"),
    ),
    Claim(
        "training makes the maps agree",
        "open question",
        predicted(
            "synthetic",
            3,
            f"{CORRELATION} on I: V1 minus A2 of another head, end minus start of training",
            "cancelling",
        ),
    ),
    Claim(
        "noise cancels in the output of heads",
        "expected by that hypothesis",
        predicted(
            "synthetic",
            28,
            "rejection in the output of heads, dB: V1 minus its null (A2 of another example)",
            "cancelling",
        ),
    ),
    Claim(
        "lam learns the optimal weight",
        "approximately",
        predicted("synthetic", 2, f"lam minus lam*, retrieval heads: V1, {SYNTHETIC_STRESS}", C),
    ),
    Claim(
        "the last layers gain most",
        "largest benefit there",
        predicted(
            "primary",
            15,
            "logit drop, A2 is knocked out: V1, last layer minus first layer",
            "unchaining",
        ),
    ),
    Claim(
        "retrieval among distractors is better",
        "needles at 4K",
        newest(
            predicted("synthetic", 25, f"accuracy: V1 minus standard, {SYNTHETIC_STRESS}", C),
            at_best_rates,
        ),
    ),
    Claim(
        "several needles in long contexts",
        "0.85 against 0.55 (6 needles, 2 queried)",
        predicted(
            "synthetic", 17, "accuracy: V1 minus standard, 6 needles, 2 queried, 1.75x length", C
        ),
    ),
    Claim(
        "the gain grows with noise",
        "expected by that hypothesis",
        newest(
            predicted("synthetic", 23, f"{CALIBRATED}: V1, near minus far, mean over lengths", C),
            predicted("primary", 7, f"{GAIN}: V1, near minus far, mean over lengths", C),
        ),
    ),
    Claim(
        "and more than with foreign noise",
        "expected by that hypothesis",
        predicted(
            "synthetic",
            23,
            f"{CALIBRATED}: V1 minus foreign noise, near minus far, mean over lengths",
            C,
        ),
    ),
    Claim(
        "any sparse attention would do",
        "open question",
        newest(
            predicted(
                "synthetic",
                24,
                f"accuracy: top-k, k = 16 minus V1, {SYNTHETIC_STRESS}",
                "sparsity",
            ),
            predicted("primary", 4, f"accuracy: top-k minus V1, {STRESS}", "sparsity"),
        ),
    ),
    Claim(
        "a gate per head would do",
        "open question",
        predicted("primary", 12, f"accuracy: gated minus V1, {STRESS}", "unchaining"),
    ),
    Claim(
        "twice the heads of half the width would do",
        "open question",
        signed(
            "synthetic",
            9,
            f"accuracy: V1 minus standard (half-dim, twice the heads), {SYNTHETIC_STRESS}",
            -1,
        ),
    ),
    Claim(
        "a cheap noise map does as well, at 100% of the parameters",
        "lowest perplexity, or on par",
        predicted("primary", 13, f"accuracy: low-rank noise minus V1, {STRESS}", "unchaining"),
    ),
    Claim(
        "and one whose rank training lowers",
        "open question",
        predicted(
            "synthetic",
            26,
            f"accuracy: V1 with a rank penalty minus V1, {SYNTHETIC_STRESS}",
            "unchaining",
        ),
    ),
    Claim(
        "without its head norm it is worse than standard attention",
        "loss 3.122 against 3.087 (1.4B)",
        newest(
            signed(
                "synthetic",
                25,
                f"accuracy: V1 without head norm minus standard, {SYNTHETIC_STRESS}",
                -1,
            ),
            signed("primary", 8, f"accuracy: V1 without head norm minus standard, {STRESS}", -1),
        ),
    ),
    Claim("many shots are used better", "69.9 -> 87.9 (TREC)", not_learned("many shots", 11)),
    Claim(
        "the order of shots matters less",
        "best minus worst 19.0 -> 4.0 (TREC)",
        predicted(
            "synthetic",
            16,
            "best minus worst of 8 orders, over that of errors at random: standard minus V1, "
            f"{SYNTHETIC_STRESS}",
            C,
        ),
    ),
    Claim(
        "fewer hallucinations",
        "0.36 -> 0.46 free of them (HotpotQA)",
        predicted(
            "synthetic",
            10,
            "answers to unanswerable questions: standard (unanswerable) minus V1 (unanswerable), "
            "equal refusal rate, 2.5x length, near distractors",
            C,
        ),
    ),
    Claim("reasoning is better", "+11.3 points (mathematics)", not_learned("chains", 2)),
    Claim(
        "lower loss on text at equal size",
        "by 0.025 to 0.032 (830M to 13B)",
        predicted("ladder-nano", 20, "held-out loss: standard minus V1", "quality"),
    ),
    Claim(
        "most where the context has the answer",
        "expected by that hypothesis",
        predicted("ladder-nano", 20, "saved on recall hits minus saved on the rest: V1", "quality"),
    ),
    Claim(
        "V2: lower loss on text",
        "by 0.02 to 0.03",
        predicted("ladder-nano", 20, "held-out loss: standard minus V2", "quality"),
    ),
    Claim(
        "no attention sinks",
        "V2 removes them",
        predicted("ladder-nano", 11, "mass on S: standard minus V2", "unchaining"),
    ),
    Claim(
        "few bits of the logits cost less",
        "66.2 -> 58.8 against 63.4 -> 33.9 (4 bits)",
        predicted("ladder-nano", 19, "increase of the loss: standard minus V1, 4 bits", "quality"),
    ),
    Claim("DEX helps a pretrained model by its operation", "+4.0 against +1.6 (LoRA)", dex),
)


def table(claims: Sequence[Claim] = CLAIMS) -> str:
    """Return the claims table as Markdown."""
    rows = []
    for claim in claims:
        found = claim.find()
        rows.append([claim.text, claim.published, found.number, found.gates, f"**{found.word}**"])
    return markdown_table(["claim", "published", "ours, 95% interval", "gates", ""], rows)


def errors() -> Chart | None:
    """Return the error under stress of every arm of the primary study."""
    tests = [result("primary", number) for number in (4, 6, 8, 12, 13)]
    found = {
        effect.arm: interval
        for test in tests
        if test is not None
        for effect, interval in test.effects.items()
        if (effect.metric, effect.condition) == ("1 - accuracy", STRESS)
    }
    points = sorted(found.items(), key=lambda point: point[1].mean)
    return Chart("Errors under stress", "", "fraction", {"": points}, "bars") if points else None


def agreement() -> Chart | None:
    """Return how far the two maps agree on irrelevant tokens, beside the nulls."""
    test = result("primary", 1)
    if test is None:
        return None
    table = next(t for t in test.tables if t.title.startswith("Correlation of logs within rows"))
    last = {row[0]: row for row in table.rows if isinstance(row[2], Interval)}
    series = {
        name: [(column, row[i]) for i, column in enumerate(table.columns) if i > 1]
        for name, row in last.items()
    }
    return Chart("Agreement of A1 and A2 on irrelevant tokens", "", "correlation", series, "bars")


def grid() -> Heatmap | None:
    """Return V1's gain by length and noise: of the full grid, or of the small one."""
    test = result("synthetic", 23) or result("primary", 7)
    maps = [] if test is None else [f for f in test.figures if isinstance(f, Heatmap)]
    return next((f for f in maps if f.title.endswith(" V1")), None)


def ladder() -> Chart | None:
    """Return the loss that V1 and V2 save along training on text."""
    test = result("ladder-nano", 20)
    charts = [] if test is None or test.void else [f for f in test.figures if isinstance(f, Chart)]
    return next((f for f in charts if f.x == "tokens"), None)


FIGURES = {"errors": errors, "agreement": agreement, "grid": grid, "ladder": ladder}


def write_page() -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Print the table, or write it and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the table, write nothing")
    if parser.parse_args().table:
        print(table())
        return
    write_page()
    for name, make in FIGURES.items():
        if figure := make():
            write_figure(figure, IMAGES / f"findings-{name}.png")


if __name__ == "__main__":
    main()
