"""Write a report's files into its sweep's folder."""

from pathlib import Path

from rlsweep.report.data import to_data
from rlsweep.report.html import to_html
from rlsweep.report.markdown import to_markdown
from rlsweep.report.rows import Report
from rlsweep.store.files import write_json, write_text
from rlsweep.store.layout import SweepFolder


def write(report: Report, folder: SweepFolder) -> Path:
    """Write report.json, report.md and report.html into `folder.reports`; gives the path of the HTML page."""
    folder.reports.mkdir(parents=True, exist_ok=True)
    page = folder.reports / "report.html"
    write_json(folder.reports / "report.json", to_data(report))
    write_text(folder.reports / "report.md", to_markdown(report))
    write_text(page, to_html(report))
    return page
