rule capture:
    """Traces of one training run on emulated GPUs: all its ranks, or one for each class of ranks."""
    output:
        traces=directory("results/traces/{trace_id}"),
    log:
        "results/logs/capture/{trace_id}.log",
    threads: 1
    resources:
        mem_mb=lambda wildcards, attempt: 6000 * attempt,
        runtime=lambda wildcards, attempt: 60 * attempt,
    params:
        job=lambda wildcards: trace_facts(wildcards.trace_id),
        code=source_digest("capture", "native"),
    script:
        "../scripts/capture.py"


rule collate:
    """The traces of a run brought together: communicators, iterations, host gaps."""
    input:
        traces=rules.capture.output.traces,
    output:
        job=directory("results/collated/{trace_id}"),
    log:
        "results/logs/collate/{trace_id}.log",
    resources:
        mem_mb=lambda wildcards, attempt: 4000 * attempt,
    params:
        code=source_digest("collate", "trace"),
    script:
        "../scripts/collate.py"
