"""The hooks inside a rank, with a stand-in for the emulator."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from maya.capture.environment import STARTUP_DIR
from maya.capture.startup.maya_startup import iterations
from maya.capture.startup.maya_startup.call_sites import HostReads
from maya.capture.startup.maya_startup.events import EventLog
from maya.capture.startup.maya_startup.groups import split_color
from maya.capture.startup.maya_startup.iterations import IterationCounter
from maya.capture.startup.maya_startup.operator_ranges import OperatorRanges
from maya.capture.startup.maya_startup.session import Session
from maya.capture.startup.maya_startup.solo import Answers, signed_fnv1a


class FakeEmulator:
    def __init__(self) -> None:
        self.marks: list[tuple[str, int]] = []
        self.is_flushed = False
        self.num_matrix_operations = 0
        self.work_per_step = 3

    def observe_reads(self, observer: Callable[[int, int], None]) -> None:
        self.observer = observer

    def mark(self, name: str, value: int) -> None:
        self.marks.append((name, value))

    def flush(self) -> None:
        self.is_flushed = True

    def call_counts(self) -> dict[str, object]:
        return {"cudaMalloc": 2, "unemulated": {}}

    def matrix_operations(self) -> int:
        """Asked once a step."""
        self.num_matrix_operations += self.work_per_step
        return self.num_matrix_operations

    def peak_device_bytes(self) -> int:
        return 100

    def peak_nccl_bytes(self) -> int:
        return 40


class FakeHistory:
    """Marks the iteration whose allocations are recorded."""

    def __init__(self, emulator: FakeEmulator) -> None:
        self.emulator = emulator

    def begin(self) -> None:
        self.emulator.mark("history_begin", 0)

    def end(self) -> None:
        self.emulator.mark("history_end", 0)


class FakeCuda:
    """Peaks of the allocator, which a program may reset, and operator ranges."""

    def __init__(self, emulator: FakeEmulator) -> None:
        self.peaks = [10, 30, 20, 25]
        self.emulator = emulator
        self.autograd = self.profiler = self.cuda = self.record_function = self

    def is_initialized(self) -> bool:
        return True

    def memory_stats_as_nested_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        peak = self.peaks.pop(0) if len(self.peaks) > 1 else self.peaks[0]
        return {"allocated_bytes": {"all": {"peak": peak}}, "reserved_bytes": {"all": {"peak": 2 * peak}}}

    def emit_nvtx(self, record_shapes: bool) -> "FakeCuda":
        assert record_shapes
        return self

    def __enter__(self) -> None:
        self.emulator.mark("range_begin", 0)

    def __exit__(self, *args: object) -> None:
        raise AssertionError("would wait for the device")

    def _disable_profiler(self) -> None:
        self.emulator.mark("range_end", 0)

    def _run_on_profiler_stop(self) -> None:
        pass


class Stopped(Exception):
    pass


@pytest.fixture
def session(tmp_path, monkeypatch):
    def stop(self):
        self.finish()
        raise Stopped

    monkeypatch.setattr(Session, "stop_program", stop)
    monkeypatch.setattr(iterations, "_REPEATS_CPU_S", 0.0)
    return Session(
        trace_dir=str(tmp_path),
        rank=1,
        world_size=4,
        mode="solo",
        warmup_iterations=1,
        iterations=2,
        emulator=(emulator := FakeEmulator()),
        events=EventLog(str(tmp_path), 1),
        host_reads=HostReads(emulator),
    )


def read_events(session: Session) -> list[dict[str, object]]:
    path = Path(session.trace_dir, "rank00001.events.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_iterations_are_steps_of_the_first_optimizer(session):
    counter = IterationCounter(FakeCuda(session.emulator), session, FakeHistory(session.emulator))
    first, second = object(), object()
    for _ in range(3):
        counter.on_step(first, (), {})
        counter.on_step(second, (), {})
    with pytest.raises(Stopped):
        counter.on_step(first, (), {})
    names = [(name, value) for name, value in session.emulator.marks if not name.startswith("peak_")]
    assert names == [
        ("iteration", 1),
        ("history_begin", 0),
        ("range_begin", 0),
        ("shapes", 1),
        ("iteration", 2),
        ("history_end", 0),
        ("shapes", 0),
        ("range_end", 0),
        ("iteration", 3),
        ("iteration", 4),
        ("repeats", 0),
        ("stop", 0),
    ]
    assert session.emulator.is_flushed
    assert read_events(session)[-1] == {"type": "end", "iterations": 4}


def test_steps_without_matrix_work_in_between_are_one_iteration(session):
    counter = IterationCounter(FakeCuda(session.emulator), session, FakeHistory(session.emulator))
    counter.on_step(counter, (), {})
    session.emulator.work_per_step = 0
    counter.on_step(counter, (), {})  # an optimizer that wrappers step twice
    assert session.num_iterations == 1
    session.emulator.work_per_step = 3
    counter.on_step(counter, (), {})
    assert session.num_iterations == 2


def test_short_iterations_are_repeated_for_their_host_gaps(session, monkeypatch):
    monkeypatch.setattr(iterations, "_REPEATS_CPU_S", 1.0)
    monkeypatch.setattr(iterations, "_MAX_REPEATS", 7)
    counter = IterationCounter(FakeCuda(session.emulator), session, FakeHistory(session.emulator))
    with pytest.raises(Stopped):
        for _ in range(100):
            counter.on_step(counter, (), {})
    assert session.num_iterations == 4 + 7
    names = [(name, value) for name, value in session.emulator.marks if not name.startswith("peak_")]
    assert names[names.index(("iteration", 4)) + 1] == ("repeats", 7)


def test_linked_ranks_go_by_what_rank_0_proposes(session):
    session.mode = "linked"
    session.propose("repeats", 5)
    assert not any(Path(session.trace_dir).glob("*.repeats"))
    replace(session, rank=0).propose("repeats", 3)
    assert session.agreed("repeats") == 3


def test_peaks_are_those_of_the_whole_run(session):
    counter = IterationCounter(FakeCuda(session.emulator), session, FakeHistory(session.emulator))
    with pytest.raises(Stopped):
        for _ in range(4):
            counter.on_step(counter, (), {})
    allocated = [value for name, value in session.emulator.marks if name == "peak_allocated_bytes"]
    reserved = [value for name, value in session.emulator.marks if name == "peak_reserved_bytes"]
    assert allocated == [10, 30, 30, 30]
    assert reserved == [20, 60, 60, 60]


class FakeProfiler:
    """As torch.autograd.profiler: leaving a range after the profiler is off fails, as in PyTorch."""

    is_on = False

    class emit_nvtx:
        def __init__(self, record_shapes: bool) -> None:
            pass

        def __enter__(self) -> None:
            FakeProfiler.is_on = True

    class record_function:
        def __enter__(self) -> None:
            self.was_on = FakeProfiler.is_on

        def __exit__(self, *exception: object) -> None:
            assert FakeProfiler.is_on or not self.was_on

    @staticmethod
    def _disable_profiler() -> None:
        FakeProfiler.is_on = False

    @staticmethod
    def _run_on_profiler_stop() -> None:
        pass


def test_operator_ranges_end_when_no_range_is_open():
    torch = SimpleNamespace(autograd=SimpleNamespace(profiler=FakeProfiler))
    original = FakeProfiler.record_function.__exit__
    ranges = OperatorRanges(torch, FakeEmulator())
    with FakeProfiler.record_function():  # the step that ends the warm-up
        ranges.begin()
    with FakeProfiler.record_function():  # of the program
        with FakeProfiler.record_function():  # the step
            ranges.end()
        assert FakeProfiler.is_on
    assert not FakeProfiler.is_on
    assert FakeProfiler.record_function.__exit__ is original


def test_finishing_twice_changes_nothing(session):
    session.finish()
    session.finish()
    assert [event["type"] for event in read_events(session)] == ["calls", "made_up_reads", "end"]
    assert Path(session.trace_dir, "rank00001.done").exists()


def test_absent_unique_ids_are_the_same_in_every_rank(session):
    first, other = Answers(session), Answers(session)
    assert first.get("default_pg/0//cuda//0") == other.get("default_pg/0//cuda//0")
    assert first.get("a") != first.get("b")
    assert len(first.get("a")) == 128


def test_unique_ids_are_told_once_with_their_keys(session):
    answers = Answers(session)
    own = bytes(range(128))
    answers.set("own", own)
    absent = answers.get("absent")
    answers.get("absent")
    answers.set("note", b"no unique id")
    assert read_events(session) == [
        {"type": "unique_id", "hash": signed_fnv1a(own), "key": "own"},
        {"type": "unique_id", "hash": signed_fnv1a(absent), "key": "absent"},
    ]


def test_fnv1a_of_published_values():
    # Noll's test vectors of FNV-1a 64: "" and "foobar"
    assert signed_fnv1a(b"") % 2**64 == 0xCBF29CE484222325
    assert signed_fnv1a(b"foobar") % 2**64 == 0x85944171F73967E8


def test_store_answers(session):
    answers = Answers(session)
    assert answers.add("barrier", 1) == 4
    assert not answers.check(["exception_dump"])
    answers.set("a", b"x")
    assert answers.check(["a"])
    assert answers.compare_set("a", b"x", b"y") == b"y"
    assert answers.compare_set("a", b"x", b"z") == b"y"
    assert answers.compare_set("new", b"", b"first") == b"first"
    answers.append("a", b"!")
    assert answers.get("a") == b"y!"
    assert answers.delete("a") and not answers.delete("a")


def test_split_color_is_the_smallest_member():
    assert split_color([3, 1, 5]) == 1


def run_in_child(body: str, *paths: Path, **env: str) -> str:
    """Output of a Python process that has the hooks on its path and no emulator."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)],
        env={"PYTHONPATH": ":".join(map(str, (STARTUP_DIR, *paths))), "PATH": "/usr/bin:/bin"} | env,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout + result.stderr


