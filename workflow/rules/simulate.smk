rule simulate:
    """Durations of all operations, then the timeline of the run and its summary."""
    input:
        job=lambda wildcards: f"results/collated/{trace_of_job(wildcards.job_id)}",
        estimator=lambda wildcards: f"results/estimators/{gpu_of_job(wildcards.job_id)}/card.json",
    output:
        summary="results/simulations/{job_id}/summary.json",
        timeline="results/simulations/{job_id}/timeline.json.gz",
        lanes="results/simulations/{job_id}/lanes.parquet",
        memory="results/simulations/{job_id}/memory.json",
    log:
        "results/logs/simulate/{job_id}.log",
    resources:
        mem_mb=lambda wildcards, attempt: 4000 * attempt,
    params:
        job=lambda wildcards: job_facts(wildcards.job_id),
        code=source_digest("estimators", "simulator"),
    script:
        "../scripts/simulate.py"
