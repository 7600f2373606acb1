rule ingest:
    """Measured kernel and collective times of installed packages, as one tidy table a GPU."""
    output:
        profile="results/profiles/{gpu}.parquet",
    log:
        "results/logs/ingest/{gpu}.log",
    params:
        gpu=lambda wildcards: gpu_facts(wildcards.gpu),
        code=source_digest("estimators"),
    script:
        "../scripts/ingest.py"


rule train:
    """Estimators of one GPU, trained on its table."""
    input:
        profile=rules.ingest.output.profile,
    output:
        card="results/estimators/{gpu}/card.json",
    log:
        "results/logs/train/{gpu}.log",
    params:
        gpu=lambda wildcards: gpu_facts(wildcards.gpu),
        code=source_digest("estimators"),
    script:
        "../scripts/train.py"
