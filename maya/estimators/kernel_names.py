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
# A reduction's input type; its operators are lambdas over the type that it sums in.
_REDUCED = re.compile(r"ReduceOp<(" + _TYPE + r")[,>]")
# Functors of two arguments name the types of both and of the result: a scalar takes the place of A's first
# and of B's second argument.
_FUNCTOR = re.compile(rf"\b(A|B|)(Unary|Binary)Functor<({_TYPE}), ({_TYPE}), ({_TYPE}),")
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
    for pattern in (_REDUCED, _LAMBDA, _TEMPLATE):
        match = pattern.search(name)
        if match:
            return _sizes(match.group(1))[0]
    match = _ANY_TYPE.search(name)
    return TYPE_BYTES[match.group(0)] if match else 4


@lru_cache(maxsize=65536)
def operand_bytes(name: str) -> tuple[int, ...]:
    """Sizes of the elements of an elementwise kernel's result and of its inputs, in this order."""
    if _NARROWING_COPY.search(name):
        return 2, 4
    if _WIDENING_COPY.search(name):
        return 4, 2
    pointers = _POINTERS.search(name)
    num_operands = int(pointers.group(1)) if pointers else 0
    size = element_bytes(name)
    if "WithCast" in name and num_operands in (2, 3) and size in (2, 4, 8):
        # Between types of different sizes, of which the name gives one: fp32 and a half, or int64 and int32.
        other = {2: 4, 4: 2, 8: 4}[size]
        return (size, other) if num_operands == 2 else (size, size, other)
    functor = _FUNCTOR.search(name)
    if functor:
        first, second, result = (TYPE_BYTES[t] for t in functor.groups()[2:])
        inputs = {"A": (second,), "B": (first,)}.get(functor.group(1), (first, second))
        return result, *inputs
    arguments = _LAMBDA.search(name)
    types = _sizes(arguments.group(1)) if arguments else ()
    if not num_operands:
        if "OnSelf" in name:
            num_operands = 2
        elif "CUDAFunctor_add" in name:
            num_operands = 3
        else:
            num_operands = len(types) + 1 if types else 2
    if types and len(types) == num_operands - 1:
        return max(types), *types  # the result has the widest type: where(bool, Half, Half), mul(float, bool)
    return (size,) * num_operands


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
