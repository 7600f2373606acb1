"""Tables, plots and one self-contained HTML page from the summaries of many jobs."""

from maya.report.report import JobReport, write_report
from maya.report.sweep import report_sweep

__all__ = ["JobReport", "report_sweep", "write_report"]
