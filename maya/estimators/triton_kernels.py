"""What a launch of a Triton kernel moves, from the sizes of its tensors and the types of its parameters.

torch.compile announces the sizes of all arguments of its kernels in the order of their parameters; the
parameters' types are in the table of a capture (`maya.trace.triton_kernels`).
"""

import re
from collections.abc import Sequence
from math import prod

from maya.trace import TritonKernel

# Element types of TTIR: dtype as profiles name it, bytes.
TYPES = {
    "f64": ("fp64", 8),
    "f32": ("fp32", 4),
    "f16": ("fp16", 2),
    "bf16": ("bf16", 2),
    "f8E4M3FN": ("fp8", 1),
    "f8E5M2": ("fp8", 1),
    "i64": ("int64", 8),
    "i32": ("int32", 4),
    "i16": ("int16", 2),
    "i8": ("int8", 1),
    "i1": ("bool", 1),
}
# Where no table says: mixed-precision training works on bf16 with three operands.
UNKNOWN_TYPE = ("bf16", 2)
UNKNOWN_NUM_OPERANDS = 3

_POINTER = re.compile(r"!tt\.ptr<(\w+)")
# Names that torch.compile gives: pointwise, reduction in a loop or at once, templates (products, attention).
_OPS = {"poi": "pointwise", "red": "reduction", "per": "reduction", "tem": "template", "for": "foreach"}
_COMPILED = re.compile(r"^triton_(poi|red|per|tem|for)_")

Sizes = Sequence[tuple[int, ...]]


def triton_op(name: str) -> str:
    """pointwise, reduction, template or foreach of torch.compile's kernels, "custom" for others."""
    compiled = _COMPILED.search(name)
    return _OPS[compiled.group(1)] if compiled else "custom"


def space_of(name: str, scalars: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the index space from the integer arguments, (0, 0) where they do not say.

    torch.compile passes the numbers of elements as (x) or (y, x) to pointwise kernels, as (rows, reduced) to
    reductions. Other programs pass what they like: the largest is taken.
    """
    sizes = [s for s in scalars if 0 < s < 2**40]
    op = triton_op(name)
    if not sizes:
        return 0, 0
    if op in ("pointwise", "reduction") and len(sizes) > 1:
        return sizes[0], sizes[1]
    return 1, max(sizes)


def pointer_types(kernel: TritonKernel | None) -> list[tuple[str, int] | None]:
    """Type and size of what each parameter points to, None for parameters that are no pointers."""
    if kernel is None:
        return []
    found = (_POINTER.search(parameter) for parameter in kernel.signature)
    return [TYPES.get(match.group(1), UNKNOWN_TYPE) if match else None for match in found]


def triton_bytes(kernel: TritonKernel | None, sizes: Sizes, elements: int) -> float:
    """Bytes read and written at least: every tensor once, and no more of it than the index space has.

    A tensor that is updated in place is read and written, which types and sizes do not tell: it counts once.

    Args:
        sizes: of the arguments in order; empty where they were not recorded, then all pointers are as long as
            the index space
        elements: of the index space, 0 where unknown
    """
    types = pointer_types(kernel)
    num_elements = [prod(size) for size in sizes]
    if elements:
        num_elements = [min(n, elements) for n in num_elements]
    if types and len(types) == len(sizes):
        pairs = zip(types, num_elements, strict=True)
        return float(sum(pointed[1] * n for pointed, n in pairs if pointed is not None))
    if any(sizes):
        return float(UNKNOWN_TYPE[1] * sum(n for n, size in zip(num_elements, sizes, strict=True) if size))
    pointed_bytes = sum(pointed[1] for pointed in types if pointed is not None)
    return float(elements * (pointed_bytes or UNKNOWN_NUM_OPERANDS * UNKNOWN_TYPE[1]))


def triton_dtype(kernel: TritonKernel | None) -> str:
    """The type of most pointers; bf16 where no table says."""
    dtypes = [pointed[0] for pointed in pointer_types(kernel) if pointed is not None]
    return max(dtypes, key=dtypes.count) if dtypes else UNKNOWN_TYPE[0]
