"""Tables, plots and one self-contained HTML page from the summaries of many jobs."""

from maya.report.report import JobReport, write_report

__all__ = ["JobReport", "write_report"]
