"""Answers for absent ranks: a rendezvous store and CPU process groups for one rank alone."""

import functools
import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlparse

from .groups import replace_everywhere
from .imports import when_imported
from .session import Session

_UNIQUE_ID_BYTES = 128  # sizeof(ncclUniqueId)
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def signed_fnv1a(data: bytes) -> int:
    """FNV-1a 64 as a signed number: the trace's name for a unique id."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & (2**64 - 1)
    return value - 2**64 if value >= 2**63 else value


class Answers:
    """The contents of a store whose other users are absent.

    Counters read as if everybody had counted, waits return at once, and a key that an absent rank would have
    set reads as 128 bytes derived from its name: as an NCCL unique id, the same in each rank that reads it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._values: dict[str, bytes] = {}
        self._queues: dict[str, list[bytes]] = {}
        self._told: set[str] = set()
        self._lock = threading.RLock()

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value
        if len(value) == _UNIQUE_ID_BYTES:
            self._tell_unique_id(key, value)

    def get(self, key: str) -> bytes:
        with self._lock:
            value = self._values.get(key)
        if value is None:
            value = hashlib.shake_128(key.encode()).digest(_UNIQUE_ID_BYTES)
            self._tell_unique_id(key, value)
        return value

    def add(self, key: str, value: int) -> int:
        with self._lock:
            self._values[key] = str(self._session.world_size).encode()
        return self._session.world_size

    def check(self, keys: Sequence[str]) -> bool:
        with self._lock:
            return all(key in self._values for key in keys)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._lock:
            current = self._values.get(key)
            if current == expected or (current is None and not expected):
                self._values[key] = desired
                return desired
            return expected if current is None else current

    def delete(self, key: str) -> bool:
        with self._lock:
            return self._values.pop(key, None) is not None

    def append(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = self._values.get(key, b"") + value

    def keys(self) -> list[str]:
        with self._lock:
            return list(self._values)

    def push(self, key: str, value: bytes) -> None:
        with self._lock:
            self._queues.setdefault(key, []).append(value)

    def pop(self, key: str) -> bytes:
        with self._lock:
            queue = self._queues.get(key)
            return queue.pop(0) if queue else self.get(key)

    def queue_length(self, key: str) -> int:
        with self._lock:
            return len(self._queues.get(key, ()))

    def _tell_unique_id(self, key: str, value: bytes) -> None:
        if key not in self._told:
            self._told.add(key)
            self._session.events.write("unique_id", hash=signed_fnv1a(value), key=key)


def answer_for_absent_ranks(torch: ModuleType, session: Session) -> None:
    """Replaces what needs a peer in ``torch.distributed``: stores, CPU groups, exchanges of objects."""
    distributed = torch.distributed
    rendezvous = sys.modules["torch.distributed.rendezvous"]  # the attribute of this name is its function
    store_class = _make_store_class(distributed, session)
    for store in (distributed.TCPStore, distributed.FileStore):
        setattr(torch._C._distributed_c10d, store.__name__, store_class)
        replace_everywhere(store, store_class)
    _replace_rendezvous(rendezvous, store_class)
    _replace_gloo(distributed.distributed_c10d)
    _keep_own_objects(distributed)
    when_imported("torch.distributed.pipelining.stage", _take_own_vote)


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _make_store_class(distributed: Any, session: Session) -> type:
    answers = Answers(session)  # one for all stores: they would be clients of one server
    made: list[Any] = []

    class SoloStore(distributed.Store):
        """Stands for TCPStore and FileStore; PyTorch's C++ calls these methods through PrefixStore."""

        def __init__(
            self, host_name: str = "localhost", port: int = 0, *args: object, **kwargs: object
        ) -> None:
            super().__init__()
            self.host, self.port, self.path = host_name, port, host_name
            self.libuvBackend = True
            made.append(self)  # C++ keeps only its own half alive

        def set(self, key: str, value: str | bytes) -> None:
            answers.set(key, _as_bytes(value))

        def get(self, key: str) -> bytes:
            return answers.get(key)

        def add(self, key: str, amount: int) -> int:
            return answers.add(key, amount)

        def check(self, keys: list[str]) -> bool:
            return answers.check(keys)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            return None

        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
            return answers.compare_set(key, _as_bytes(expected), _as_bytes(desired))

        def delete_key(self, key: str) -> bool:
            return answers.delete(key)

        def num_keys(self) -> int:
            return len(answers.keys())

        def list_keys(self) -> list[str]:
            return answers.keys()

        def append(self, key: str, value: str | bytes) -> None:
            answers.append(key, _as_bytes(value))

        def multi_get(self, keys: list[str]) -> list[bytes]:
            return [answers.get(key) for key in keys]

        def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
            for key, value in zip(keys, values, strict=True):
                answers.set(key, _as_bytes(value))

        def has_extended_api(self) -> bool:
            return True

        def queue_push(self, key: str, value: str | bytes) -> None:
            answers.push(key, _as_bytes(value))

        def queue_pop(self, key: str, block: bool = True) -> bytes:
            return answers.pop(key)

        def queue_len(self, key: str) -> int:
            return answers.queue_length(key)

        def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
            return None

        def clone(self) -> "SoloStore":
            return self

        # The names under which C++ looks for two of the overrides.
        deleteKey = delete_key
        getNumKeys = num_keys

    return SoloStore


def _replace_rendezvous(rendezvous: Any, store_class: type) -> None:
    def solo(url: str, *args: object, **kwargs: object) -> Iterator[tuple[object, int, int]]:
        query = dict(parse_qsl(urlparse(url).query))
        rank = int(query.get("rank", os.environ.get("RANK", "0")))
        world_size = int(query.get("world_size", os.environ.get("WORLD_SIZE", "1")))
        yield store_class(), rank, world_size

    for scheme in ("env", "tcp", "file"):
        rendezvous._rendezvous_handlers[scheme] = solo


def _replace_gloo(c10d: Any) -> None:
    """Gloo connects to its peers when it is made; PyTorch's fake group answers with the rank's own data."""
    from torch._C._distributed_c10d import FakeProcessGroup, Logger

    def create(options: Any, backend_options: object) -> Any:
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size)

    class Gloo(FakeProcessGroup):
        def __init__(self, store: object, rank: int, size: int, timeout: object = None) -> None:
            super().__init__(rank, size)

        def _set_sequence_number_for_group(self) -> None:
            """The fake group has none."""

    backend = c10d.Backend
    if hasattr(backend, "_ensure_backend_registered"):
        backend._ensure_backend_registered(backend.GLOO)
        backend._plugins["GLOO"] = backend._BackendPlugin(create, True)
    else:  # PyTorch 2.9 makes Gloo's groups itself
        c10d.ProcessGroupGloo = Gloo
    # DDP's telemetry casts a group of this name to the class that is replaced here.
    Logger.set_construction_data_and_log = lambda *args: None  # type: ignore[method-assign]


