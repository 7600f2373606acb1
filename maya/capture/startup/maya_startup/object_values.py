"""Values of the small kernels inside ``torch.distributed``'s object collectives.

`all_gather_object` and its kin do arithmetic on the device with the sizes of pickles (``sum``, ``max``,
``cat``) and read the result. Emulated kernels compute nothing, so while such a function runs, these operators
are done once more on the CPU, straight on the memory behind the emulated device. What is launched
and recorded stays the same.
"""

import ctypes
import functools
from typing import Any

from .groups import replace_everywhere

FUNCTIONS = (
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "broadcast_object_list",
    "send_object_list",
    "recv_object_list",
)
_OPERATORS = ("cat", "sum", "add", "add_", "gt", "lt")
_LIMIT_BYTES = 64 << 10  # native/emulator/device.h, kPayloadLimitBytes: larger data are not there


def compute_object_sizes(c10d: Any) -> None:
    """Wraps the functions of the module ``torch.distributed.distributed_c10d``."""
    for name in FUNCTIONS:
        function = getattr(c10d, name, None)
        if function is not None:
            replace_everywhere(function, _with_values(function))


def _with_values(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _mode_class()():
            return function(*args, **kwargs)

    return wrapped


@functools.cache
def _mode_class() -> type:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    complete_collectives = ctypes.CDLL(None).maya_complete_collectives
    complete_collectives.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def on_cpu(tensor: Any) -> Any:
        """The same memory as a CPU tensor."""
        if not tensor.is_cuda:
            return tensor
        storage = tensor.untyped_storage()
        complete_collectives(storage.data_ptr(), storage.nbytes())
        memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        flat = torch.frombuffer(memory, dtype=tensor.dtype)
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    class ValuesMode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            is_computed = func.namespace == "aten" and func._schema.name.removeprefix("aten::") in _OPERATORS
            if not is_computed:
                return func(*args, **(kwargs or {}))
            inputs = tree_map_only(torch.Tensor, lambda tensor: on_cpu(tensor).clone(), (args, kwargs or {}))
            result = func(*args, **(kwargs or {}))
            if result.is_cuda and 0 < result.nbytes <= _LIMIT_BYTES:
                on_cpu(result).copy_(func(*inputs[0], **inputs[1]))
            return result

    return ValuesMode