def test_processes_outside_a_capture_are_left_alone():
    output = run_in_child("import sys; print('maya_startup' in sys.modules, sys.path)")
    assert output.startswith("False ")
    assert "startup" not in output


def test_user_s_own_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    assert run_in_child("print('program')", tmp_path) == "mine\nprogram\n"


def test_rank_without_the_emulator_says_so(tmp_path):
    output = run_in_child(
        "",
        MAYA_TRACE_DIR=str(tmp_path),
        RANK="0",
        MAYA_WORLD_SIZE="1",
        MAYA_ITERATIONS="1,1",
        MAYA_MODE="solo",
    )
    assert "the emulated GPU is not preloaded" in output


def test_callback_runs_after_the_import(tmp_path):
    (tmp_path / "later.py").write_text("value = 3")
    output = run_in_child(
        f"""
        import sys; sys.path.insert(0, {str(STARTUP_DIR)!r})
        from maya_startup.imports import when_imported
        when_imported("later", lambda module: print("callback", module.value))
        print("before"); import later; print(type(later.__loader__).__name__, later.__spec__.name)
        when_imported("later", lambda module: print("again"))
        """,
        tmp_path,
    )
    assert output == "before\ncallback 3\nSourceFileLoader later\nagain\n"


PROGRAM = """
import atexit, pickle, sys, threading, time
class Thing: pass
if __name__ == "__main__":
    atexit.register(print, "atexit")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    pickle.loads(pickle.dumps(Thing()))
    print(sys.argv, sys.path[0], sys.modules["__main__"].__file__, __spec__ and __spec__.name)
    exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("last", "exit_code", "message"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data"),
        ("raise KeyError('k')", 1, "KeyError"),
    ],
)
@pytest.mark.parametrize("kind", ["script", "module"])
def test_programs_run_as_the_interpreter_runs_them(tmp_path, kind, last, exit_code, message):
    """The output and exit code of a program in a prepared process are those of the interpreter itself."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "train.py").write_text(PROGRAM)
    name = "pkg/train.py" if kind == "script" else "pkg.train"
    prepared = f"""
import os, sys
sys.path[0] = {str(STARTUP_DIR)!r}
from maya_startup.program import run_program
del sys.path[0]
code = run_program({kind!r}, {name!r}, [{last!r}])
os._exit(code)
"""
    real = [sys.executable, *(["-m"] if kind == "module" else []), name, last]
    results = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        for command in (real, [sys.executable, "-c", prepared])
    ]
    assert results[1].returncode == results[0].returncode == exit_code
    assert results[1].stdout == results[0].stdout
    assert "thread\natexit" in results[0].stdout
    assert results[1].stderr == results[0].stderr
    assert message in results[0].stderr


