"""What the (demangled) name of a kernel says: types of the operands, their number, template arguments.

PyTorch's kernels carry their operand types as template arguments of a functor or as the arguments of a
lambda, and the number of operand pointers as the length of an array type.
"""

import re
from functools import lru_cache

TYPES = {
    "c10::complex<double>": ("complex128", 16),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<c10::Half>": ("complex32", 4),
    "c10::complex<c10::BFloat16>": ("complex32", 4),
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("fp16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "cutlass::bfloat16_t": ("bf16", 2),
    "cutlass::half_t": ("fp16", 2),
    "__nv_bfloat16": ("bf16", 2),
    "__half": ("fp16", 2),
    "unsigned char": ("int8", 1),
    "signed char": ("int8", 1),
    "unsigned int": ("int32", 4),
    "unsigned short": ("int16", 2),
    "unsigned long": ("int64", 8),
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "long": ("int64", 8),
    "short": ("int16", 2),
    "int": ("int32", 4),
    "bool": ("bool", 1),
    "char": ("int8", 1),
}
"""C++ type: its dtype as profiles name it, bytes of an element."""

DTYPE_OF_SIZE = {1: "int8", 2: "bf16", 4: "fp32", 8: "int64", 16: "complex128"}
"""What elements of a size most likely are, where a kernel moves them without knowing their type."""
_TYPE = "(?:" + "|".join(map(re.escape, TYPES)) + ")"
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
# Copies that round to a type, and those that widen to float32.
_NARROWING_COPY = re.compile(r"(bfloat16|float16|half)_copy_kernel")
_WIDENING_COPY = re.compile(r"(?:bfloat16|float16|half)tofloat32_copy_kernel")
_NARROW = {"bfloat16": "c10::BFloat16", "float16": "c10::Half", "half": "c10::Half"}


def _sizes(types: str) -> tuple[int, ...]:
    return tuple(TYPES[t][1] for t in types.split(", "))


@lru_cache(maxsize=65536)
def _element_type(name: str) -> tuple[str, int]:
    """The dtype and size of the elements that the kernel mainly works on; of a cast, of its result."""
    opaque = _OPAQUE.search(name)
    if opaque:
        size = int(opaque.group(1))
        return DTYPE_OF_SIZE.get(size, "int8"), size
    if _WIDENING_COPY.search(name):
        return TYPES["float"]
    narrowing = _NARROWING_COPY.search(name)
    if narrowing:
        return TYPES[_NARROW[narrowing.group(1)]]
    for pattern in (_REDUCED, _LAMBDA, _TEMPLATE):
        match = pattern.search(name)
        if match:
            return TYPES[match.group(1).split(", ")[0]]
    match = _ANY_TYPE.search(name)
    return TYPES[match.group(0)] if match else TYPES["float"]


def element_dtype(name: str) -> str:
    """Type of the elements that the kernel mainly works on; fp32 where the name does not say."""
    return _element_type(name)[0]


def element_bytes(name: str) -> int:
    """Size of these elements."""
    return _element_type(name)[1]


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
        first, second, result = (TYPES[t][1] for t in functor.groups()[2:])
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


# Functors of elementwise kernels that have a name of their own; all others are called by their number of
# operands. Scalars are bound into unary functors, also those of a division, which multiplies by the inverse.
_ELEMENTWISE_OPS = tuple(
    (re.compile(pattern), op)
    for pattern, op in (
        ("CUDAFunctorOn(?:Self|Other)_add", "add_scalar"),
        ("CUDAFunctor_add|[^A-Za-z]AddFunctor<", "add"),
        (r"[AB]UnaryFunctor<.*MulFunctor", "mul_scalar"),
        (r"[AB]UnaryFunctor<.*DivFunctor", "div_scalar"),
        ("BinaryFunctor<.*MulFunctor", "mul"),
        ("BinaryFunctor<.*DivFunctor|div_true_kernel", "div"),
        ("pow_tensor_scalar", "pow_scalar"),
        ("pow_tensor_tensor", "pow"),
        ("[Gg]elu", "gelu"),
        ("tanh", "tanh"),
        ("silu", "silu"),
        # clamp from below by 0; threshold is what PyTorch calls for its gradient.
        ("clamp_scalar|clamp_min_scalar|threshold", "relu"),
        ("FillFunctor|arange|range_cuda|linspace", "fill"),
        ("masked_fill", "masked_fill"),
    )
)
_ARITIES = {0: "fill", 1: "unary", 2: "binary", 3: "ternary"}


@lru_cache(maxsize=65536)
def elementwise_op(name: str) -> str:
    """What an elementwise kernel does.

    Kernels that convert their operands (``_cast``) or compute their addresses (``_strided``: broadcast or
    transposed operands) move the same bytes at other rates.
    """
    op = next((op for pattern, op in _ELEMENTWISE_OPS if pattern.search(name)), None)
    if op is None:
        op = _ARITIES.get(len(operand_bytes(name)) - 1, "ternary")
    if re.search("gpu_kernel_impl<|WithCast", name):
        op += "_cast"
    return f"{op}_strided" if re.search("(?<![a-z]_)elementwise_kernel<", name) else op


_BACKWARD = re.compile(r"[Bb]ackward|_bwd_|_bw_|grad_|Grad|threshold_kernel|masked_scale_kernel|cutlassB")


@lru_cache(maxsize=65536)
def direction(name: str) -> str:
    """Whether a kernel is of a gradient (backward) or not (forward)."""
    return "backward" if _BACKWARD.search(name) else "forward"


_IS_CAST = re.compile(rf"{_NARROWING_COPY.pattern}|{_WIDENING_COPY.pattern}|WithCast|gpu_kernel_impl<")


@lru_cache(maxsize=65536)
def copy_op(name: str) -> str:
    """copy (contiguous), cast, transpose (strided) or cast_strided, of PyTorch's copy kernels."""
    is_strided = bool(re.search("(?<![a-z]_)elementwise_kernel<", name))
    if _IS_CAST.search(name):
        return "cast_strided" if is_strided else "cast"
    return "transpose" if is_strided else "copy"


@lru_cache(maxsize=65536)
def norm_op(name: str) -> str:
    """layer_norm or rms_norm, which are one kernel; its last boolean template argument tells them apart."""
    is_rms = re.search(
        r"[Rr]ms_?[Nn]orm|RMSNorm|layer_norm\w*<[^()]*, true>|GammaBeta\w*<[^()]*, true>", name
    )
    return "rms_norm" if is_rms else "layer_norm"


@lru_cache(maxsize=65536)
def softmax_op(name: str) -> str:
    """softmax or log_softmax; the first boolean template argument of the warp kernels is for the latter."""
    return "log_softmax" if re.search(r"LogSoftMax|softmax_warp_\w+<[^()]*?\d+, true", name) else "softmax"


_REDUCTIONS = tuple(
    (re.compile(pattern), op)
    for pattern, op in (
        ("NormTwoOps|NormOneOps|NormOps|lpnorm|Norm", "norm"),
        ("[Mm]eanOps|mean_kernel", "mean"),
        ("ArgM(?:ax|in)|argm(?:ax|in)", "argmax"),
        ("WelfordOps|std_var", "var"),
        ("M(?:ax|in)(?:Ops|Nan|Functor)|lpmax|max_values|min_values", "max"),
        ("and_kernel|or_kernel", "any"),
        ("prod_", "prod"),
        ("[Ss]um|Plus|plus", "sum"),
    )
)


@lru_cache(maxsize=65536)
def reduction_op(name: str) -> str:
    """sum, mean, norm, max, ...; ``column_`` where several outputs are summed side by side.

    reduce_kernel<threads, outputs, ...> works on more than one output a thread where the reduced dim is not
    the innermost one (ATen/native/cuda/Reduce.cuh).
    """
    op = next((op for pattern, op in _REDUCTIONS if pattern.search(name)), "reduce")
    outputs = re.search(r"reduce_kernel<\d+, (\d+),", name)
    return f"column_{op}" if outputs and outputs.group(1) != "1" else op


_FUNCTOR_NAME = re.compile(r"(\w+?)Functor<")
_FOREACH_NAMES = {"plus": "add", "minus": "sub", "multiplies": "mul", "divides": "div"}


@lru_cache(maxsize=65536)
def foreach_op(name: str) -> str:
    """What a multi_tensor_apply kernel does to each tensor: add, mul_scalar, addcdiv, lerp, norm, ..."""
    if "LpNorm" in name or "LpMax" in name or "L2Norm" in name:
        return "norm"
    operation = re.search(r"std::(plus|minus|multiplies|divides)", name)
    verb = _FOREACH_NAMES[operation.group(1)] if operation else ""
    if "PointwiseOp" in name:
        return f"addc{verb}"
    if verb:
        return verb if "BinaryOpList" in name else f"{verb}_scalar"
    inner = re.search(
        r"(?:Unary|Binary|Ternary)Op\w*Functor<[^<>]*>, (?:\w+::)*(\(anonymous namespace\)::)?(\w+)", name
    )
    if inner:
        return inner.group(2).removesuffix("Functor").lower()
    functor = _FUNCTOR_NAME.search(name)
    return functor.group(1).lower() if functor else "apply"


@lru_cache(maxsize=65536)
def optimizer_op(name: str) -> str:
    """adam, adamw, sgd, ...; apex' Adam decides between the first two at run time and counts as adam."""
    found = re.search(r"Fused?(Adam|Sgd|SGD|Adagrad|Lamb)|(Adam|Lamb|Sgd|SGD|Adagrad)Functor", name)
    op = (found.group(1) or found.group(2)).lower() if found else "fused"
    return "adamw" if op == "adam" and re.search(r"ADAM_MODE\)1", name) else op
