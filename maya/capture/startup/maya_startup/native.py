"""The emulator's C functions for the hooks, found among the preloaded symbols."""

import ctypes
import functools
import json
from collections.abc import Callable, Sequence


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
            self.complete_collectives = library.maya_complete_collectives
            self.discount = library.maya_discount
            self.keep_known = library.maya_keep_known
            self.keep_zeros = library.maya_keep_zeros
            self.origin = library.maya_origin
            self._answer_reads = library.maya_answer_reads
            self._observe_reads = library.maya_observe_reads
            self._find_call_sites = library.maya_find_call_sites
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

        # Plain functions, called for every operator of some functions.
        self.complete_collectives.argtypes = (ctypes.c_void_p, ctypes.c_size_t)  # before memory is read
        self.complete_collectives.restype = None
        self.discount.argtypes = (ctypes.c_int64,)  # nanoseconds of this thread that are not the program's
        self.discount.restype = None
        self.keep_known.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)  # memory was written
        self.keep_known.restype = None
        self.keep_zeros.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.keep_zeros.restype = None
        self.origin.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self.origin.restype = ctypes.c_int
        self._answer_reads.argtypes = (ctypes.POINTER(ctypes.c_int64), ctypes.c_int)
        self._answer_reads.restype = None

    def observe_reads(self, observer: Callable[[int, int], None]) -> None:
        """Has ``observer(bytes, origin)`` called for reads of up to 64 KiB that got made-up values.

        On the thread that reads; origin as of `origin`.
        """
        self._observer = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int)(observer)
        self._observe_reads(self._observer)

    def find_call_sites(self, finder: Callable[[], str]) -> None:
        """Has ``finder`` called where the emulator wants to name the code that a thread is in."""

        def write(target: int, num_bytes: int) -> None:
            text = finder().encode()[:num_bytes]
            ctypes.memmove(target, text, len(text))

        self._finder = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(write)
        self._find_call_sites(self._finder)

    def answer_reads(self, values: Sequence[int]) -> None:
        """What this thread's next reads of up to 8 bytes are answered with, one each."""
        self._answer_reads((ctypes.c_int64 * len(values))(*values), len(values))

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


@functools.cache
def emulator() -> Emulator:
    """That of this process."""
    return Emulator()
