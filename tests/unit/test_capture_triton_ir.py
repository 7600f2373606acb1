"""Counting in the text of Triton's IR."""

import json
from pathlib import Path

import pytest
from trace_writer import TraceWriter

from maya.capture.triton_ir import write_kernel_table
from maya.errors import TraceError
from maya.trace import _decoder, read_trace, read_triton_kernels
from maya.trace.triton_kernels import FILE_NAME, Dot

TTIR = """
#loc = loc("kernel.py":1:0)
module {
  tt.func public @softmax(%x: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc(#x), %n: i32) attributes {} {
    %0 = tt.get_program_id x : i32 loc(#loc1)
    %1 = tt.splat %x : !tt.ptr<bf16> -> tensor<64x16x!tt.ptr<bf16>> loc(#loc2)
    %2:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %cst, %b = %cst) -> (f32, f32) : i32 {
      %3 = tt.load %1 : tensor<64x16x!tt.ptr<bf16>> loc(#loc3)
      %4 = tt.dot %3, %5, %a : tensor<64x16xbf16> * tensor<16x32xbf16> -> tensor<64x32xf32>
    }
    %6 = "tt.reduce"(%4) <{axis = 1 : i32}> ({
    ^bb0(%p: f32, %q: f32):
      %7 = arith.addf %p, %q : f32 loc(#loc4)
      tt.reduce.return %7 : f32 loc(#loc4)
    }) : (tensor<64x32xf32>) -> tensor<64xf32> loc(#loc4)
    %8 = math.exp2 %6 : tensor<64xf32> loc(#loc5)
    tt.store %1, %8 : tensor<64x!tt.ptr<bf16>> loc(#loc6)
    tt.return loc(#loc7)
  }
}
"""


def cached(folder: Path, code: bytes, num_warps: int) -> int:
    folder.mkdir(parents=True)
    metadata = {"name": "softmax", "num_warps": num_warps, "num_stages": 3, "shared": 4096}
    (folder / "softmax.cubin").write_bytes(code)
    (folder / "softmax.json").write_text(json.dumps(metadata))
    (folder / "softmax.ttir").write_text(TTIR)
    return _decoder.code_hash(code)


def test_launched_code_is_found_in_the_cache(tmp_path: Path) -> None:
    code = cached(tmp_path / "cache" / "ABC", b"one", num_warps=4)
    cached(tmp_path / "cache" / "DEF", b"not launched", num_warps=8)
    traces = tmp_path / "traces"
    writer = TraceWriter()
    writer.record("code", name="softmax", hash=code, num_registers=32, static_shared_bytes=0)
    writer.record("code", name="of_another_origin", hash=5)
    writer.kernel("softmax")
    writer.kernel("axpy")
    path = writer.write(traces)
    write_kernel_table(traces, tmp_path / "cache")
    (kernel,) = read_triton_kernels(traces).values()
    assert (kernel.code, kernel.name, kernel.num_warps, kernel.shared_bytes) == (code, "softmax", 4, 4096)
    assert kernel.signature == ("!tt.ptr<bf16>", "i32")
    counts = {"loop": 1, "load": 1, "dot": 1, "reduce": 1, "arithmetic": 1, "exp": 1, "store": 1}
    assert kernel.operations == counts
    assert kernel.dots == (Dot(m=64, n=32, k=16, dtype="bf16"),)
    assert read_trace(path).kernel_codes().tolist() == [code, 0]


def test_no_table_without_triton(tmp_path: Path) -> None:
    TraceWriter().write(tmp_path)
    write_kernel_table(tmp_path, tmp_path / "cache")
    assert read_triton_kernels(tmp_path) == {}


@pytest.mark.parametrize("text", ["[]", '{"schema_version": 9}', '{"schema_version": 1, "kernels": [{}]}'])
def test_damaged_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(TraceError):
        read_triton_kernels(tmp_path)
