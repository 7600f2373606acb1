"""The report: table, plots and page from hand-made summaries."""

import re

import pandas as pd
import pytest

from maya.report import JobReport, write_report

SUMMARY = {
    "world_size": 8,
    "iteration_time_s": 0.5,
    "compute_s": 0.3,
    "exposed_communication_s": 0.1,
    "host_bound_s": 0.05,
    "hfu": 0.4,
    "peak_memory_bytes": 40 * 2**30,
    "peak_allocated_bytes": 30 * 2**30,
    "peak_memory_rank": 0,
    "oom": False,
    "operations": 1234,
    "unemulated_calls": {"cudaFoo": 2},
    "made_up_reads": [{"site": "train.py:30 in main", "bytes": 4, "answer": "zeros", "count": 17}],
    "duration_basis": {"measured": 0.6, "bound": 0.4},
}
TIMELINE = pd.DataFrame(
    {
        "rank": [0, 0],
        "lane": ["host main", "stream 0"],
        "category": ["host", "compute"],
        "start_us": [0.0, 10.0],
        "end_us": [5.0, 20.0],
    }
)

MEMORY = {
    "ranks": [
        {
            "rank": 0,
            "profile": {
                "allocated_bytes": 30 * 2**30,
                "reserved_bytes": 32 * 2**30,
                "time_us": 10,
                "allocations": [{"bytes": 20 * 2**30, "count": 4, "made_by": "model.py:7 forward"}],
                "course": {
                    "time_us": [0, 10, 20],
                    "allocated_bytes": [10 * 2**30, 30 * 2**30, 10 * 2**30],
                    "reserved_bytes": [32 * 2**30] * 3,
                },
            },
        }
    ]
}


def job(**changes: object) -> JobReport:
    values = {
        "job_id": "0123456789ab",
        "label": "gpt, fsdp2, h100",
        "gpu": "h100_sxm",
        "model": "gpt",
        "recipe": "fsdp2",
        "capacity_bytes": 85_045_608_448,
        "summary": SUMMARY,
        "timeline": TIMELINE,
        "memory": MEMORY,
    }
    return JobReport(**(values | changes))


@pytest.fixture
def out_of_memory() -> JobReport:
    times = dict.fromkeys(("iteration_time_s", "compute_s", "exposed_communication_s", "host_bound_s", "hfu"))
    return job(
        job_id="ba9876543210",
        label="big, ddp, h100",
        summary=SUMMARY | times | {"oom": True, "duration_basis": {}},
        timeline=None,
        memory={"ranks": [{"rank": 0, "profile": None}]},
    )


def test_report_lists_reads_of_made_up_values(tmp_path):
    page = write_report([job()], tmp_path, "title").read_text()
    assert re.search(r"train\.py:30 in main</td><td>4</td><td class=\"t\">zeros</td><td>17<", page)
    nothing = write_report([job(summary=SUMMARY | {"made_up_reads": []})], tmp_path, "title").read_text()
    assert "no kernel computed" not in nothing


def test_report_holds_every_job_and_is_self_contained(tmp_path, out_of_memory):
    page = write_report([job(), out_of_memory], tmp_path, "study", "about").read_text()
    assert "500.0" in page and "out of memory" in page
    sources = re.findall(r'<img src="([^"]{0,30})', page)
    assert len(sources) == 5  # three comparisons, one course of memory and one timeline
    assert all(source.startswith("data:image/png;base64,") for source in sources)


def test_table_has_units_and_one_row_a_job(tmp_path, out_of_memory):
    write_report([job(), out_of_memory], tmp_path, "study")
    table = pd.read_parquet(tmp_path / "table.parquet")
    assert table["iteration_time_s"][0] == 0.5 and table["iteration_time_s"].isna()[1]
    assert list(table["unemulated_calls"]) == [2, 2]
    assert list(table["measured_share"]) == [0.6, 0.0]
    assert len(pd.read_csv(tmp_path / "table.csv")) == 2


def test_labels_are_escaped(tmp_path):
    assert "<script>" not in write_report([job(model="<script>")], tmp_path, "study").read_text()
