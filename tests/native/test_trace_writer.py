"""The trace file that the emulator writes: order, host gaps, life of the process."""

import re
import signal
import time

import numpy as np
import pytest
from native.emulated import run_checked, run_program

KERNEL_NAME = "_Z6kernelPfi"  # kernel(float*, int)
BLOCKED = 1  # RecordFlags::kBlocked


def launches(count: int) -> str:
    return f"""
        k = kernel(b"{KERNEL_NAME}")
        for i in range({count}):
            assert launch(k, ctypes.c_void_p(0), ctypes.c_int(i)) == 0
    """


def test_records_are_complete_and_in_order(tmp_path):
    # More than one window of the file (4 MiB).
    trace = run_checked(launches(200_000), tmp_path).trace()
    assert trace.is_complete
    kernels = trace.table("kernel")
    assert list(kernels["scalar0"]) == list(range(200_000))
    assert set(kernels["name"]) == {"kernel(float*, int)"}
    assert (tmp_path / "rank00000.trace").stat().st_size > 4 << 20


def test_names_the_rank_and_the_process(tmp_path):
    run = run_checked("call('cudaDeviceSynchronize'); print(os.getpid())", tmp_path, RANK="7")
    trace = run.trace(rank=7)
    assert trace.rank == 7
    assert trace.process_id == int(run.output)
    assert abs(trace.start_unix_ns / 1e9 - time.time()) < 300


def test_no_file_without_device_work(tmp_path):
    run_checked(
        "n = ctypes.c_int(); call('cudaGetDeviceCount', ctypes.byref(n)); assert n.value == 1", tmp_path
    )
    assert not list(tmp_path.iterdir())


def test_flush_completes_the_file_and_ends_recording(tmp_path):
    program = (
        launches(3)
        + """
        rt.maya_mark(b"iteration", ctypes.c_int64(5))
        rt.maya_flush()
        call('cudaDeviceSynchronize')
        os._exit(0)
    """
    )
    trace = run_checked(program, tmp_path).trace()
    assert trace.is_complete
    marks = trace.table("mark")
    assert marks[["name", "value"]].values.tolist() == [["iteration", 5]]
    assert len(trace.positions("device_sync")) == 0


def test_killed_process_leaves_a_readable_prefix(tmp_path):
    run = run_program(launches(1000) + "    os.kill(os.getpid(), 9)", tmp_path)
    assert run.returncode == -signal.SIGKILL
    trace = run.trace(allow_incomplete=True)
    assert not trace.is_complete
    assert len(trace.positions("kernel")) == 1000


def test_forked_child_leaves_the_parents_file_alone(tmp_path):
    program = (
        launches(2)
        + """
        if os.fork() == 0:
            for i in range(10):
                call('cudaDeviceSynchronize')
            sys.exit(0)
        os.wait()
    """
        + launches(3)
    )
    trace = run_checked(program, tmp_path).trace()
    assert len(trace.positions("kernel")) == 5
    assert len(trace.positions("device_sync")) == 0


def test_ranks_forked_from_a_prepared_process(tmp_path):
    program = """
        k = kernel(b"_Z6kernelPfi")
        for rank in range(2):
            if os.fork() == 0:
                os.environ["RANK"] = str(rank)
                for i in range(rank + 1):
                    assert launch(k, ctypes.c_void_p(0), ctypes.c_int(i)) == 0
                sys.exit(0)
        os.wait(), os.wait()
    """
    run = run_checked(program, tmp_path)
    assert [len(run.trace(rank=r).positions("kernel")) for r in range(2)] == [1, 2]


def test_second_process_of_a_rank_does_not_write(tmp_path):
    run_checked(launches(4), tmp_path)
    before = (tmp_path / "rank00000.trace").read_bytes()
    run = run_checked(launches(1), tmp_path)
    assert (tmp_path / "rank00000.trace").read_bytes() == before
    assert "are not recorded" in run.errors


def test_gap_holds_cpu_time_but_no_sleep(tmp_path):
    # Busy by the thread's own CPU clock, so that the expected gap does not depend on other processes.
    program = (
        launches(1)
        + """
        call('cudaDeviceSynchronize')
        time.sleep(0.2)
        end = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < end: pass
        call('cudaDeviceSynchronize')
    """
    )
    trace = run_checked(program, tmp_path).trace()
    last = trace.positions("device_sync")[-1]
    assert 20e6 <= trace.gap_ns[last] < 40e6
    assert trace.flags[last] & BLOCKED


def test_threads_are_told_apart_and_order_is_global(tmp_path):
    program = """
        k = kernel(b"_Z6kernelPfi")
        counter, lock = [0], threading.Lock()
        def work():
            for _ in range(500):
                with lock:
                    assert launch(k, ctypes.c_void_p(0), ctypes.c_int(counter[0])) == 0
                    counter[0] += 1
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
    """
    trace = run_checked(program, tmp_path).trace()
    assert list(trace.table("kernel")["scalar0"]) == list(range(2000))
    assert len(np.unique(trace.thread[trace.positions("kernel")])) == 4


def test_strict_mode_ends_the_process(tmp_path):
    program = "assert rt.cudaGraphAddNode() == 801"
    run = run_program(program, tmp_path / "strict", MAYA_STRICT="1")
    assert run.returncode == 86
    run = run_checked(program, tmp_path)
    assert re.search("cudaGraphAddNode, called by .*, is not emulated", run.errors)
    assert list(run.trace().table("unemulated")["name"]) == ["cudaGraphAddNode"]


def test_call_counts(tmp_path):
    program = (
        launches(3)
        + """
        import json
        rt.cudaGraphAddNode()
        rt.maya_call_counts.restype = ctypes.c_char_p
        counts = json.loads(rt.maya_call_counts())
        assert counts["cudaLaunchKernel"] == 3
        assert counts["unemulated"] == {"cudaGraphAddNode": 1}
    """
    )
    run_checked(program, tmp_path)


@pytest.mark.parametrize(
    ("prefix", "period", "repeats", "has_gemm", "expected"),
    [(0, 5, 1, True, 0), (3, 5, 2, True, 2), (3, 5, 7, True, 7), (100, 5, 3, True, 0), (3, 5, 7, False, 0)],
    ids=["once", "twice", "often", "mostly something else", "nothing that trains"],
)
def test_repetitions(tmp_path, prefix, period, repeats, has_gemm, expected):
    program = f"""
        k = kernel(b"_Z6kernelPfi")
        handle, one = ctypes.c_void_p(), ctypes.c_float(1)
        call("cublasCreate_v2", ctypes.byref(handle))
        null = ctypes.c_void_p(0)
        def gemm():
            scale = ctypes.byref(one)
            call("cublasSgemm_v2", handle, 0, 0, 8, 8, 8, scale, null, 8, null, 8, scale, null, 8)
        def op(size): assert launch(k, ctypes.c_void_p(0), ctypes.c_int(0), grid=(size, 1, 1)) == 0
        for i in range({prefix}): op(1000 + i)
        for _ in range({repeats}):
            for i in range({period}): op(1 + i)
            if {has_gemm}: gemm()
        rt.maya_repetitions.restype = ctypes.c_int64
        assert rt.maya_repetitions() == {expected}, rt.maya_repetitions()
    """
    run_checked(program, tmp_path)


def test_a_shell_under_preload_is_not_disturbed(tmp_path):
    run = run_checked(
        "import subprocess; print(subprocess.check_output(['sh', '-c', 'echo hello | cat']))",
        tmp_path,
        preload=True,
    )
    assert "hello" in run.output
    assert run.errors == ""
    assert not list(tmp_path.iterdir())
