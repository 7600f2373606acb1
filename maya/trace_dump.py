"""A trace as lines of text, for people who look for one call."""

from collections.abc import Iterator

from maya.trace import FIELDS, KINDS, MISSING, Trace


def dump_lines(trace: Trace, limit: int) -> Iterator[str]:
    """A header, then one line for each of the first ``limit`` records: gap, thread, kind and known fields."""
    state = "complete" if trace.is_complete else f"incomplete, stops at byte {trace.stop_offset}"
    yield f"# {trace.path}: rank {trace.rank}, {trace.num_records:,} records, format {trace.version}, {state}"
    yield f"# {'gap_us':>9} {'thread':>18}  call"
    names = {number: name for name, number in KINDS.items()}
    shown = min(limit, len(trace.kind))
    for index in range(shown):
        kind = names[int(trace.kind[index])]
        thread = trace.threads.get(int(trace.thread[index]), str(trace.thread[index]))
        fields = []
        if FIELDS[kind]:
            values = trace.tables[kind][int(trace.row[index])]
            for field, value in zip(FIELDS[kind], values.tolist(), strict=True):
                if value != MISSING:
                    fields.append(f"{field}={trace.strings[value] if field == 'name' else value}")
        yield f"{trace.gap_ns[index] / 1e3:11.2f} {thread:>18}  {kind} {' '.join(fields)}".rstrip()
    if shown < len(trace.kind):
        yield f"# ... {len(trace.kind) - shown:,} more"
