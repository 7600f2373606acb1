"""Prints predicted against measured iteration times as a Markdown table.

python tests/validation/compare.py DATA [NAME_PART]
"""

import sys
from pathlib import Path

from measured_runs import compare, measured_runs


def main() -> None:
    data, *parts = sys.argv[1:]
    print("| run | measured ms | predicted ms | ratio | of which compute | device ms by kind |")
    print("|---|---|---|---|---|---|", flush=True)
    for run in measured_runs(Path(data)):
        if parts and parts[0] not in run.name:
            continue
        try:
            result = compare(run)
        except AssertionError as error:
            print(f"| {error} |", flush=True)
            continue
        kinds = ", ".join(f"{kind} {ms:.0f}" for kind, ms in list(result.device_ms.items())[:6])
        print(
            f"| {run.name} | {run.measured_ms:.0f} | {result.predicted_ms:.0f} | {result.ratio:.2f} "
            f"| {result.compute_ms:.0f} | {kinds} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