def _keep_own_objects(distributed: Any) -> None:
    """Objects that an absent root would send cannot be made up: the rank keeps what it has."""
    c10d = distributed.distributed_c10d
    broadcast, scatter = c10d.broadcast_object_list, c10d.scatter_object_list

    def is_root(group: Any, source: int | None, group_source: int | None) -> bool:
        if group_source is not None:
            return bool(c10d.get_rank(group) == group_source)
        return bool(c10d.get_rank() == (source or 0))

    @functools.wraps(broadcast)
    def broadcast_own(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> None:
        if is_root(group, src, group_src):
            broadcast(object_list, src=src, group=group, device=device, group_src=group_src, **kwargs)

    @functools.wraps(scatter)
    def scatter_own(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
        **kwargs: Any,
    ) -> None:
        if scatter_object_input_list and is_root(group, src, group_src):
            scatter_object_output_list[0] = scatter_object_input_list[c10d.get_rank(group)]

    replace_everywhere(broadcast, broadcast_own)
    replace_everywhere(scatter, scatter_own)
    replace_everywhere(c10d.monitored_barrier, lambda *args, **kwargs: None)


def _take_own_vote(stage_module: Any) -> None:
    """Stages vote whether all know their shapes; those of absent ranks vote as the rank's own do.

    Messages of the vote are sent as ever, so that the same communicators are made.
    """
    stage_class = stage_module.PipelineStage
    forward_vote, backward_result = stage_class._warmup_forward_vote, stage_class._warmup_backward_result

    @functools.wraps(forward_vote)
    def vote(stage: Any, has_backward: bool, received_acc: Any = None) -> Any:
        if stage_module.InferenceMode.needs_dynamic(stage._user_meta, has_backward):
            raise RuntimeError(
                f"Pipeline stage {stage.stage_index} would learn its shapes from the stages of other ranks, "
                "which are absent where each rank is captured alone. Give PipelineStage input_args and "
                "output_args, or capture with mode=linked."
            )
        return forward_vote(stage, has_backward, received_acc).fill_(1)

    @functools.wraps(backward_result)
    def result(stage: Any, received_result: Any = None) -> Any:
        return backward_result(stage, received_result).fill_(1)

    stage_class._warmup_forward_vote, stage_class._warmup_backward_result = vote, result
