"""A program that calls the emulated runtime and driver at random and holds the answers against a model.

    python random_calls.py LIBRARY SEED STEPS

The model says of each call which errors are due: none, and it must succeed with its effect; one, and that
must come; several, and any of them may come. Contents are compared up to the 64 KiB that really move.
"""

import ctypes
import mmap
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

PAGE = 2 << 20
CAPACITY = (8 << 30) - (512 << 20)
MAX_BYTES = 1 << 46
PAYLOAD = 64 << 10
HOST_BYTES = 1 << 18

OK, INVALID_VALUE, OUT_OF_MEMORY = 0, 1, 2
INVALID_CONFIGURATION, INVALID_DIRECTION, INVALID_FUNCTION = 9, 21, 98
INVALID_DEVICE, INVALID_HANDLE, ILLEGAL_STATE = 101, 400, 401
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT = range(900, 908)

SIZES = (0, 1, 100, 4096, PAYLOAD, PAYLOAD + 1, 3 << 20, 1 << 30, 9 << 30, 1 << 45, 1 << 62, (1 << 64) - 1)
DEVICE, ASYNC, MANAGED, HOST, REGISTERED, MAPPED = (
    "device",
    "async",
    "managed",
    "host",
    "registered",
    "mapped",
)


class Mismatch(Exception):
    """An answer that the model does not allow."""


def pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(eq=False)
class Block:
    address: int
    size: int
    kind: str
    device_bytes: int = 0
    contents: bytearray | None = None  # None: not followed


@dataclass(eq=False)
class Stream:
    handle: int
    is_blocking: bool = True
    is_alive: bool = True
    capture: "Capture | None" = None
    tail: set[int] = field(default_factory=set)  # nodes that the next one depends on


@dataclass(eq=False)
class Event:
    handle: int
    flags: int
    is_alive: bool = True
    is_recorded: bool = False
    capture: "Capture | None" = None
    tail: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Capture:
    origin: Stream
    mode: int
    is_valid: bool | None = True  # None: one of several errors may have invalidated it
    is_open: bool = True
    streams: list[Stream] = field(default_factory=list)
    ancestors: dict[int, set[int]] = field(default_factory=dict)
    effects: list[Callable[[], None]] = field(default_factory=list)

    def add(self, stream: Stream, effect: Callable[[], None] = lambda: None) -> None:
        node = len(self.ancestors)
        self.ancestors[node] = self.behind(stream.tail)
        stream.tail = {node}
        self.effects.append(effect)

    def behind(self, tail: set[int]) -> set[int]:
        return tail.union(*(self.ancestors[node] for node in tail))

    @property
    def is_joined(self) -> bool:
        reached = self.behind(self.origin.tail)
        return all(stream.tail <= reached for stream in self.streams)


