"""`antiphase lab`: the tests of why differential attention works."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from antiphase.cli.engines import (
    Address,
    EngineName,
    ResultsUrl,
    copy_study,
    open_engine,
    require_engine_options,
)
from antiphase.cli.options import (
    AsJson,
    Quiet,
    list_option,
    require_at_least,
    require_output_folder,
    require_packages,
)
from antiphase.cli.output import Output
from antiphase.experiments.registry import LOCKED

if TYPE_CHECKING:
    from antiphase.experiments.plans import Plan
    from antiphase.experiments.results import Study

QUICK_FOLDER = Path("runs/lab")
STUDY = typer.Option("--study", help=f"run a study: {', '.join(LOCKED)}; takes hours, needs a lock")

lab = typer.Typer(
    invoke_without_command=True,
    help="Test why differential attention works: train, measure, judge, report.",
)


@lab.callback()
def run(
    context: typer.Context,
    study_id: Annotated[Optional[str], STUDY] = None,
    full: Annotated[bool, typer.Option("--full", help="the same as --study primary")] = False,
    road: Annotated[
        bool, typer.Option("--road", help="compare mixers from GRU to V2 on recall; takes hours")
    ] = False,
    only: Annotated[Optional[str], typer.Option(help="run tests by number, e.g. 7,8")] = None,
    list_tests: Annotated[bool, list_option("the tests")] = False,
    report: Annotated[
        Optional[Path], typer.Option(help="write the report of this study again, without a run")
    ] = None,
    out: Annotated[
        Optional[Path],
        typer.Option(help=f"folder of the study; default: {QUICK_FOLDER}, or runs/lab-STUDY"),
    ] = None,
    seeds: Annotated[
        Optional[int], typer.Option(help="number of seeds, without --study; default: 3")
    ] = None,
    engine: EngineName = "local",
    address: Address = None,
    results_url: ResultsUrl = None,
    records: Annotated[
        Optional[Path],
        typer.Option(help="keep finished runs without weights in this file; start from it"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="continue from what the repository has of it, in docs/results"
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Test why differential attention works: train, measure, judge, report."""
    if context.invoked_subcommand is not None:
        return
    output = Output(quiet=quiet, as_json=as_json)
    if list_tests:
        _list(output)
        return
    if full and study_id not in (None, "primary"):
        raise ValueError(f"--full: is --study primary, but --study is {study_id}; give one")
    study_id = "primary" if full else study_id
    if road and (study_id, only, seeds, report) != (None, None, None, None):
        raise ValueError(
            "--road: goes with --out, --records, --resume and --engine only; leave out the others"
        )
    if study_id is not None and seeds is not None:
        raise ValueError(f"--seeds: the seeds of {study_id!r} are locked; leave out --seeds")
    if resume and not road and study_id is None:
        raise ValueError("--resume: goes with --full, --study or --road; without, runs just resume")
    if resume and records is not None:
        raise ValueError("--resume: takes the repository's records, but --records is given, too")
    require_at_least(1, seeds=3 if seeds is None else seeds)
    numbers = None if only is None else _numbers(only)
    folder = out or _folder("road" if road else study_id)
    require_output_folder("--out", folder)
    if report is not None and not report.is_dir():
        raise ValueError(f"--report: got {report}, which is no folder of a study")
    require_engine_options(engine, address)
    require_packages("the report", "lab", "plotly", "matplotlib")
    if road:
        _road(folder, output, engine, address, results_url, records, resume)
        return
    from dataclasses import replace

    from antiphase.experiments.results import load_study

    if report is not None:
        study = load_study(report)
        folder = out or report
        folder.mkdir(parents=True, exist_ok=True)
        if folder != report:
            study.save(folder)
        _show(study, folder, output)
    else:
        from antiphase.experiments.leases import LEASES, lease
        from antiphase.experiments.plans import QUICK, select_tests
        from antiphase.experiments.study import run_study
        from antiphase.experiments.study_records import kept_runs

        plan = QUICK if study_id is None else _locked_plan(study_id)
        if seeds is not None:
            plan = replace(plan, seeds=tuple(range(seeds)))
        tests = select_tests(plan, numbers)
        if resume:
            assert plan.kept is not None
            records = kept_runs(plan.kept, folder)
        chosen, copy = open_engine(engine, address, results_url, output)
        study = run_study(plan, tests, folder, output.progress, engine=chosen, records=records)
        with lease(folder / LEASES, "report"):  # another study may end in this folder, too
            study.save(folder)
            _show(study, folder, output)
        copy_study(copy, folder, output)


