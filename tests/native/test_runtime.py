"""The emulated runtime and driver, called from C types: what CUDA documents must hold."""

import numpy as np
from native.emulated import CONTEXT_BYTES, MEMORY_BYTES, run_checked

FROM_GRAPH = 2  # RecordFlags::kFromGraph
CAPTURE_GLOBAL = 0
STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_UNJOINED = 900, 901, 904


def test_memory_accounting_and_out_of_memory(tmp_path):
    program = """
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        def free_bytes():
            call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
            return free.value
        start = free_bytes()
        one = malloc(1)
        assert start - free_bytes() == 2 << 20
        big = malloc(5 << 30)
        pointer = ctypes.c_void_p()
        assert rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4 << 30)) == 2
        assert rt.cudaGetLastError() == 2 and rt.cudaGetLastError() == 0
        call("cudaFree", big); call("cudaFree", one)
        assert free_bytes() == start
        call("cudaFree", malloc(4 << 30))
        assert rt.cudaFree(big) == 1
        print(start, total.value)
    """
    run = run_checked(program, tmp_path)
    assert run.output.split() == [str(MEMORY_BYTES - CONTEXT_BYTES), str(MEMORY_BYTES)]
    out_of_memory = run.trace().table("out_of_memory").iloc[0]
    assert out_of_memory["bytes"] == 4 << 30
    assert out_of_memory["used_bytes"] == (5 << 30) + (2 << 20)
    assert out_of_memory["capacity_bytes"] == MEMORY_BYTES - CONTEXT_BYTES


def test_payloads_of_copies_and_fills(tmp_path):
    program = """
        def host(size, fill=0): return ctypes.create_string_buffer(bytes([fill]) * size, size)
        size = 1000
        device, other = malloc(size), malloc(size)
        source, target = host(size, 7), host(size)
        call("cudaMemcpy", device, source, ctypes.c_size_t(size), 1)
        call("cudaMemcpy", other, device, ctypes.c_size_t(size), 3)
        call("cudaMemset", other, 9, ctypes.c_size_t(10))
        call("cudaMemcpy", target, other, ctypes.c_size_t(size), 2)
        assert target.raw == bytes([9]) * 10 + bytes([7]) * (size - 10)
        # Large ones move nothing, and what the host reads is zero.
        size = 1 << 20
        device, target = malloc(size), host(size, 5)
        call("cudaMemcpy", device, host(size, 7), ctypes.c_size_t(size), 1)
        call("cudaMemcpy", target, device, ctypes.c_size_t(size), 2)
        assert target.raw == bytes(size)
    """
    table = run_checked(program, tmp_path).trace().table("memcpy")
    assert list(table["direction"]) == [0, 2, 1, 0, 1]
    assert list(table["is_blocking"]) == [1, 0, 1, 1, 1]


def test_large_copies_leave_zeros_in_shared_host_memory(tmp_path):
    program = """
        import mmap
        size = 1 << 20
        area = mmap.mmap(-1, size)  # shared, as tensors that go to other processes
        area[:] = b"x" * size
        target = ctypes.addressof(ctypes.c_char.from_buffer(area))
        call("cudaMemcpy", ctypes.c_void_p(target), malloc(size), ctypes.c_size_t(size), 2)
        assert area[:] == bytes(size)
    """
    run_checked(program, tmp_path)


def test_pinned_copies_do_not_block(tmp_path):
    program = """
        device, pinned = malloc(1 << 20), ctypes.c_void_p()
        call("cudaHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(1 << 20), 0)
        pageable = ctypes.create_string_buffer(1 << 20)
        for size in (1 << 20, 1 << 10):
            for host in (pinned, pageable):
                call("cudaMemcpyAsync", device, host, ctypes.c_size_t(size), 1, None)
                call("cudaMemcpyAsync", host, device, ctypes.c_size_t(size), 2, None)
    """
    table = run_checked(program, tmp_path).trace().table("memcpy")
    assert list(table["host_pinned"]) == [1, 1, 0, 0] * 2
    # Pageable copies to the device of up to 64 KiB are staged and return at once.
    assert list(table["is_blocking"]) == [0, 0, 1, 1, 0, 0, 0, 1]