class Driver:
    """Makes calls of one random sequence; methods named ``do_*`` are the calls."""

    def __init__(self, library: str, seed: int) -> None:
        self.cuda = ctypes.CDLL(library)
        self.random = random.Random(seed)
        self.blocks: list[Block] = []
        self.freed: list[int] = []
        self.streams = [Stream(0), Stream(2)]
        self.events: list[Event] = []
        self.captures: list[Capture] = []
        self.graphs: list[tuple[int, list[Callable[[], None]]]] = []
        self.reservations: dict[int, int] = {}
        self.physical: dict[int, list[int]] = {}  # bytes, handles, mappings
        self.mappings: dict[int, int] = {}
        self.last_error = OK
        self.host = ctypes.create_string_buffer(HOST_BYTES)
        self.host_contents = bytearray(HOST_BYTES)
        self.area = mmap.mmap(-1, 1 << 20)  # whole pages, to be registered
        self.area_address = ctypes.addressof(ctypes.c_char.from_buffer(self.area))
        self.kernel, self.kernel_name = ctypes.create_string_buffer(1), ctypes.c_char_p(b"_Z1kPf")
        nothing = (None,) * 5
        register = getattr(self.cuda, "__cudaRegisterFunction")
        register(None, self.kernel, self.kernel_name, self.kernel_name, -1, *nothing)
        self.comm = ctypes.c_void_p()
        self.check("ncclCommInitAll", set(), ctypes.byref(self.comm), 1, None)
        methods = [name for name in dir(self) if name.startswith("do_")]
        self.methods = [getattr(self, name) for name in methods]

    def step(self) -> None:
        self.random.choice(self.methods)()
        if self.random.random() < 0.1:
            self.check_state()

    def check(self, name: str, due: set[int], *arguments: object) -> bool:
        """Calls; True when it succeeded, as it has to when no error is due."""
        print(name, *(shown(a) for a in arguments), "due", sorted(due), file=sys.stderr, flush=True)
        code = getattr(self.cuda, name)(*arguments)
        if code not in (due or {OK}):
            raise Mismatch(f"{name} returned {code}")
        if name.startswith("cuda") and code != OK:
            self.last_error = code
        return code == OK

    def check_state(self) -> None:
        """Memory adds up, errors are remembered, and contents are those of the model."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.check("cudaMemGetInfo", set(), ctypes.byref(free), ctypes.byref(total))
        if free.value != CAPACITY - self.used:
            raise Mismatch(f"{free.value} bytes are free, not {CAPACITY - self.used}")
        if self.cuda.cudaGetLastError() != self.last_error:
            raise Mismatch(f"the last error is not {self.last_error}")
        self.last_error = OK
        if bytes(self.host) != self.host_contents:
            raise Mismatch("host memory differs")
        tracked = [block for block in self.blocks if block.contents is not None]
        if tracked and not self.captures:
            block = self.random.choice(tracked)
            read = ctypes.create_string_buffer(block.size)
            self.check("cudaMemcpy", set(), read, pointer(block.address), size(block.size), 4)
            if bytes(read) != block.contents:
                raise Mismatch(f"{block.kind} memory differs")

    @property
    def used(self) -> int:
        return sum(block.device_bytes for block in self.blocks) + sum(
            entry[0] for entry in self.physical.values()
        )

    # What is due because of captures.

    def unsafe(self) -> set[int]:
        """Calls that a capture cannot see fail it, unless it is a relaxed one."""
        forbidding = [capture for capture in self.captures if capture.mode != 2]
        for capture in forbidding:
            capture.is_valid = False
        return {UNSUPPORTED} if forbidding else set()

    def stream_errors(self, stream: Stream) -> set[int]:
        if not stream.is_alive:
            return {INVALID_HANDLE}
        blocking = [c for c in self.captures if any(s.is_blocking for s in c.streams)]
        if stream.handle != 0 or not blocking:
            return set()
        for capture in blocking:
            capture.is_valid = False
        return {IMPLICIT}

    def spoil(self, due: set[int], *others: set[int]) -> set[int]:
        """All errors that are due; of several, any may come first, so captures may have been invalidated."""
        together = due.union(*others)
        if len(together) > 1:
            for capture in self.captures:
                capture.is_valid = None
        return together

    def run(self, stream: Stream, effect: Callable[[], None]) -> None:
        if stream.capture is not None:
            stream.capture.add(stream, effect)
        else:
            effect()

    # Memory.

    def do_alloc(self) -> None:
        kind = self.random.choice((DEVICE, ASYNC, MANAGED, HOST))
        count = self.random.choice(SIZES)
        stream = self.random.choice(self.streams)
        due = self.stream_errors(stream) if kind == ASYNC else self.unsafe()
        fits = pages(count) <= CAPACITY - self.used
        errors = set()
        if count > MAX_BYTES or (kind in (DEVICE, ASYNC) and not fits):
            errors = {OUT_OF_MEMORY}
        elif kind == MANAGED and count == 0:
            errors = {INVALID_VALUE}
        elif kind in (HOST, MANAGED) and count >= 1 << 45:
            errors = {OUT_OF_MEMORY}  # more than a process can address beside the rest
        due = self.spoil(due, errors)
        names = {DEVICE: "cudaMalloc", ASYNC: "cudaMallocAsync", MANAGED: "cudaMallocManaged"}
        names[HOST] = "cudaHostAlloc"
        extra = {DEVICE: (), ASYNC: (pointer(stream.handle),), MANAGED: (1,), HOST: (0,)}[kind]
        made = ctypes.c_void_p()
        if self.check(names[kind], due, ctypes.byref(made), size(count), *extra) and count:
            if made.value is None or made.value in self.freed:
                raise Mismatch(f"{names[kind]} gave {made.value}")
            contents = bytearray(count) if count <= PAYLOAD else None
            device_bytes = pages(count) if kind != HOST and fits else 0
            self.blocks.append(Block(made.value, count, kind, device_bytes, contents))

    def do_free(self) -> None:
        name, kinds, unknown = self.random.choice(
            (
                ("cudaFree", (DEVICE, ASYNC, MANAGED), INVALID_VALUE),
                ("cudaFreeAsync", (DEVICE, ASYNC, MANAGED), INVALID_VALUE),
                ("cuMemFree_v2", (DEVICE, ASYNC, MANAGED), INVALID_VALUE),
                ("cudaFreeHost", (HOST,), INVALID_VALUE),
                ("cudaHostUnregister", (REGISTERED,), NOT_REGISTERED),
            )
        )
        address, block = self.some_address(bad=0.3)
        is_whole = block is not None and block.address == address
        due = set() if is_whole and block.kind in kinds else {unknown}
        extra: tuple[object, ...] = ()
        if name == "cudaFreeAsync":
            stream = self.random.choice(self.streams)
            due = self.spoil(due, self.stream_errors(stream))
            extra = (pointer(stream.handle),)
        if self.check(name, due, pointer(address), *extra):
            self.blocks.remove(block)
            if block.kind != REGISTERED:
                self.freed.append(address)

    def do_register(self) -> None:
        offset, count = self.random.randrange(0, 200) * 4096, self.random.randrange(0, 20) * 4096
        begin = self.area_address + offset
        due = set()
        if count == 0:
            due = {INVALID_VALUE}
        elif any(b.address < begin + count and begin < b.address + b.size for b in self.blocks):
            due = {ALREADY_REGISTERED}
        if self.check("cudaHostRegister", due, pointer(begin), size(count), 0):
            self.blocks.append(Block(begin, count, REGISTERED))

    def do_copy(self) -> None:
        target, to = self.some_address(bad=0.1, host=0.3)
        source, origin = self.some_address(bad=0.1, host=0.3)
        room = min(self.room(target, to), self.room(source, origin))
        limit = min(room, PAYLOAD if self.random.random() < 0.9 else HOST_BYTES)
        count = self.random.choice((0, 1, 16, limit, room + 1, self.random.randint(0, max(limit, 0))))
        if self.random.random() < 0.03:
            count = self.random.choice(((1 << 64) - 1, 1 << 63))
        stream = self.random.choice(self.streams)
        is_sync = self.random.random() < 0.3
        kind = self.random.choice((0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 9))
        due: set[int] = set()
        if kind == 9:
            due = {INVALID_DIRECTION}
        elif count > 0:
            ends_due = self.range_errors(target, to, count) | self.range_errors(source, origin, count)
            stream_due = self.stream_errors(self.streams[0] if is_sync else stream)
            due = self.spoil(stream_due, self.unsafe() if is_sync else set())
            on_device = (DEVICE, ASYNC, MANAGED, MAPPED)
            to_device = to is not None and to.kind in on_device
            from_device = origin is not None and origin.kind in on_device
            if (kind == 1 and not to_device) or (kind == 2 and not from_device):
                ends_due |= {INVALID_VALUE}
            if kind == 3 and (to is None or origin is None):
                ends_due |= {INVALID_VALUE}
            due = self.spoil(due, ends_due)
        name = "cudaMemcpy" if is_sync else "cudaMemcpyAsync"
        extra = () if is_sync else (pointer(stream.handle),)
        if self.overlap(target, source, count) and not due and count > 0:
            return  # undefined
        if self.check(name, due, pointer(target), pointer(source), size(count), kind, *extra) and count:
            effect = self.copied(target, to, source, origin, count)
            effect() if is_sync else self.run(stream, effect)

    def copied(
        self, target: int, to: Block | None, source: int, origin: Block | None, count: int
    ) -> Callable[[], None]:
        on_device = (DEVICE, ASYNC, MANAGED, MAPPED)

        def effect() -> None:
            gone = [b for b in (to, origin) if b is not None and b not in self.blocks]
            if gone:
                return
            moves = count <= PAYLOAD or (
                (to is None or to.kind not in on_device) and (origin is None or origin.kind not in on_device)
            )
            if moves:
                data = self.read(source, origin, count)
            elif to is None or to.kind not in on_device:
                data = bytes(count)
            else:
                data = None
            self.write(target, to, count, data)

        return effect

    def do_fill(self) -> None:
        target, to = self.some_address(bad=0.2)
        room = self.room(target, to)
        stream = self.random.choice(self.streams)
        value = self.random.randrange(256)
        count = self.random.choice((0, 1, room, room + 1, self.random.randint(0, max(room, 0))))
        element = self.random.choice((1, 4))
        count //= element
        due: set[int] = set()
        if count > 0:
            errors = self.range_errors(target, to, count * element)
            if to is None or target == 0:
                errors = {INVALID_VALUE}
            due = self.spoil(self.stream_errors(stream), errors)
        name = "cudaMemsetAsync" if element == 1 else "cuMemsetD32Async"
        done = self.check(name, due, pointer(target), value, size(count), pointer(stream.handle))
        if done and count:
            data = (bytes([value]) if element == 1 else value.to_bytes(4, "little")) * min(count, PAYLOAD + 1)
            is_known = count * element <= PAYLOAD or (value == 0 and to.kind == HOST)

            def effect() -> None:
                if to in self.blocks:
                    self.write(target, to, count * element, data if is_known else None)

            self.run(stream, effect)

    def do_prefetch(self) -> None:
        address, block = self.some_address(bad=0.2)
        room = self.room(address, block)
        count = self.random.choice((0, 1, room, room + 1))
        stream = self.random.choice(self.streams)
        is_managed = block is not None and block.kind == MANAGED
        is_inside = is_managed and 0 < count <= block.address + block.size - address
        due = self.spoil(self.stream_errors(stream), set() if is_inside else {INVALID_VALUE})
        location = (ctypes.c_int * 2)(1, 0)  # the device 0, by value in one register
        packed = ctypes.c_int64.from_buffer(location)
        self.check(
            "cudaMemPrefetchAsync", due, pointer(address), size(count), packed, 0, pointer(stream.handle)
        )

    # Virtual memory.

    def do_reserve(self) -> None:
        count = self.random.choice((0, 1, PAGE, 4 * PAGE, 1 << 63, (1 << 64) - PAGE))
        due = set() if count in (PAGE, 4 * PAGE) else {INVALID_VALUE}
        made = ctypes.c_uint64()
        if self.check("cuMemAddressReserve", due, ctypes.byref(made), size(count), size(0), size(0), size(0)):
            self.reservations[made.value] = count

    def do_free_reservation(self) -> None:
        if not self.reservations:
            return
        begin, count = self.random.choice(list(self.reservations.items()))
        wrong = self.random.choice((0, 0, PAGE))
        is_mapped = any(begin <= at < begin + count for at in self.mappings)
        due = {INVALID_VALUE} if wrong or is_mapped else set()
        if self.check("cuMemAddressFree", due, size(begin), size(count + wrong)):
            del self.reservations[begin]

    def do_create(self) -> None:
        count = self.random.choice((PAGE, 2 * PAGE, 100, 1 << 40, 1 << 63))
        properties = (ctypes.c_int * 16)(1, 0, 1, 0)  # pinned, no handle, on device, 0
        due = {INVALID_VALUE} if count % PAGE or count > MAX_BYTES else set()
        if not due and count > CAPACITY - self.used:
            due = {OUT_OF_MEMORY}
        made = ctypes.c_uint64()
        if self.check("cuMemCreate", due, ctypes.byref(made), size(count), properties, size(0)):
            self.physical[made.value] = [count, 1, 0]

    def do_release(self) -> None:
        handle = self.random.choice([*self.physical, 12345])
        entry = self.physical.get(handle)
        due = set() if entry and entry[1] else {INVALID_VALUE}
        if self.check("cuMemRelease", due, size(handle)):
            entry[1] -= 1
            self.drop(handle)

    def do_map(self) -> None:
        if not self.reservations or not self.physical:
            return
        begin = self.random.choice(list(self.reservations))
        handle = self.random.choice(list(self.physical))
        offset, count = self.random.choice((0, PAGE, 100)), self.random.choice((PAGE, 2 * PAGE, 0))
        entry, at = self.physical[handle], begin + offset
        is_free = not any(b.address < at + count and at < b.address + b.size for b in self.blocks)
        is_reserved = any(b <= at and at + count <= b + n for b, n in self.reservations.items())
        fits = 0 < count <= entry[0] and is_reserved and offset != 100
        due = set() if fits and is_free and entry[1] else {INVALID_VALUE}
        if self.check("cuMemMap", due, size(at), size(count), size(0), size(handle), size(0)):
            entry[2] += 1
            self.mappings[at] = handle
            self.blocks.append(Block(at, count, MAPPED))

    def do_unmap(self) -> None:
        mapped = [block for block in self.blocks if block.kind == MAPPED]
        if not mapped:
            return
        block = self.random.choice(mapped)
        wrong = self.random.choice((0, 0, PAGE // 2, -block.size))
        due = {INVALID_VALUE} if wrong else set()
        if self.check("cuMemUnmap", due, size(block.address), size(block.size + wrong)):
            self.blocks.remove(block)
            handle = self.mappings.pop(block.address)
            self.physical[handle][2] -= 1
            self.drop(handle)

    def drop(self, handle: int) -> None:
        if self.physical[handle][1] == 0 and self.physical[handle][2] == 0:
            del self.physical[handle]

    # Streams, events, captures, graphs.

    def do_create_stream(self) -> None:
        flags = self.random.choice((0, 1, 1, 4))
        made = ctypes.c_void_p()
        due = {INVALID_VALUE} if flags == 4 else set()
        if self.check("cudaStreamCreateWithFlags", due, ctypes.byref(made), flags):
            self.streams.append(Stream(made.value, is_blocking=flags == 0))

    def do_destroy_stream(self) -> None:
        stream = self.random.choice(self.streams)
        if self.random.random() < 0.7 and stream.is_alive:
            return
        due = set() if stream.is_alive and stream.handle > 2 else {INVALID_HANDLE}
        if self.check("cudaStreamDestroy", due, pointer(stream.handle)):
            stream.is_alive = False
            if stream.capture is not None and stream.capture.origin is stream:
                self.close(stream.capture)

    def do_synchronise(self) -> None:
        stream = self.random.choice(self.streams)
        name = self.random.choice(("cudaStreamSynchronize", "cudaStreamQuery"))
        due = self.stream_errors(stream)
        if not due and stream.capture is not None:
            stream.capture.is_valid = False
            due = {UNSUPPORTED}
        self.check(name, due, pointer(stream.handle))

    def do_synchronise_device(self) -> None:
        if self.random.random() < 0.3:
            self.check("cudaDeviceSynchronize", self.unsafe())

    def do_create_event(self) -> None:
        flags = self.random.choice((0, 1, 2, 6, 4, 64))
        made = ctypes.c_void_p()
        due = {INVALID_VALUE} if flags in (4, 64) else set()
        if self.check("cudaEventCreateWithFlags", due, ctypes.byref(made), flags):
            self.events = [
                event for event in self.events if event.handle != made.value
            ]  # a handle used again
            self.events.append(Event(made.value, flags))

    def do_event(self) -> None:
        if not self.events:
            return
        event, stream = self.random.choice(self.events), self.random.choice(self.streams)
        event_due = set() if event.is_alive else {INVALID_HANDLE}
        action = self.random.choice(
            (self.record, self.record, self.wait, self.wait, self.query, self.destroy)
        )
        action(event, stream, event_due)

    def record(self, event: Event, stream: Stream, due: set[int]) -> None:
        due = self.spoil(due, self.stream_errors(stream))
        if self.check("cudaEventRecord", due, pointer(event.handle), pointer(stream.handle)):
            event.capture = stream.capture
            if stream.capture is not None:
                event.tail = set(stream.tail)
            else:
                event.is_recorded = True

    def wait(self, event: Event, stream: Stream, due: set[int]) -> None:
        due = self.spoil(due, self.stream_errors(stream))
        if not due:
            due = self.wait_errors(event, stream)
        if not self.check("cudaStreamWaitEvent", due, pointer(stream.handle), pointer(event.handle), 0):
            return
        if event.capture is not None and event.capture.is_open:
            if stream.capture is None:
                stream.capture = event.capture
                stream.tail = set()
                if stream not in event.capture.streams:
                    event.capture.streams.append(stream)
            stream.tail |= event.tail

    def wait_errors(self, event: Event, stream: Stream) -> set[int]:
        """What a wait between captures does to them."""
        if stream.capture is not None and event.capture is not stream.capture:
            if event.capture is None and not event.is_recorded:
                return set()
            stream.capture.is_valid = False
            if event.capture is None:
                return {ISOLATION}
            event.capture.is_valid = False
            return {MERGE}
        if (
            stream.capture is None
            and event.capture is not None
            and event.capture.is_open
            and stream.handle == 0
        ):
            event.capture.is_valid = False
            return {UNSUPPORTED}
        return set()

    def query(self, event: Event, stream: Stream, due: set[int]) -> None:
        name = self.random.choice(("cudaEventQuery", "cudaEventSynchronize"))
        if not due and event.capture is not None:
            due = {CAPTURED_EVENT}
        self.check(name, due or self.unsafe(), pointer(event.handle))

    def destroy(self, event: Event, stream: Stream, due: set[int]) -> None:
        if self.check("cudaEventDestroy", due, pointer(event.handle)):
            event.is_alive = False

    def do_elapsed(self) -> None:
        if not self.events:
            return
        pair = self.random.choice(self.events), self.random.choice(self.events)
        due: set[int] = set()
        for event in pair:
            if not event.is_alive or event.flags & 2:
                due |= {INVALID_HANDLE}
            elif event.capture is not None:
                due |= {CAPTURED_EVENT}
            elif not event.is_recorded:
                due |= {INVALID_HANDLE}
        ms = ctypes.c_float()
        handles = (pointer(event.handle) for event in pair)
        if self.check("cudaEventElapsedTime", due, ctypes.byref(ms), *handles) and ms.value == 0:
            raise Mismatch("no time has passed")

    def do_begin_capture(self) -> None:
        if self.random.random() < 0.6:
            return
        stream = self.random.choice(self.streams)
        mode = self.random.choice((0, 1, 2, 2, 7))
        due: set[int] = set()
        if not stream.is_alive:
            due = {INVALID_HANDLE}
        if mode == 7:
            due |= {INVALID_VALUE}
        if stream.handle == 0:
            due |= {UNSUPPORTED}
        if stream.capture is not None:
            due |= {ILLEGAL_STATE}
        if self.check("cudaStreamBeginCapture", due, pointer(stream.handle), mode):
            stream.capture = Capture(stream, mode, streams=[stream])
            stream.tail = set()
            self.captures.append(stream.capture)

    def do_end_capture(self) -> None:
        streams = [s for s in self.streams if s.capture is not None] or self.streams
        stream = self.random.choice(streams)
        capture = stream.capture
        graph = ctypes.c_void_p()
        due: set[int] = set()
        if not stream.is_alive:
            due = {INVALID_HANDLE}
        elif capture is None:
            due = {ILLEGAL_STATE}
        elif capture.origin is not stream:
            due = {UNMATCHED}
        elif capture.is_valid is None:
            due = {INVALIDATED, OK if capture.is_joined else UNJOINED}
        elif not capture.is_valid:
            due = {INVALIDATED}
        elif not capture.is_joined:
            due = {UNJOINED}
        done = self.check("cudaStreamEndCapture", due, pointer(stream.handle), ctypes.byref(graph))
        if done != (graph.value is not None):
            raise Mismatch(f"the end of the capture gave the graph {graph.value}")
        if capture is not None and capture.origin is stream and stream.is_alive:
            self.close(capture)
        if done:
            executable = ctypes.c_void_p()
            self.check("cudaGraphInstantiate", set(), ctypes.byref(executable), graph, size(0))
            self.check("cudaGraphDestroy", set(), graph)
            self.graphs.append((executable.value, capture.effects))

    def close(self, capture: Capture) -> None:
        capture.is_open = False
        self.captures.remove(capture)
        for stream in capture.streams:
            if stream.capture is capture:
                stream.capture = None
                stream.tail = set()

    def do_is_capturing(self) -> None:
        stream = self.random.choice(self.streams)
        status = ctypes.c_int()
        due = self.stream_errors(stream)
        if self.check("cudaStreamIsCapturing", due, pointer(stream.handle), ctypes.byref(status)):
            expected = 0 if stream.capture is None else {True: 1, False: 2, None: status.value}
            if isinstance(expected, dict):
                expected = expected[stream.capture.is_valid]
            if status.value != expected:
                raise Mismatch(f"capture status {status.value}, not {expected}")

    def do_launch_graph(self) -> None:
        if not self.graphs:
            return
        executable, effects = self.random.choice(self.graphs)
        stream = self.random.choice(self.streams)
        due = self.stream_errors(stream)
        if not self.check("cudaGraphLaunch", due, pointer(executable), pointer(stream.handle)):
            return
        for effect in effects:
            self.run(stream, effect)

    def do_destroy_graph(self) -> None:
        if self.graphs and self.random.random() < 0.2:
            executable, _ = self.graphs.pop(self.random.randrange(len(self.graphs)))
            self.check("cudaGraphExecDestroy", set(), pointer(executable))

    # Kernels and collectives.

    def do_launch(self) -> None:
        stream = self.random.choice(self.streams)
        grid = [self.random.choice((1, 1, 1, 0, 65536)) for _ in range(3)]
        block = [self.random.choice((1, 1, 32, 0, 2048)) for _ in range(3)]
        shared = self.random.choice((0, 1024, 100 << 10, 1 << 63))
        threads = block[0] * block[1] * block[2]
        due = set()
        if 0 in grid or grid[1] > 65535 or grid[2] > 65535 or not 0 < threads <= 1024 or block[2] > 64:
            due = {INVALID_CONFIGURATION}
        elif shared > 48 << 10:
            due = {INVALID_VALUE}
        due = self.spoil(due, self.stream_errors(stream))
        argument = ctypes.c_void_p(self.random.choice(self.freed) if self.freed else 8)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        done = self.check(
            *("cudaLaunchKernel", due, self.kernel, dim3(*grid), dim3(*block), arguments, size(shared)),
            pointer(stream.handle),
        )
        if done and stream.capture is not None:
            stream.capture.add(stream)

    def do_all_reduce(self) -> None:
        """Of one rank: a copy."""
        known = [b for b in self.blocks if b.contents and b.kind in (DEVICE, ASYNC)]
        streams = [s for s in self.streams if s.is_alive and s.capture is None]
        if len(known) < 2 or self.captures:
            return
        source, target = self.random.sample(known, 2)
        count = self.random.randint(1, min(source.size, target.size))
        ends = pointer(source.address), pointer(target.address)
        stream = self.random.choice(streams)
        self.check("ncclAllReduce", set(), *ends, size(count), 0, 0, self.comm, pointer(stream.handle))
        target.contents[:count] = source.contents[:count]

    # Addresses and contents.

    def some_address(self, bad: float, host: float = 0.0) -> tuple[int, Block | None]:
        """An address and the block that it is in: None for pageable or freed memory and for null."""
        draw = self.random.random()
        if draw < host:
            return ctypes.addressof(self.host) + self.random.randrange(0, HOST_BYTES, 512), None
        if self.freed and draw < host + bad:
            return self.random.choice(self.freed), None
        usable = [block for block in self.blocks if block.size > 0]
        if not usable:
            return ctypes.addressof(self.host), None
        block = self.random.choice(usable)
        offset = self.random.choice((0, 0, 0, self.random.randrange(min(block.size, PAYLOAD))))
        return block.address + offset, block

    def room(self, address: int, block: Block | None) -> int:
        if block is not None:
            end = block.address + block.size
        elif ctypes.addressof(self.host) <= address < ctypes.addressof(self.host) + HOST_BYTES:
            end = ctypes.addressof(self.host) + HOST_BYTES
        else:
            return 1  # freed
        return min(end - address, HOST_BYTES)

    def range_errors(self, address: int, block: Block | None, count: int) -> set[int]:
        if block is None:
            is_host = 0 <= address - ctypes.addressof(self.host) < HOST_BYTES
            if is_host and count > ctypes.addressof(self.host) + HOST_BYTES - address:
                raise Undefined
            return set() if is_host else {INVALID_VALUE}
        end = address
        while end < address + count:  # what is mapped side by side is one range
            at = next((b for b in self.blocks if b.address <= end < b.address + b.size), None)
            if at is None:
                return {INVALID_VALUE}
            end = at.address + at.size
        return set()

    def overlap(self, target: int, source: int, count: int) -> bool:
        return target < source + count and source < target + count

    def read(self, address: int, block: Block | None, count: int) -> bytes | None:
        if block is None:
            offset = address - ctypes.addressof(self.host)
            return bytes(self.host_contents[offset : offset + count])
        if block.contents is None or address + count > block.address + block.size:
            return None
        offset = address - block.address
        return bytes(block.contents[offset : offset + count])

    def write(self, address: int, block: Block | None, count: int, data: bytes | None) -> None:
        if block is None:
            offset = address - ctypes.addressof(self.host)
            if data is None:  # from memory that is not followed
                data = self.host.raw[offset : offset + count]
            self.host_contents[offset : offset + count] = data
        elif block.contents is not None:
            offset = address - block.address
            if data is None or offset + count > block.size:
                block.contents = None
            else:
                block.contents[offset : offset + count] = data


class Undefined(Exception):
    """A call whose outcome nobody promises; it is not made."""


def pointer(address: int | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


class dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


def shown(argument: object) -> str:
    value = getattr(argument, "value", argument)
    return hex(value) if isinstance(value, int) and value > 9999 else str(value)[:40]


def main() -> None:
    library, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    driver = Driver(library, seed)
    for _ in range(steps):
        try:
            driver.step()
        except Undefined:
            continue


if __name__ == "__main__":
    main()
