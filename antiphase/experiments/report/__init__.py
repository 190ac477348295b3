"""A study as a page and as Markdown with pictures."""

from pathlib import Path

from antiphase.experiments.report.html import write_html
from antiphase.experiments.report.markdown import as_markdown, verdict_rows
from antiphase.experiments.report.static import write_stills
from antiphase.experiments.study import Study
from antiphase.training.checkpoints import write_atomic

__all__ = ["verdict_rows", "write_report"]


def write_report(study: Study, folder: Path) -> Path:
    """Write the page, the Markdown and its pictures; return the page."""
    write_html(study, folder / "report.html")
    write_stills(study.results, folder / "pictures")
    write_atomic(folder / "report.md", as_markdown(study))
    return folder / "report.html"