def test_pointer_attributes(tmp_path):
    program = """
        class Attributes(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("device_pointer", ctypes.c_void_p),
                        ("host_pointer", ctypes.c_void_p), ("reserved", ctypes.c_long * 8)]
        def kind(address):
            a = Attributes()
            call("cudaPointerGetAttributes", ctypes.byref(a), ctypes.c_void_p(address))
            return a.type
        device, pinned = malloc(1000).value, ctypes.c_void_p()
        call("cudaHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(1000), 0)
        plain = ctypes.create_string_buffer(8)
        assert [kind(device), kind(device + 999), kind(device + 1000)] == [2, 2, 0]
        assert [kind(pinned.value + 5), kind(ctypes.addressof(plain))] == [1, 0]
        call("cudaFree", ctypes.c_void_p(device))
        assert kind(device) == 0
        attribute = ctypes.c_void_p()
        assert rt.cuPointerGetAttribute(ctypes.byref(attribute), 3, plain) == 1
        assert rt.cudaGetLastError() == 0
    """
    run_checked(program, tmp_path)


def test_event_versions_follow_the_order_of_calls(tmp_path):
    program = """
        a, b = stream(), stream()
        e, fresh = event(), event()
        call("cudaStreamWaitEvent", b, fresh, 0)
        call("cudaEventRecord", e, a); call("cudaStreamWaitEvent", b, e, 0)
        call("cudaEventRecord", e, a); call("cudaEventSynchronize", e)
        call("cudaEventDestroy", e)
        again = event()
        call("cudaStreamWaitEvent", b, again, 0)
        call("cudaEventRecord", again, a)
    """
    trace = run_checked(program, tmp_path).trace()
    assert list(trace.table("event_record")["version"]) == [1, 2, 3]
    # 0: the event was not recorded yet, so there is nothing to wait for.
    assert list(trace.table("stream_wait_event")["version"]) == [0, 1, 0]
    assert list(trace.table("event_sync")["version"]) == [2]


def test_elapsed_time(tmp_path):
    program = """
        a, b, untimed, unrecorded = event(0), event(0), event(2), event(0)
        ms = ctypes.c_float()
        k = kernel(b"_Z6kernelv")
        elapsed = lambda x, y: rt.cudaEventElapsedTime(ctypes.byref(ms), x, y)
        for e in (a, untimed): call("cudaEventRecord", e, None)
        for _ in range(10): launch(k)
        call("cudaEventRecord", b, None)
        assert elapsed(a, b) == 0 and ms.value > 0.01, ms.value
        assert elapsed(a, untimed) == 400 and elapsed(a, unrecorded) == 400
        call("cudaEventRecord", b, None)
        call("cudaEventRecord", a, None)
        assert elapsed(b, a) == 0 and ms.value > 0
    """
    run_checked(program, tmp_path)


def test_streams(tmp_path):
    program = """
        least, greatest = ctypes.c_int(1), ctypes.c_int()
        call("cudaDeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
        assert least.value == 0 and greatest.value < 0
        s, priority = ctypes.c_void_p(), ctypes.c_int()
        call("cudaStreamCreateWithPriority", ctypes.byref(s), 1, -99)
        call("cudaStreamGetPriority", s, ctypes.byref(priority))
        assert priority.value == greatest.value
        for handle in (ctypes.c_void_p(n) for n in (0, 1, 2)): call("cudaStreamSynchronize", handle)
        call("cudaStreamSynchronize", s)
    """
    table = run_checked(program, tmp_path).trace().table("stream_sync")
    assert list(table["stream"]) == [0, 0, 1, 2]


def test_host_functions_run_once_in_order_on_another_thread(tmp_path):
    program = """
        seen = []
        Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        function = Function(lambda data: seen.append((data, threading.get_ident())))
        s = stream()
        for i in range(1, 6): call("cudaLaunchHostFunc", s, function, ctypes.c_void_p(i))
        call("cudaStreamSynchronize", s)
        assert [data for data, _ in seen] == [1, 2, 3, 4, 5]
        assert threading.get_ident() not in {thread for _, thread in seen}
    """
    assert len(run_checked(program, tmp_path).trace().positions("host_func")) == 5


