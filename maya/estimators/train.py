"""Turns a profile into the estimator of a GPU and says how good it is on held-out rows."""

import hashlib
import json
import logging
import tempfile
from pathlib import Path

from maya.config.schema import GpuConfig
from maya.estimators.attention import fit_attention
from maya.estimators.collectives import fit_collectives
from maya.estimators.estimator import Estimator, save_estimator
from maya.estimators.gemm import fit_gemm
from maya.estimators.profile_schema import read_profile

log = logging.getLogger(__name__)

ACCURACY = "accuracy.json"


def train(profile: Path, gpu: GpuConfig, output_dir: Path) -> None:
    """Trains on a profile of ``gpu`` and writes the estimator and `accuracy.json` to ``output_dir``.

    `accuracy.json` holds, by op kind, errors on rows that the fit did not see. An empty profile gives an
    estimator of bounds alone.
    """
    rows, dropped = read_profile(profile)
    gemm, gemm_errors = fit_gemm(gpu, rows[rows.op_kind == "gemm"])
    attention, attention_errors = fit_attention(gpu, rows[rows.op_kind == "attention"])
    intra_node, collective_errors = fit_collectives(gpu, rows[rows.op_kind == "collective"])
    digest = hashlib.sha256(profile.read_bytes()).hexdigest()
    estimator = Estimator(gpu=gpu, gemm=gemm, attention=attention, intra_node=intra_node, data_digest=digest)
    errors = gemm_errors | attention_errors | collective_errors
    report = {"held_out": errors, "rows": len(rows), "rows_dropped": dropped}
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent) as scratch:
        # A folder that is complete or not there: files move in only when all of them are written.
        save_estimator(estimator, Path(scratch))
        (Path(scratch) / ACCURACY).write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
        output_dir.mkdir(exist_ok=True)
        for stale in output_dir.glob("gemm_*.ubj"):
            stale.unlink()
        for file in sorted(Path(scratch).iterdir()):
            file.replace(output_dir / file.name)
    for kind, error in sorted(errors.items()):
        best = min(value for key, value in error.items() if key.endswith("mape"))
        log.info("%s %s: held-out error %.1f %%", gpu.name, kind, 100 * best)
