"""The report of a study: one HTML page, and Markdown with figures."""

from pathlib import Path

from antiphase.experiments.report.attention_picture import draw_attention
from antiphase.experiments.report.html import write_html
from antiphase.experiments.report.markdown import as_markdown
from antiphase.experiments.report.published import ABSENT, published_beside
from antiphase.experiments.report.rows import (
    cell_text,
    finding,
    narrow_verdict_rows,
    not_run_lines,
    numbers_shown,
    published_findings,
    status_line,
    verdict_columns,
    verdict_rows,
)
from antiphase.experiments.report.static import write_figures, write_maps
from antiphase.experiments.results import Study
from antiphase.training.checkpoints import write_atomic

__all__ = [
    "ABSENT",
    "EXPLORER",
    "PICTURE",
    "cell_text",
    "finding",
    "narrow_verdict_rows",
    "not_run_lines",
    "numbers_shown",
    "published_beside",
    "published_findings",
    "status_line",
    "verdict_columns",
    "verdict_rows",
    "write_report",
]

PICTURE = "attention.png"
EXPLORER = "explorer.html"
"""The page of `antiphase explore` with the study's own models; the report links it."""


def write_report(study: Study, folder: Path) -> Path:
    """Write report.html, report.md, attention.png and figures/ into a folder; return the page.

    Raises:
        ValueError: a figure would be written to another folder, through a symbolic link.
    """
    figures = folder / "figures"
    for path in (folder / PICTURE, figures, *figures.glob("*")):
        if path.is_symlink():
            raise ValueError(f"{path}: is a symbolic link, through which a figure would be written")
    published = published_beside(study)
    write_figures(study.results, folder / "figures")
    if study.attention:
        draw_attention(study.attention, folder / PICTURE)
        write_maps(study.attention, folder / "figures")
    explorer = EXPLORER if (folder / EXPLORER).is_file() else None
    write_html(study, folder / "report.html", published, explorer)
    write_atomic(folder / "report.md", as_markdown(study, published))
    return folder / "report.html"