@pytest.fixture
def one_rank_of_eight():
    """What a rank alone sees of torch.distributed, run in a process of its own."""

    def run(body: str) -> str:
        prelude = f"""
        import sys; sys.path.insert(0, {str(STARTUP_DIR)!r})
        import torch, torch.distributed as dist
        from types import SimpleNamespace
        from maya_startup import groups, solo
        events = []
        session = SimpleNamespace(
            rank=5, world_size=8, events=SimpleNamespace(write=lambda kind, **f: events.append((kind, f))),
            emulator=SimpleNamespace(announce_split=lambda *a: None),
        )
        solo.answer_for_absent_ranks(torch, session)
        groups.record_groups(dist.distributed_c10d, session)
        """
        program = textwrap.dedent(prelude) + textwrap.dedent(body)
        return run_in_child(program, RANK="5", WORLD_SIZE="8", MASTER_ADDR="absent", MASTER_PORT="1")

    return run


@pytest.mark.slow
def test_rank_alone_makes_groups_and_exchanges_objects(one_rank_of_eight):
    output = one_rank_of_eight(
        """
        dist.init_process_group("gloo")
        found = [None] * 8
        dist.all_gather_object(found, "own")
        kept = ["kept"]
        dist.broadcast_object_list(kept, src=3)
        dist.barrier(); dist.monitored_barrier()
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        print(found, kept, mesh["tp"].get_local_rank(), mesh["dp"].get_local_rank())
        for kind, fields in events: print(fields["ranks"], fields["description"])
        """
    )
    lines = output.splitlines()
    assert lines[0] == f"{['own'] * 8} ['kept'] 1 1"
    assert lines[1] == "[0, 1, 2, 3, 4, 5, 6, 7] default_pg"
    assert lines[2:] == [
        *(f"[{i}, {i + 4}] mesh_dp" for i in range(4)),
        "[0, 1, 2, 3] mesh_tp",
        "[4, 5, 6, 7] mesh_tp",
    ]


