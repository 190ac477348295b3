"""A study as a page and as Markdown."""

from antiphase.lab.report.html import write_html
from antiphase.lab.report.markdown import as_markdown, verdict_rows

__all__ = ["as_markdown", "verdict_rows", "write_html"]
