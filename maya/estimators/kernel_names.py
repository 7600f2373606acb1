"""What the (demangled) name of a kernel says: types of the operands, their number, template arguments.

PyTorch's kernels carry their operand types as template arguments of a functor or as the arguments of a
lambda, and the number of operand pointers as the length of an array type.
"""

import re
from functools import lru_cache

TYPE_BYTES = {
    "c10::complex<double>": 16,
    "c10::complex<float>": 8,
    "c10::complex<c10::Half>": 4,
    "c10::complex<c10::BFloat16>": 4,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "cutlass::bfloat16_t": 2,
    "cutlass::half_t": 2,
    "__nv_bfloat16": 2,
    "__half": 2,
    "unsigned char": 1,
    "signed char": 1,
    "unsigned int": 4,
    "unsigned short": 2,
    "unsigned long": 8,
    "double": 8,
    "float": 4,
    "long": 8,
    "short": 2,
    "int": 4,
    "bool": 1,
    "char": 1,
}
_TYPE = "(?:" + "|".join(map(re.escape, TYPE_BYTES)) + ")"
_TYPES = rf"({_TYPE}(?:, {_TYPE})*)"
# The operands of a lambda; the lambda that PyTorch wraps around a functor takes an int, the index.
_LAMBDA = re.compile(r"\{lambda\((?!int\))" + _TYPES + r"[,)]")
# Types that start the template arguments of a functor or of the kernel itself, behind numbers:
# CUDAFunctor_add<float>.
_TEMPLATE = re.compile(r"[A-Za-z_]\w*<(?:\d+, )*" + _TYPES + r"[,> ]")
_ANY_TYPE = re.compile(r"\b" + _TYPE)
_OPAQUE = re.compile(r"OpaqueType<(\d+)")
_POINTERS = re.compile(r"[Aa]rray<char\s?\*, (\d+)")
_NARROWING_COPY = re.compile(r"(?:bfloat16|float16|half)_copy_kernel")
_WIDENING_COPY = re.compile(r"(?:bfloat16|float16|half)tofloat32_copy_kernel")


def _sizes(types: str) -> tuple[int, ...]:
    return tuple(TYPE_BYTES[t] for t in types.split(", "))


@lru_cache(maxsize=65536)
def element_bytes(name: str) -> int:
    """Size of the elements that the kernel mainly works on; 4 where the name does not say."""
    opaque = _OPAQUE.search(name)
    if opaque:
        return int(opaque.group(1))
    for pattern in (_LAMBDA, _TEMPLATE):
        match = pattern.search(name)
        if match:
            return _sizes(match.group(1))[0]
    match = _ANY_TYPE.search(name)
    return TYPE_BYTES[match.group(0)] if match else 4


@lru_cache(maxsize=65536)
def bytes_per_element(name: str) -> int:
    """Bytes that an elementwise kernel reads and writes for one element of its output."""
    if _NARROWING_COPY.search(name) or _WIDENING_COPY.search(name):
        return 6  # between 4- and 2-byte types
    size = element_bytes(name)
    arguments = _LAMBDA.search(name)
    types = _sizes(arguments.group(1)) if arguments else ()
    pointers = _POINTERS.search(name)
    if pointers:
        num_operands = int(pointers.group(1))
    elif "AUnaryFunctor" in name or "BUnaryFunctor" in name or "OnSelf" in name:
        num_operands = 2
    elif "BinaryFunctor" in name or "CUDAFunctor_add" in name:
        num_operands = 3
    else:
        num_operands = len(types) + 1 if types else 2
    if "WithCast" in name and num_operands == 2 and size in (2, 4, 8):
        # Between types of different sizes, of which the name gives one: fp32 and a half, or int64 and int32.
        return {2: 6, 4: 6, 8: 12}[size]
    if len(types) == num_operands - 1:
        return sum(types) + size  # the result has the type of the first argument, as a rule
    return num_operands * size


def first_two_sizes(name: str) -> tuple[int, int]:
    """Sizes of the first two types of the template arguments, or of the first twice."""
    match = _TEMPLATE.search(name)
    sizes = _sizes(match.group(1)) if match else (element_bytes(name),)
    return sizes[0], sizes[1] if len(sizes) > 1 else sizes[0]


@lru_cache(maxsize=65536)
def foreach_accesses(name: str) -> int:
    """Reads and writes per element of a multi_tensor_apply kernel.

    Fused optimizers read parameter, gradient and moments and write all but the gradient. Functors of
    foreach operators end in <depth, r_args, res_arg>: they read r_args lists and write one.
    """
    fused = re.search(r"FusedOptimizerTensorListMetadata<(\d+)>", name)
    if fused:
        return 2 * int(fused.group(1)) - 1
    if "LpNorm" in name or "LpMax" in name:
        return 1
    arguments = re.search(r"Functor<[^<>]*?(\d+), (\d+), (\d+)>", name)
    if arguments:
        return int(arguments.group(2)) + 1
    depth = re.search(r"Metadata<(?:[a-zA-Z0-9:_]+, )?(\d+)>", name)
    return int(depth.group(1)) + 1 if depth else 2


@lru_cache(maxsize=65536)
def trailing_bools(name: str) -> tuple[bool, ...]:
    """The boolean template arguments that end the template argument list of a kernel."""
    match = re.search(r"((?:, (?:true|false))+)>\(", name)
    return tuple(flag == "true" for flag in re.findall("true|false", match.group(1))) if match else ()