@pytest.mark.slow
def test_store_of_a_rank_alone_answers_through_prefixes(one_rank_of_eight):
    output = one_rank_of_eight(
        """
        from datetime import timedelta
        from torch._C._distributed_c10d import PrefixStore
        store = PrefixStore("p", dist.TCPStore("absent", 1, 8, False, timeout=timedelta(seconds=1)))
        store.set("a", "x"); store.wait(["never"], timedelta(seconds=1))
        print(store.get("a"), store.add("n", 1), store.check(["never"]), store.num_keys())
        print(store.delete_key("a"), len(store.get("id")), store.compare_set("c", "", "v"))
        print(store.multi_get(["a"])[0] == store.get("a"))
        """
    )
    assert output.splitlines() == ["b'x' 8 False 2", "True 128 b'v'", "True"]


def test_reads_of_made_up_values_are_counted_by_the_frame_outside_of_pytorch() -> None:
    emulator = FakeEmulator()
    reads = HostReads(emulator)
    library = {"observer": emulator.observer}
    exec(compile("def item(): observer(4, 3)", "/lib/python/site-packages/torch/_tensor.py", "exec"), library)
    program = {"item": library["item"]}
    source = "def train():\n    item()\n    item()\n"
    exec(compile(source, "/lib/site-packages/framework/loop.py", "exec"), program)
    program["train"]()
    program["train"]()
    emulator.observer(8, 1)
    assert [(row["bytes"], row["answer"], row["count"]) for row in reads.rows()] == [
        (4, "zeros", 2),
        (4, "zeros", 2),
        (8, "rule", 1),
    ]
    sites = [str(row["site"]) for row in reads.rows()]
    assert sites[:2] == ["framework/loop.py:2 in train", "framework/loop.py:3 in train"]
    assert "test_capture_startup.py" in sites[2]
