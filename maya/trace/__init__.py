"""Reading of trace files, the records of one process's device calls (docs/trace-format.md)."""

from maya.trace.reader import COLLECTIVE_OPS, FIELDS, KINDS, MISSING, Trace, read_trace
from maya.trace.triton_kernels import TritonKernel, read_triton_kernels, write_triton_kernels

__all__ = [
    "COLLECTIVE_OPS",
    "FIELDS",
    "KINDS",
    "MISSING",
    "Trace",
    "TritonKernel",
    "read_trace",
    "read_triton_kernels",
    "write_triton_kernels",
]
