"""Kinds of operations: what decides their duration and which rows count as one shape.

The names are those of the column ``op_kind`` of a profile, of an annotation, and of `features.RULES`.
"""

from dataclasses import dataclass

STREAM_FEATURES = ("op", "direction", "rows", "cols", "num_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpKind:
    """``features``: columns of the profile schema that decide the duration of a row, besides gpu and dtype.

    ``shape``: the features of which all rows with the same values are held out together.
    """

    name: str
    features: tuple[str, ...] = STREAM_FEATURES
    shape: tuple[str, ...] = ("rows", "cols")


OP_KINDS = {
    kind.name: kind
    for kind in (
        OpKind(name="gemm", features=("op", "batch", "m", "n", "k", "layout"), shape=("n", "k")),
        OpKind(
            name="attention",
            features=(
                "op", "direction", "batch", "seq_q", "seq_kv", "heads_q", "heads_kv", "head_dim",
                "causal",
            ),
            shape=("batch", "seq_q", "head_dim"),
        ),
        OpKind(
            name="conv",
            features=(
                "direction", "batch", "channels_in", "channels_out", "groups", "in_h", "in_w", "out_h",
                "out_w", "kernel_h", "kernel_w", "stride_h", "stride_w", "channels_last",
            ),
            shape=("channels_in", "channels_out", "in_h", "in_w"),
        ),
        OpKind(name="norm"),
        OpKind(name="softmax"),
        OpKind(name="loss"),
        OpKind(name="embedding"),
        OpKind(name="elementwise"),
        OpKind(name="reduction"),
        OpKind(name="copy"),
        OpKind(name="optimizer", shape=("num_bytes",)),
        OpKind(name="foreach", shape=("num_bytes",)),
        OpKind(name="dropout"),
        OpKind(name="random"),
        OpKind(name="pooling"),
        OpKind(name="resize"),
        OpKind(name="sort"),
        OpKind(name="scan"),
        OpKind(name="triton"),
        OpKind(name="memcpy", features=("op", "num_bytes"), shape=("num_bytes",)),
        OpKind(name="memset", features=("num_bytes",), shape=("num_bytes",)),
        OpKind(
            name="collective",
            features=("op", "num_gpus", "num_nodes", "link", "num_bytes"),
            shape=("num_bytes",),
        ),
    )
}  # fmt: skip

STREAM_KINDS = tuple(kind.name for kind in OP_KINDS.values() if kind.features == STREAM_FEATURES)
"""Kinds whose kernels stream tensors through memory: bytes over bandwidth bounds their duration."""
