"""The report of a study: one HTML page, and Markdown with figures."""

from pathlib import Path

from antiphase.experiments.report.html import write_html
from antiphase.experiments.report.markdown import as_markdown
from antiphase.experiments.report.rows import cell_text, verdict_rows
from antiphase.experiments.report.static import write_figures
from antiphase.experiments.results import Study
from antiphase.training.checkpoints import write_atomic

__all__ = ["cell_text", "verdict_rows", "write_report"]


def write_report(study: Study, folder: Path) -> Path:
    """Write report.html, report.md and figures/ into a folder; return the page."""
    write_html(study, folder / "report.html")
    write_figures(study.results, folder / "figures")
    write_atomic(folder / "report.md", as_markdown(study))
    return folder / "report.html"