@lab.command()
def lock(
    study_id: Annotated[str, STUDY] = "primary",
    out: Annotated[Optional[Path], typer.Option(help="folder of the study")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Lock predictions, design and seeds of a study, before its first run."""
    output = Output(quiet=quiet, as_json=as_json)
    out = out or _folder(study_id)
    require_output_folder("--out", out)
    from antiphase.experiments.study import lock_study

    written = lock_study(_locked_plan(study_id), out)
    count = sum(len(predictions) for predictions in written["predictions"].values())
    output.line(
        f"locked {count} predictions of {len(written['predictions'])} tests, seeds "
        f"{written['seeds'][0]} to {written['seeds'][-1]}, at {written['time']}: "
        f"{written['digest'][:16]}"
    )
    output.wrote(out / "lock.json")
    output.json({key: written[key] for key in ("study_id", "seeds", "digest", "commit", "time")})


def _folder(study_id: str | None) -> Path:
    if study_id is None:
        return QUICK_FOLDER
    return Path("runs/lab-full" if study_id == "primary" else f"runs/lab-{study_id}")


def _locked_plan(study_id: str) -> "Plan":
    from antiphase.experiments.plans import PLANS

    locked = {name: plan for name, plan in PLANS.items() if plan.locked}
    if study_id not in locked:
        raise ValueError(f"--study: got {study_id!r}, allowed are {', '.join(locked)}")
    return locked[study_id]


def _road(
    folder: Path,
    output: Output,
    engine: str,
    address: str | None,
    results_url: str | None,
    records: Path | None,
    resume: bool,
) -> None:
    from antiphase.benchmarks.road_costs import road_costs
    from antiphase.experiments.road import KEPT, as_json, run_road
    from antiphase.experiments.road_page import write_road
    from antiphase.experiments.study_records import kept_runs

    if resume:
        records = kept_runs(KEPT)
    chosen, copy = open_engine(engine, address, results_url, output)
    results = run_road(folder, output.progress, engine=chosen, records=records)
    with output.progress.status("measuring: speed by length"):
        costs = road_costs()
    page, picture = write_road(results, costs, folder)
    output.json(as_json(results))
    output.wrote(picture)
    output.wrote(page)
    copy_study(copy, folder, output)


def _show(study: "Study", folder: Path, output: Output) -> None:
    """Print what was measured beside the published study; write the report and name its files."""
    from antiphase.experiments import report
    from antiphase.experiments.results import RESULTS
    from antiphase.experiments.verdicts import READINGS
    from antiphase.explorer.save import save_study_page

    published = report.published_beside(study)
    explorer = save_study_page(folder) if (folder / RESULTS).is_file() else None
    page = report.write_report(study, folder)
    output.json(
        [
            {"test": result.number, "title": result.title, "why_not": result.why_not or None}
            | {reading: report.finding(study, result, reading) for reading in READINGS}
            | {"published": report.published_findings(published, result.number)}
            for result in study.results
        ]
    )
    if rows := report.narrow_verdict_rows(study, published):
        columns = report.verdict_columns(published)[:-1]
        output.rows(columns, [[report.cell_text(cell) for cell in row] for row in rows])
    for line in report.not_run_lines(study, report.numbers_shown(study, published)):
        output.note(line)
    output.note(report.status_line(study))
    if published is None and study.lock is None:
        output.note(report.ABSENT)
    if study.attention:
        output.note("Where each mechanism's attention goes, on the same sequence:")
        output.wrote(folder / report.PICTURE)
    output.note("All numbers and figures on one page:")
    output.wrote(page)
    if explorer is not None:
        output.note("The attention maps of these models, to explore in a browser:")
        output.wrote(explorer)


def _list(output: Output) -> None:
    from antiphase.experiments.registry import EXPERIMENTS

    output.json(
        [
            {
                "test": n,
                "title": t.title,
                "question": t.question,
                "studies": [*t.studies],
            }
            for n, t in EXPERIMENTS.items()
        ]
    )
    for number, test in EXPERIMENTS.items():
        of = f"  ({', '.join(test.studies)})" if test.studies else ""
        output.line(f"{number:3}  {test.title}: {test.question}{of}")


def _numbers(only: str) -> list[int]:
    try:
        return [int(number) for number in only.split(",")]
    except ValueError:
        raise ValueError(f"--only: got {only!r}, expected numbers and commas, e.g. 7,8") from None
