"""The emulator's C functions for the hooks, found among the preloaded symbols."""

import ctypes
import json


class Emulator:
    """The preloaded library. Creating it fails where the process does not have it."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        try:
            self._mark = library.maya_mark
            self._flush = library.maya_flush
            self._repetitions = library.maya_repetitions
            self._matrix_operations = library.maya_matrix_operations
            self._call_counts = library.maya_call_counts
            self._peak_device_bytes = library.maya_peak_device_bytes
            self._peak_nccl_bytes = library.maya_peak_nccl_bytes
            self._announce_split = library.maya_announce_split
        except AttributeError as error:
            raise RuntimeError(f"maya: the emulated GPU is not preloaded in this process ({error})") from None
        self._mark.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        self._mark.restype = None
        self._flush.restype = None
        self._repetitions.restype = ctypes.c_int64
        self._matrix_operations.restype = ctypes.c_int64
        self._call_counts.restype = ctypes.c_char_p
        self._peak_device_bytes.restype = ctypes.c_int64
        self._peak_nccl_bytes.restype = ctypes.c_int64
        self._announce_split.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int)
        self._announce_split.restype = None

    def mark(self, name: str, value: int) -> None:
        self._mark(name.encode(), value)

    def flush(self) -> None:
        """Ends the trace file; nothing is recorded afterwards."""
        self._flush()

    def repetitions(self) -> int:
        """How often the newest period of device operations has repeated."""
        return int(self._repetitions())

    def matrix_operations(self) -> int:
        """Matrix products, convolutions and attention so far."""
        return int(self._matrix_operations())

    def call_counts(self) -> dict[str, object]:
        counts: dict[str, object] = json.loads(self._call_counts() or b"{}")
        return counts

    def peak_device_bytes(self) -> int:
        """The most device memory that the process held so far, context left out."""
        return int(self._peak_device_bytes())

    def peak_nccl_bytes(self) -> int:
        """The most that NCCL communicators held of it."""
        return int(self._peak_nccl_bytes())

    def announce_split(self, color: int, num_ranks: int, rank: int) -> None:
        """Tells the size and rank of the communicator that the next split with this colour makes."""
        self._announce_split(color, num_ranks, rank)
