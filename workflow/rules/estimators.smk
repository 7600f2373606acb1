rule ingest:
    """Measured kernel and collective times of installed packages, as one tidy table a GPU."""
    output:
        profile="results/profiles/{gpu}/aiconfigurator.parquet",
    log:
        "results/logs/ingest/{gpu}.log",
    params:
        gpu=lambda wildcards: gpu_facts(wildcards.gpu),
        code=source_digest("estimators"),
    script:
        "../scripts/ingest.py"


rule train:
    """The estimator of one GPU, trained on its measurements; other GPUs stand in for what it lacks."""
    input:
        packaged=rules.ingest.output.profile,
        measurements=lambda wildcards: inputs_of(wildcards.gpu).measurements,
        shipped=lambda wildcards: [folder / "card.json" for folder in inputs_of(wildcards.gpu).shipped],
        lenders=lambda wildcards: lender_cards(wildcards.gpu),
    output:
        card="results/estimators/{gpu}/card.json",
    log:
        "results/logs/train/{gpu}.log",
    params:
        gpu=lambda wildcards: gpu_facts(wildcards.gpu),
        code=source_digest("estimators"),
    script:
        "../scripts/train.py"
