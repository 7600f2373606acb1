"""What a device call costs the host inside CUDA, cuBLAS, cuDNN and NCCL.

A capture sees the host time between calls, but its calls return at once. These are the times of the real
ones, without any waiting for the device: medians over published Kineto traces of H100 and A100 hosts
(NVIDIA GPUs under PyTorch 2.x; the profiler inflates calls, so the lower end of each range is taken), and for
launches the unprofiled loops of gpu-benches (2.43 us H200, 2.62 us A100, 2.05 us A40, kernel included).
What cuBLAS and cuDNN spend on choosing a kernel is not in these sources and not in the numbers.
"""

LAUNCH_US = 2.2  # cudaLaunchKernel

HOST_COST_US: dict[str, float] = {
    "kernel": LAUNCH_US,
    "gemm": LAUNCH_US,
    "conv": LAUNCH_US,
    "attention": LAUNCH_US,
    "library_op": LAUNCH_US,
    "host_func": LAUNCH_US,
    "memcpy": 4.5,
    "memset": 2.4,
    "collective": 30.0,  # 30 to 65 us of a c10d call are spent in NCCL
    "graph_launch": 10.0,  # few nodes; traces: 16 to 25 us under the profiler
    "stream_create": 2.0,
    "stream_destroy": 2.0,
    "event_create": 0.4,
    "event_destroy": 0.4,
    "event_record": 0.4,
    "stream_wait_event": 0.55,
    "event_query": 0.4,
    "stream_query": 0.4,
    "event_sync": 3.0,  # as a stream with nothing pending
    "stream_sync": 3.0,
    "device_sync": 13.0,
    "comm_init": 0.0,  # set-up, not in the steady iterations that are simulated
    "comm_destroy": 0.0,
    # Not calls into the device, or calls that failed:
    "out_of_memory": 0.0,
    "unemulated": 0.0,
    "mark": 0.0,
    "range_push": 0.0,
    "range_pop": 0.0,
}
"""Microseconds of host time by kind of record; malloc and free depend on the memory, see below."""

# By the value of `memory` in malloc and free records: device, pinned_host, managed, stream_ordered,
# virtual_mapping. Traces: cudaMalloc 250 to 400 us, cudaFree 300 us with nothing pending, cudaHostAlloc 1 to
# 3.5 ms. No source for the others: managed and mappings count as device memory, stream-ordered as a launch.
MALLOC_COST_US: tuple[float, ...] = (300.0, 1200.0, 300.0, LAUNCH_US, 300.0)
FREE_COST_US: tuple[float, ...] = (300.0, 300.0, 300.0, LAUNCH_US, 300.0)

LAUNCH_QUEUE_DEPTH = 1024
"""Unfinished operations of a stream at which a launch blocks; V100 and H100 traces: 1021 not yet started."""

PAGEABLE_ASYNC_BYTES = 64 * 1024
"""A pageable host-to-device copy up to this size returns at once (CUDA guide, asynchronous execution)."""
