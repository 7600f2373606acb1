"""Which functions of the CUDA libraries the emulator stands in for: the table that its build writes."""

from pathlib import Path
from typing import Any

import pandas as pd

from maya.capture.build_emulator import COVERAGE, emulator_dir

STATUSES = ("modelled", "no-op", "not emulated")

_EXPLANATION = """\
* *modelled*: does to the emulated device what the real function does to a GPU, as far as a program can see.
* *no-op*: succeeds and does nothing; the reason stands beside it.
* *not emulated*: is recorded, warned about once and fails with its library's code for an unsupported call;
  with `--strict` it ends the run. The driver's functions that are looked up by name are then not found.
"""


def read_coverage() -> pd.DataFrame:
    """One row a function: library, function, status (of `STATUSES`), reason, used_by_pytorch.

    ``used_by_pytorch`` tells whether the installed PyTorch links it. Raises: CaptureError as `emulator_dir`.
    """
    coverage = pd.read_csv(emulator_dir() / COVERAGE, keep_default_na=False)
    coverage["used_by_pytorch"] = coverage["used_by_pytorch"] == 1
    return coverage


def summarise(coverage: pd.DataFrame) -> pd.DataFrame:
    """Numbers of functions by library (index) and status, and how many without emulation PyTorch links."""
    counts = coverage.groupby(["library", "status"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(STATUSES), fill_value=0)
    open_ = coverage[(coverage["status"] == "not emulated") & coverage["used_by_pytorch"]]
    counts["of these linked by PyTorch"] = open_.groupby("library").size().reindex(counts.index, fill_value=0)
    return counts


def write_page(coverage: pd.DataFrame, path: Path) -> None:
    """Writes all functions by library and status as a Markdown page."""
    counts = summarise(coverage)
    lines = ["# What the emulator covers", "", _EXPLANATION]
    lines += _table(["library", *counts.columns], [[name, *row] for name, row in counts.iterrows()])
    for library, functions in coverage.groupby("library"):
        lines += ["", f"## {library}"]
        no_ops = functions[functions["status"] == "no-op"]
        for status in ("modelled", "not emulated"):
            names = functions.loc[functions["status"] == status, "function"]
            if len(names):
                lines += ["", f"**{status}** ({len(names)}): " + ", ".join(f"`{name}`" for name in names)]
        if len(no_ops):
            lines += ["", f"**no-op** ({len(no_ops)}):", ""]
            rows = no_ops[["function", "reason"]].to_numpy().tolist()
            lines += _table(["function", "reason"], rows)
    path.write_text("\n".join(lines) + "\n")


def _table(header: list[str], rows: list[list[Any]]) -> list[str]:
    lines: list[list[Any]] = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]
