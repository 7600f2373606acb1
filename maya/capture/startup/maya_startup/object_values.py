"""Values of the small kernels inside ``torch.distributed``'s object collectives.

`all_gather_object` and its kin do arithmetic on the device with the sizes of pickles (``sum``, ``max``,
``cat``) and read the result.
"""

import functools
from typing import Any

from .computed_values import computing
from .groups import replace_everywhere

FUNCTIONS = (
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "broadcast_object_list",
    "send_object_list",
    "recv_object_list",
)


def compute_object_sizes(c10d: Any) -> None:
    """Wraps the functions of the module ``torch.distributed.distributed_c10d``."""
    for name in FUNCTIONS:
        function = getattr(c10d, name, None)
        if function is not None:
            replace_everywhere(function, _with_values(function))


def _with_values(function: Any) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with computing():
            return function(*args, **kwargs)

    return wrapped
