"""`antiphase lab`: the tests of why differential attention works."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from antiphase.cli.options import (
    AsJson,
    Quiet,
    list_option,
    require_at_least,
    require_output_folder,
    require_packages,
)
from antiphase.cli.output import Output

DEFAULT_FOLDER = Path("runs/lab")


def lab(
    full: Annotated[bool, typer.Option("--full", help="run all tests; takes hours")] = False,
    only: Annotated[Optional[str], typer.Option(help="run tests by number, e.g. 7,8")] = None,
    list_tests: Annotated[bool, list_option("the tests")] = False,
    report: Annotated[
        Optional[Path], typer.Option(help="write the report of this study again, without a run")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of the study")] = DEFAULT_FOLDER,
    seeds: Annotated[int, typer.Option(help="number of seeds")] = 3,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Test why differential attention works: train, measure, judge, report."""
    output = Output(quiet=quiet, as_json=as_json)
    if list_tests:
        _list(output)
        return
    require_at_least(1, seeds=seeds)
    numbers = None if only is None else _numbers(only)
    require_output_folder("--out", out)
    if report is not None and not report.is_dir():
        raise ValueError(f"--report: got {report}, which is no folder of a study")
    require_packages("the report", "lab", "plotly", "matplotlib")
    from antiphase.experiments.registry import select_tests
    from antiphase.experiments.report import cell_text, verdict_rows, write_report
    from antiphase.experiments.results import load_study
    from antiphase.experiments.study import run_study
    from antiphase.experiments.verdicts import READINGS

    if report is not None:
        study = load_study(report)
        out = report if out == DEFAULT_FOLDER else out
    else:
        tests = select_tests(numbers, full)
        quick_arms = not (only or full)
        study = run_study(tests, out, output.progress, quick=quick_arms, seeds=range(seeds))
        study.save(out)
    output.rows(["test", *READINGS], [list(map(cell_text, row)) for row in verdict_rows(study)])
    out.mkdir(parents=True, exist_ok=True)
    page = write_report(study, out)
    output.wrote(page)
    output.note(f"wrote {page.with_name('report.md')}")
    output.json(
        [
            {"test": result.number, "title": result.title, "why_not": result.why_not or None}
            | {reading: result.about(reading) for reading in READINGS}
            for result in study.results
        ]
    )


def _list(output: Output) -> None:
    from antiphase.experiments.registry import EXPERIMENTS

    output.json(
        [
            {"test": n, "title": t.title, "question": t.question, "quick": bool(t.quick)}
            for n, t in EXPERIMENTS.items()
        ]
    )
    for number, test in EXPERIMENTS.items():
        quick = "  (quick)" if test.quick else ""
        output.line(f"{number:3}  {test.title}: {test.question}{quick}")


def _numbers(only: str) -> list[int]:
    try:
        return [int(number) for number in only.split(",")]
    except ValueError:
        raise ValueError(f"--only: got {only!r}, expected numbers and commas, e.g. 7,8") from None
