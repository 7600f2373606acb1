"""What tells one compiled kernel from another."""

from cubin_writer import write_cubin

from maya.trace._decoder import code_hash

CODE = bytes(range(128))


def test_paths_of_sources_make_no_other_code() -> None:
    one = write_cubin("kernel", 32, code=CODE, debug=b"/tmp/cache/ab/cabc.py")
    other = write_cubin("kernel", 32, code=CODE, debug=b"/tmp/cache/xy/cxyz_longer.py")
    assert one != other
    assert code_hash(one) == code_hash(other)


def test_instructions_do() -> None:
    assert code_hash(write_cubin("kernel", 32, code=CODE)) != code_hash(
        write_cubin("kernel", 32, code=CODE[::-1])
    )


def test_what_is_no_whole_cubin_counts_with_all_its_bytes() -> None:
    assert code_hash(b"ptx one") != code_hash(b"ptx two")
    cubin = write_cubin("kernel", 32, code=CODE)
    assert code_hash(cubin[:-8]) != code_hash(cubin[:-9])
    assert code_hash(write_cubin("kernel", 32)) != code_hash(write_cubin("kernel", 33))
