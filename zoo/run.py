"""Train one step of every model of the zoo on the emulated GPU and write a table of how it went.

    python zoo/run.py --match 'timm/resnet*' 'transformers/*/bert'

Finished chunks stay, so that a further run does only what is missing. See zoo/models.py for the models.
"""

import argparse
import fnmatch
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pandas as pd
from models import names

from maya.capture import CaptureSpec
from maya.capture.build_emulator import emulator_dir
from maya.capture.environment import common_environment
from maya.config.compose import gpu_config

CHUNK_SIZE = 25
COLUMNS = ["model", "status", "seconds", "kernels", "peak_bytes", "unemulated_calls", "reason"]
COUNTS = ["kernels", "peak_bytes"]
TARGET_SHARE = 0.99
WORKER = Path(__file__).with_name("worker.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("results/zoo"))
    parser.add_argument("--gpu", default="h100_sxm", help="an option of config/gpu")
    parser.add_argument("--match", nargs="+", default=["*"], metavar="PATTERN", help="names, with * and ?")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--retry", action="store_true", help="run again what did not pass")
    args = parser.parse_args()
    chunks = args.output / "chunks"
    chunks.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in names() if any(fnmatch.fnmatch(name, pattern) for pattern in args.match)]
    if not wanted:
        raise SystemExit(f"No model is called {' or '.join(args.match)}. Names: zoo/models.py.")
    rows = read_chunks(chunks)
    done = set(rows["model"][rows["status"] == "ok"] if args.retry else rows["model"])
    missing = [name for name in wanted if name not in done]
    print(f"{len(wanted)} models, {len(missing)} to run", flush=True)
    run(missing, worker_environment(args.gpu), chunks, args.workers)
    summary = read_chunks(chunks).sort_values("model")
    summary.to_csv(args.output / "summary.csv", index=False)
    raise SystemExit(report(summary[summary["model"].isin(wanted)]))


def worker_environment(gpu: str) -> dict[str, str]:
    """Of a process that sees one emulated GPU, records nothing and downloads nothing."""
    spec = CaptureSpec(
        command=("python", str(WORKER)),
        gpu=gpu_config(gpu),
        world_size=1,
        gpus_per_node=1,
        mode="solo",
        ranks=(0,),
        env={"HF_HUB_OFFLINE": "1"},
        output_dir=Path(tempfile.gettempdir()) / "unused",
    )
    return common_environment(spec, emulator_dir(), spec.output_dir, dict(os.environ))


def read_chunks(folder: Path) -> pd.DataFrame:
    """All finished rows; of a model that was run again the newest."""
    paths = sorted(folder.glob("*.csv"))
    tables = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths]
    if not tables:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(tables, ignore_index=True).drop_duplicates("model", keep="last")


def run(missing: list[str], env: dict[str, str], chunks: Path, num_workers: int) -> None:
    """Runs models in chunks, whose files are numbered on; each appears when all of it is done."""
    first = 1 + max((int(path.stem) for path in chunks.glob("*.csv")), default=0)
    waiting: queue.SimpleQueue[tuple[Path, list[str]]] = queue.SimpleQueue()
    for i, begin in enumerate(range(0, len(missing), CHUNK_SIZE)):
        waiting.put((chunks / f"{first + i:04}.csv", missing[begin : begin + CHUNK_SIZE]))
    num_workers = min(num_workers, waiting.qsize())
    threads = [threading.Thread(target=_work, args=(waiting, env)) for _ in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(waiting: queue.SimpleQueue[tuple[Path, list[str]]], env: dict[str, str]) -> None:
    """Feeds chunks to one worker process until there are none."""
    with subprocess.Popen(
        [sys.executable, str(WORKER)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        while True:
            try:
                path, chunk = waiting.get_nowait()
            except queue.Empty:
                break
            rows = []
            for name in chunk:
                print(name, file=worker.stdin, flush=True)
                rows.append(json.loads(worker.stdout.readline()))
            write_chunk(rows, path)
        worker.stdin.close()


def write_chunk(rows: list[dict[str, object]], path: Path) -> None:
    """Writes the file at once or not at all, and prints what failed."""
    scratch = path.with_suffix(".new")
    table = pd.DataFrame(rows).reindex(columns=COLUMNS)
    table.astype(dict.fromkeys(COUNTS, "Int64")).to_csv(scratch, index=False)
    scratch.rename(path)
    print(f"{len(rows)} models to {rows[-1]['model']}", flush=True)
    for row in rows:
        if row["status"] != "ok":
            print(f"  {row['model']} {row['status']}: {row['reason']}", flush=True)


def report(summary: pd.DataFrame) -> int:
    """Prints totals; returns 0 if enough pass of the models that can run at all, else 1."""
    counts = summary["status"].value_counts()
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    able = counts.get("ok", 0) + counts.get("failed", 0)
    share = counts.get("ok", 0) / max(able, 1)
    print(f"{share:.2%} pass of the {able} models that run on a CPU and fit the GPU")
    has_unemulated = summary["unemulated_calls"] != ""
    unexplained = summary[has_unemulated & (summary["reason"] == "")]
    print(f"{has_unemulated.sum()} make calls that are not emulated, {len(unexplained)} without a reason")
    return int(share < TARGET_SHARE or len(unexplained) > 0)


if __name__ == "__main__":
    main()
