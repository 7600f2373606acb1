"""Reading of trace files, the records of one process's device calls (docs/trace-format.md)."""

from maya.trace.reader import COLLECTIVE_OPS, FIELDS, KINDS, MISSING, Trace, read_trace

__all__ = ["COLLECTIVE_OPS", "FIELDS", "KINDS", "MISSING", "Trace", "read_trace"]
