"""Gives every operation of a job a duration."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from maya.collate.job import Job, RankTrace
from maya.config.schema import ClusterConfig, GpuConfig
from maya.errors import EstimatorError
from maya.estimators.annotation import Annotation
from maya.estimators.attention import attention_dims, attention_flops
from maya.estimators.bounds import DTYPE_BYTES, memory_us
from maya.estimators.conv import DIRECTIONS, geometry
from maya.estimators.estimator import Estimator
from maya.estimators.features import KERNEL_KEY, kernel_features, missing_to_zero
from maya.estimators.fits import BOUND, MODEL
from maya.estimators.library_codes import CONV_COMPUTE_TF32, CUDNN_DTYPES, gemm_dtypes
from maya.estimators.network import NetworkModel, Placement
from maya.trace import TritonKernel

log = logging.getLogger(__name__)

# Copies between host and device over the data-sheet rate of the link: 26.2 of 31.5 GB/s (PCIe 4, A100) and
# 51.5 of 63 (PCIe 5, H100), nvbandwidth with pinned memory (Azure/AI-benchmarking-guide@8fd0c6e).
PINNED_RATIO = 0.82
# Pageable memory is staged through a pinned buffer by one host core: bandwidthTest, A100 80 GB, 10.0 and 10.8
# GB/s.
PAGEABLE_BYTES_PER_S = 10e9
COPY_START_US = 1.5
BACKWARD_FLOPS_RATIO = 2.5  # of fused attention: 5 products against 2


class Estimate(NamedTuple):
    """Arrays over distinct operations of one kind."""

    duration_us: np.ndarray
    basis: np.ndarray
    op_kind: np.ndarray | str
    dtype: np.ndarray | str
    flops: np.ndarray | float
    num_bytes: np.ndarray


def annotate(job: Job, estimator: Estimator, gpu: GpuConfig, cluster: ClusterConfig) -> list[Annotation]:
    """Durations of the operations of every rank of ``job``.

    Distinct operations are predicted once and shared by all their occurrences.

    Args:
        estimator: of ``gpu``, see `load_estimator`
        cluster: decides what collectives between ranks cost

    Raises:
        EstimatorError: the estimator is of another GPU.
    """
    if estimator.gpu.name != gpu.name:
        raise EstimatorError(
            f"the estimator was trained for {estimator.gpu.name}, the job runs on {gpu.name}: "
            f"load the estimator of {gpu.name}"
        )
    network = NetworkModel(gpu=gpu, cluster=cluster, intra_node=estimator.intra_node)
    placements = [Placement.of(c.ranks, cluster.gpus_per_node) for c in job.communicators]
    annotator = _Annotator(estimator, gpu, network, placements, job.triton_kernels)
    annotations = [annotator.annotate_rank(rank) for rank in job.ranks]
    annotator.log_unknown_kernels()
    return annotations


class _Annotator:
    def __init__(
        self,
        estimator: Estimator,
        gpu: GpuConfig,
        network: NetworkModel,
        placements: list[Placement],
        triton_kernels: Mapping[int, TritonKernel],
    ) -> None:
        self.estimator = estimator
        self.gpu = gpu
        self.network = network
        self.placements = placements
        self.triton_kernels = triton_kernels
        self.unknown_kernels: Counter[str] = Counter()
        self.kinds: dict[str, tuple[tuple[str, ...], Callable[[pd.DataFrame], Estimate]]] = {
            "kernel": (KERNEL_KEY, self._kernels),
            "gemm": (
                ("m", "n", "k", "batch", "type_a", "type_b", "type_c", "compute_type"),
                self._gemms,
            ),
            "conv": (
                (
                    "direction", "dtype", "compute_dtype", "batch", "channels_in", "channels_out", "groups",
                    "in_d", "in_h", "in_w", "kernel_d", "kernel_h", "kernel_w", "out_d", "out_h", "out_w",
                    "stride_h", "stride_w", "channels_last",
                ),
                self._convolutions,
            ),
            "attention": (
                (
                    "direction", "dtype", "batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim_qk",
                    "head_dim_v", "causal",
                ),
                self._attentions,
            ),
            "library_op": (("name", "dtype", "read_bytes", "written_bytes", "flops"), self._library_ops),
            "memcpy": (("direction", "bytes", "host_pinned"), self._copies),
            "memset": (("bytes",), self._memsets),
            "collective": (("communicator", "op", "dtype", "bytes", "peer", "rank"), self._collectives),
        }  # fmt: skip

    def annotate_rank(self, rank: RankTrace) -> Annotation:
        num_ops = len(rank.ops)
        duration_ns = np.zeros(num_ops, np.int64)
        basis = np.zeros(num_ops, np.uint8)
        op_kind = np.full(num_ops, "", object)
        dtype = np.full(num_ops, "", object)
        flops = np.zeros(num_ops)
        num_bytes = np.zeros(num_ops)
        for kind, (columns, predict) in self.kinds.items():
            details = rank.details.get(kind)
            if details is None or details.empty:
                continue
            if kind == "collective":
                details = details.assign(rank=rank.rank)
            rows = rank.ops.index.get_indexer(details.index)
            keys = details[list(columns)]
            group = keys.groupby(list(columns), sort=False, dropna=False).ngroup().to_numpy()
            _, first, inverse = np.unique(group, return_index=True, return_inverse=True)

            def spread(values: Any, inverse: np.ndarray = inverse) -> Any:
                return values[inverse] if isinstance(values, np.ndarray) else values

            estimate = predict(keys.iloc[first].reset_index(drop=True))
            duration_ns[rows] = np.rint(estimate.duration_us[inverse] * 1e3).astype(np.int64)
            basis[rows] = estimate.basis[inverse]
            op_kind[rows] = spread(estimate.op_kind)
            dtype[rows] = spread(estimate.dtype)
            flops[rows] = spread(estimate.flops)
            num_bytes[rows] = estimate.num_bytes[inverse]
            if kind == "kernel":
                self.unknown_kernels.update(details.name[op_kind[rows] == "generic"])
        return Annotation(
            duration_ns=duration_ns, basis=basis, op_kind=op_kind, dtype=dtype, flops=flops, bytes=num_bytes
        )

    def log_unknown_kernels(self) -> None:
        if self.unknown_kernels:
            examples = ", ".join(
                f"{name[:80]} ({count} times)" for name, count in self.unknown_kernels.most_common(3)
            )
            log.warning(
                "%d kernels are of no known kind; their durations come from the size of their launches: %s",
                self.unknown_kernels.total(),
                examples,
            )

    def _kernels(self, keys: pd.DataFrame) -> Estimate:
        features = kernel_features(keys, self.triton_kernels)
        duration_us, basis = self.estimator.predict("elementwise", features)
        flops = np.zeros(len(keys))
        fused = np.flatnonzero(features.batch.notna())
        if len(fused):
            ops = features.iloc[fused].reset_index(drop=True)
            duration_us[fused], basis[fused] = self.estimator.predict("attention", ops)
            flops[fused] = _attention_flops(ops)
        return Estimate(
            duration_us,
            basis,
            features.op_kind.to_numpy(object),
            features.dtype.to_numpy(object),
            flops,
            features.num_bytes.to_numpy(np.float64),
        )

    def _gemms(self, keys: pd.DataFrame) -> Estimate:
        # Column-major C (m x n) of cuBLAS is row-major y[n, m], see maya/estimators/gemm.py.
        dtypes, sizes = gemm_dtypes(keys)
        ops = pd.DataFrame(
            {"m": keys.n, "n": keys.m, "k": keys.k, "batch": np.maximum(keys.batch, 1), "dtype": dtypes}
        )
        duration_us, basis = self.estimator.predict("gemm", ops)
        m, n, k, batch = (ops[c].to_numpy(np.float64) for c in ("m", "n", "k", "batch"))
        num_bytes = batch * (sizes[0] * m * k + sizes[1] * n * k + sizes[2] * m * n)
        return Estimate(duration_us, basis, "gemm", dtypes.astype(object), 2.0 * batch * m * n * k, num_bytes)

    def _convolutions(self, keys: pd.DataFrame) -> Estimate:
        dtypes = _cudnn_dtypes(keys, default="fp32")
        dtypes[(dtypes == "fp32") & (keys.compute_dtype.to_numpy() == CONV_COMPUTE_TF32)] = "tf32"
        ops = keys.assign(
            dtype=dtypes,
            direction=keys.direction.map(dict(enumerate(DIRECTIONS))),
            channels_last=keys.channels_last == 1,
        )
        duration_us, basis = self.estimator.predict("conv", ops)
        shapes = geometry(ops)
        num_bytes = shapes.num_elements * np.array([DTYPE_BYTES[d] for d in dtypes])
        return Estimate(duration_us, basis, "conv", dtypes, shapes.flops, num_bytes)

    def _attentions(self, keys: pd.DataFrame) -> Estimate:
        ops = keys.rename(columns={"head_dim_qk": "head_dim"}).assign(
            op="library",
            dtype=_cudnn_dtypes(keys, default="bf16"),
            direction=np.where(keys.direction == 0, "forward", "backward"),
            causal=keys.causal == 1,
        )
        duration_us, basis = self.estimator.predict("attention", ops)
        batch, heads, seq_q, seq_kv, dim_qk, dim_v = attention_dims(ops)
        num_bytes = 2.0 * batch * (dim_qk + dim_v) * (heads * seq_q + ops.heads_kv * seq_kv)
        return Estimate(
            duration_us,
            basis,
            "attention",
            ops.dtype.to_numpy(object),
            _attention_flops(ops),
            num_bytes.to_numpy(np.float64),
        )

    def _library_ops(self, keys: pd.DataFrame) -> Estimate:
        num_bytes = missing_to_zero(keys.read_bytes) + missing_to_zero(keys.written_bytes)
        flops = missing_to_zero(keys.flops)
        dtypes = _cudnn_dtypes(keys, default="fp32")
        rate = np.array([self.gpu.peak_flops.get(d, self.gpu.peak_flops["fp32"]) for d in dtypes])
        # Half of the peak: such operations (FFT, sparse, RNN, solvers) are varied and none is tabulated.
        duration_us = np.maximum(memory_us(self.gpu, num_bytes, 0.8), flops / (0.5 * rate) * 1e6)
        kinds = np.array([_library_kind(str(name)) for name in keys.name], object)
        return Estimate(duration_us, np.full(len(keys), BOUND), kinds, dtypes, flops, num_bytes)

    def _copies(self, keys: pd.DataFrame) -> Estimate:
        num_bytes = missing_to_zero(keys.bytes)
        pinned_us = num_bytes / (self.gpu.pcie_bytes_per_s * PINNED_RATIO) * 1e6
        pageable_us = num_bytes / min(PAGEABLE_BYTES_PER_S, self.gpu.pcie_bytes_per_s * PINNED_RATIO) * 1e6
        peer_us = num_bytes / max(self.gpu.nvlink_bytes_per_s, self.gpu.pcie_bytes_per_s * PINNED_RATIO) * 1e6
        direction = keys.direction.to_numpy()
        between_us = COPY_START_US + np.where(keys.host_pinned == 1, pinned_us, pageable_us)
        duration_us = np.select(
            [direction == 2, direction == 4],  # device to device, peer to peer
            [memory_us(self.gpu, 2.0 * num_bytes), COPY_START_US + peer_us],
            between_us,
        )
        basis = np.where(direction == 2, BOUND, MODEL).astype(np.uint8)
        return Estimate(duration_us, basis, "memcpy", "", 0.0, num_bytes)

    def _memsets(self, keys: pd.DataFrame) -> Estimate:
        num_bytes = missing_to_zero(keys.bytes)
        return Estimate(
            memory_us(self.gpu, num_bytes), np.full(len(keys), BOUND), "memset", "", 0.0, num_bytes
        )

    def _collectives(self, keys: pd.DataFrame) -> Estimate:
        duration_us = np.empty(len(keys))
        basis = np.empty(len(keys), np.uint8)
        gpus_per_node = self.network.cluster.gpus_per_node
        for i, key in enumerate(keys.itertuples(index=False)):
            placement = self.placements[int(key.communicator)]
            if key.op in ("send", "recv") and int(key.peer) >= 0:
                placement = Placement.of((int(key.rank), int(key.peer)), gpus_per_node)
            duration_us[i], basis[i] = self.network.predict_us(
                str(key.op), str(key.dtype), max(float(key.bytes), 0.0), placement
            )
        return Estimate(duration_us, basis, "collective", "", 0.0, keys.bytes.to_numpy(np.float64))


def _cudnn_dtypes(keys: pd.DataFrame, default: str) -> np.ndarray:
    return np.array([CUDNN_DTYPES.get(int(code), default) for code in keys.dtype], object)


def _attention_flops(ops: pd.DataFrame) -> np.ndarray:
    forward = attention_flops(ops)
    return forward * np.where(ops.direction == "backward", BACKWARD_FLOPS_RATIO, 1.0)


def _library_kind(name: str) -> str:
    lowered = name.lower()
    for fragment, kind in (("norm", "norm"), ("pool", "pooling"), ("softmax", "softmax"), ("conv", "conv")):
        if fragment in lowered:
            return kind
    return "library_op"