def test_launch_checks_limits(tmp_path):
    program = """
        k = kernel(b"_Z6kernelPf")
        pointer = ctypes.c_void_p()
        assert launch(k, pointer, block=(2048, 1, 1)) == 9
        assert launch(k, pointer, grid=(0, 1, 1)) == 9
        assert launch(k, pointer, shared=100 << 10) == 1
        call("cudaFuncSetAttribute", k, 8, 100 << 10)
        assert launch(k, pointer, shared=100 << 10) == 0
        assert rt.cudaFuncSetAttribute(k, 8, 300 << 10) == 1
        assert launch(ctypes.create_string_buffer(1), pointer) == 98
        rt.cudaGetLastError()
        blocks = ctypes.c_int()
        for threads, shared, expected in ((128, 0, 16), (1024, 0, 2), (128, 100 << 10, 2)):
            call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), k, threads,
                 ctypes.c_size_t(shared))
            assert blocks.value == expected, blocks.value
    """
    assert len(run_checked(program, tmp_path).trace().positions("kernel")) == 1


def test_arguments_are_read_by_the_signature(tmp_path):
    # mix(float*, int, long, S, bool, unsigned int, double, char); only the integers are read.
    program = """
        class S(ctypes.Structure): _fields_ = [("x", ctypes.c_double * 3)]
        k = kernel(b"_Z3mixPfil1Sbjdc")
        assert launch(k, ctypes.c_void_p(1), ctypes.c_int(-5), ctypes.c_long(1 << 40), S(),
                      ctypes.c_bool(True), ctypes.c_uint(0xFFFFFFFF), ctypes.c_double(2.5),
                      ctypes.c_byte(3)) == 0
        e = kernel(b"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE"
                   b"St5arrayIPcLm1EEEEviT0_T1_")
        assert launch(e, ctypes.c_int(12345), ctypes.c_float(), ctypes.c_void_p()) == 0
    """
    table = run_checked(program, tmp_path).trace().table("kernel")
    assert list(table.iloc[0][[f"scalar{i}" for i in range(5)]]) == [-5, 1 << 40, 1, 0xFFFFFFFF, 3]
    assert table.iloc[1]["num_elements"] == 12345
    assert table.iloc[1]["name"].startswith("void at::native::vectorized_elementwise_kernel<4, ")


GRAPH = f"""
    a, b, fork, join = stream(), stream(), event(), event()
    k = kernel(b"_Z6kerneli")
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cudaStreamBeginCapture", a, {CAPTURE_GLOBAL})
    assert launch(k, ctypes.c_int(1), on=a) == 0
    call("cudaEventRecord", fork, a)
    call("cudaStreamWaitEvent", b, fork, 0)
    assert launch(k, ctypes.c_int(2), on=b) == 0
    assert launch(k, ctypes.c_int(3), on=a) == 0
"""


def test_a_graph_launch_issues_the_captured_operations(tmp_path):
    program = (
        GRAPH
        + """
    call("cudaEventRecord", join, b)
    call("cudaStreamWaitEvent", a, join, 0)
    call("cudaStreamEndCapture", a, ctypes.byref(graph))
    nodes = ctypes.c_size_t()
    call("cudaGraphGetNodes", graph, None, ctypes.byref(nodes))
    assert nodes.value == 3
    call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    rt.maya_mark(b"launch", ctypes.c_int64(0))
    call("cudaGraphLaunch", executable, a)
    call("cudaGraphLaunch", executable, a)
    """
    )
    trace = run_checked(program, tmp_path).trace()
    kernels = trace.table("kernel")
    assert list(kernels["scalar0"]) == [1, 2, 3] * 2  # none from the capture itself
    assert np.all(trace.flags[kernels.index] & FROM_GRAPH)
    assert list(trace.table("graph_launch")["num_operations"]) == [3, 3]
    # The side branch runs in a stream of its own, between two events of the launching stream.
    main, side = kernels["stream"].iloc[0], kernels["stream"].iloc[1]
    assert main != side and kernels["stream"].iloc[2] == main
    records, waits = trace.table("event_record"), trace.table("stream_wait_event")
    assert list(records["stream"]) == [main, side] * 2
    assert list(waits["stream"]) == [side, main] * 2
    assert list(records["version"]) == list(waits["version"]) == [1, 1, 2, 2]


