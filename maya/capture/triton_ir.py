"""What a Triton kernel does, counted in the text of its IR (TTIR), and where Triton keeps that."""

import json
import re
from collections import Counter
from pathlib import Path

from maya.errors import TraceError
from maya.trace import TritonKernel, read_trace, write_triton_kernels
from maya.trace._decoder import code_hash
from maya.trace.triton_kernels import Dot

CLASSES = {
    "load": ("tt.load", "tt.descriptor_load", "tt.descriptor_gather"),
    "store": ("tt.store", "tt.descriptor_store", "tt.descriptor_scatter"),
    "atomic": ("tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_reduce"),
    "dot": ("tt.dot", "tt.dot_scaled"),
    "reduce": ("tt.reduce",),
    "scan": ("tt.scan",),
    "exp": ("math.exp", "math.exp2", "math.expm1"),
    "log": ("math.log", "math.log2", "math.log1p"),
    "div": ("arith.divf", "tt.precise_divf"),
    "sqrt": ("math.sqrt", "math.rsqrt", "tt.precise_sqrt"),
    "trigonometric": ("math.sin", "math.cos", "math.tanh", "math.erf"),
    "library": ("tt.extern_elementwise",),  # of libdevice
    "arithmetic": (
        *("arith.addf", "arith.subf", "arith.mulf", "arith.negf", "math.fma", "math.absf"),
        *("arith.maxnumf", "arith.minnumf", "arith.maximumf", "arith.minimumf"),
    ),
    "loop": ("scf.for", "scf.while"),
}
"""Operations of the dialects tt, arith, math and scf by class; addresses, masks and conversions are in none.
Source: the dialects' definitions in Triton and MLIR."""

_CLASS_OF = {operation: name for name, operations in CLASSES.items() for operation in operations}
# At the start of a line, after the names of the results; generic forms have the operation in quotes.
_OPERATION = re.compile(r'^\s*(?:%[^=]*= )?"?((?:tt|arith|math|scf)\.[\w.]+)', re.MULTILINE)
_DOT = re.compile(r"= tt\.dot .*tensor<(\d+)x(\d+)x(\w+)[^>]*> \* tensor<\d+x(\d+)x")
_FUNCTION = re.compile(r"tt\.func public @\w+\((.*?)\) attributes")
_PARAMETER = re.compile(r"%\w+: ([^\s,{]+)")


def write_kernel_table(trace_dir: Path, cache_dir: Path) -> None:
    """Looks in Triton's cache for the code that the traces name; what others have loaded has no row."""
    launched: dict[int, str] = {}
    for path in trace_dir.glob("rank*.trace"):
        try:
            codes = read_trace(path, allow_incomplete=True).table("code")
        except TraceError:  # of a rank that was stopped before it did anything; the collation refuses others
            continue
        launched |= dict(zip(codes["hash"], codes["name"], strict=True))
    kernels = {}
    for name in sorted(set(launched.values())):
        for cubin in sorted(cache_dir.glob(f"*/{name}.cubin")):
            code = code_hash(cubin.read_bytes())
            if code in launched:
                kernels[code] = describe_kernel(code, cubin)
    if kernels:
        write_triton_kernels(trace_dir, list(kernels.values()))


def describe_kernel(code: int, cubin: Path) -> TritonKernel:
    """The row of a kernel, from the files that Triton puts beside its device code."""
    metadata = json.loads(cubin.with_suffix(".json").read_text())
    ir = cubin.with_suffix(".ttir").read_text()
    return TritonKernel(
        code=code,
        name=metadata["name"],
        signature=read_signature(ir),
        num_warps=metadata["num_warps"],
        num_stages=metadata["num_stages"],
        shared_bytes=metadata["shared"],
        operations=count_operations(ir),
        dots=tuple(Dot(m=int(m), k=int(k), n=int(n), dtype=dtype) for m, k, dtype, n in _DOT.findall(ir)),
    )


def count_operations(ir: str) -> dict[str, int]:
    """Number of operations of each class that occurs."""
    return dict(Counter(_CLASS_OF[found] for found in _OPERATION.findall(ir) if found in _CLASS_OF))


def read_signature(ir: str) -> tuple[str, ...]:
    """Types of the parameters of the kernel."""
    function = _FUNCTION.search(ir)
    return tuple(_PARAMETER.findall(function[1])) if function else ()
