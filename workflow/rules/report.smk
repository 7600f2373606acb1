rule jobs_table:
    """Says what configuration each job id of a sweep stands for."""
    output:
        table="results/{sweep}/jobs.csv",
    log:
        "results/logs/jobs_table/{sweep}.log",
    localrule: True
    params:
        jobs=[job_facts(job_id) for job_id in sorted(JOBS)],
    script:
        "../scripts/jobs_table.py"


rule report:
    """Tables, plots and one HTML page on all jobs of the sweep."""
    input:
        table=rules.jobs_table.output.table,
        summaries=[f"results/simulations/{job_id}/summary.json" for job_id in JOBS],
        lanes=[f"results/simulations/{job_id}/lanes.parquet" for job_id in JOBS],
        memory=[f"results/simulations/{job_id}/memory.json" for job_id in JOBS],
    output:
        page="results/{sweep}/report.html",
        table="results/{sweep}/table.csv",
        plots=[
            f"results/{{sweep}}/plots/{name}.png"
            for name in ("iteration_times", "peak_memory", "duration_bases")
        ],
    log:
        "results/logs/report/{sweep}.log",
    params:
        jobs=[job_facts(job_id) for job_id in JOBS],
        code=source_digest("report"),
    script:
        "../scripts/report.py"