def test_errors_of_captures(tmp_path):
    program = (
        GRAPH
        + f"""
    assert rt.cudaStreamEndCapture(a, ctypes.byref(graph)) == {STREAM_CAPTURE_UNJOINED}
    assert graph.value is None
    call("cudaStreamBeginCapture", a, {CAPTURE_GLOBAL})
    assert rt.cudaStreamSynchronize(a) == {STREAM_CAPTURE_UNSUPPORTED}
    assert rt.cudaStreamEndCapture(a, ctypes.byref(graph)) == {STREAM_CAPTURE_INVALIDATED}
    call("cudaStreamBeginCapture", a, {CAPTURE_GLOBAL})
    pointer, mode = ctypes.c_void_p(), ctypes.c_int(2)
    call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == {CAPTURE_GLOBAL}
    malloc(1)  # allowed to a relaxed thread
    call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1)) == {STREAM_CAPTURE_UNSUPPORTED}
    assert rt.cudaStreamBeginCapture(None, {CAPTURE_GLOBAL}) == {STREAM_CAPTURE_UNSUPPORTED}
    """
    )
    trace = run_checked(program, tmp_path).trace()
    assert len(trace.positions("kernel")) == 0


def test_virtual_memory(tmp_path):
    program = """
        class Properties(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int),
                        ("location_type", ctypes.c_int), ("location", ctypes.c_int),
                        ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
        properties, address, handle = Properties(1, 0, 1, 0), ctypes.c_ulonglong(), ctypes.c_ulonglong()
        page, free, total = 2 << 20, ctypes.c_size_t(), ctypes.c_size_t()
        def free_bytes():
            call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
            return free.value
        start = free_bytes()
        call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(100 * page), 0, 0, 0)
        assert free_bytes() == start
        def create(size):
            return rt.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), 0)
        assert create(page + 1) == 1 and create(1 << 40) == 2 and create(10 * page) == 0
        call("cuMemMap", address, ctypes.c_size_t(10 * page), 0, handle, 0)
        call("cuMemRelease", handle)
        call("cudaMemset", ctypes.c_void_p(address.value), 1, ctypes.c_size_t(100))
        assert start - free_bytes() == 10 * page
        call("cuMemUnmap", address, ctypes.c_size_t(10 * page))
        assert free_bytes() == start
        call("cuMemAddressFree", address, ctypes.c_size_t(100 * page))
    """
    trace = run_checked(program, tmp_path).trace()
    assert list(trace.table("malloc")["bytes"]) == [10 * (2 << 20)]
    assert list(trace.table("free")["bytes"]) == [10 * (2 << 20)]


def test_the_three_interfaces_agree_on_the_device(tmp_path):
    program = """
        def attribute(api, number):
            value = ctypes.c_int()
            call(api, ctypes.byref(value), number, 0)
            return value.value
        known = {1: 1024, 10: 32, 16: 132, 39: 2048, 75: 9, 76: 0, 97: 227 << 10}
        for number, expected in known.items():
            for api in ("cudaDeviceGetAttribute", "cuDeviceGetAttribute"):
                assert attribute(api, number) == expected
        name, device = ctypes.create_string_buffer(64), ctypes.c_void_p()
        call("nvmlInit_v2"); call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(device))
        call("nvmlDeviceGetName", device, name, 64)
        assert name.value == b"Test GPU"
        def is_found(symbol):
            function, flags = ctypes.c_void_p(), ctypes.c_ulonglong(0)
            call("cudaGetDriverEntryPointByVersion", symbol, ctypes.byref(function), 13000, flags, None)
            return function.value is not None
        assert all(map(is_found, (b"cuMemCreate", b"cuMemAlloc", b"cuGetErrorString")))
        assert not is_found(b"cuNoSuchThing")
    """
    run_checked(program, tmp_path)


def test_visible_devices(tmp_path):
    program = "n = ctypes.c_int(); print(rt.cudaGetDeviceCount(ctypes.byref(n)), n.value)"
    for variables, expected in (
        ({"MAYA_NUM_DEVICES": "4"}, "0 4"),
        ({"MAYA_NUM_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "2,0"}, "0 2"),
        ({"MAYA_NUM_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "1,-1,2"}, "0 1"),
        ({"MAYA_NUM_DEVICES": "4", "CUDA_VISIBLE_DEVICES": "1,1"}, "100 0"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "100 0"),
        ({"MAYA_GPU": ""}, "100 0"),
    ):
        assert run_checked(program, tmp_path, **variables).output.strip() == expected, variables
    run = run_checked(program, tmp_path, MAYA_GPU="device_name=x;compute_capability=9.0")
    assert run.output.strip() == "100 0" and "num_sms is missing" in run.errors
