"""The `maya` command: one subcommand for the whole flow and one for each of its stages.

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maya.errors import ConfigError, MayaError
from maya.signals import unwind_when_terminated

if TYPE_CHECKING:
    from maya.training_run import TrainingRun

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    logging.basicConfig(format="maya: %(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    options, command = _split_command(list(sys.argv[1:] if argv is None else argv))
    args = _parser().parse_args(options)
    if command is not None and not getattr(args, "takes_command", False):
        print(f"maya {args.stage}: takes no training command after `--`.", file=sys.stderr)
        return EXIT_USAGE
    args.command = command
    try:
        with unwind_when_terminated():
            args.run(args)
    except ConfigError as error:
        print(f"maya {args.stage}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except MayaError as error:
        print(f"maya {args.stage}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("maya: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of stdout has left, as in `maya trace FILE | head`
        return EXIT_FAILED
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        print(f"maya {args.stage}: {text}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _split_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Everything after the first ``--`` is the training command, whatever it looks like."""
    if "--" not in argv:
        return argv, None
    border = argv.index("--")
    return argv[:border], argv[border + 1 :]


def _parser() -> argparse.ArgumentParser:
    from maya import __version__

    parser = argparse.ArgumentParser(
        prog="maya",
        description="Predict time and memory of deep learning training by running it on an emulated GPU.",
    )
    parser.add_argument("--version", action="version", version=f"maya {__version__}")
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")

    def stage(
        name: str, run: Callable[[argparse.Namespace], None], text: str, example: str
    ) -> argparse.ArgumentParser:
        added = stages.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    predict = stage(
        "predict",
        _predict,
        "Predict one iteration: of a training command after `--`, or of a job given by overrides.",
        "maya predict --gpu h100_sxm --json out.json -- torchrun --nproc-per-node 8 train.py\n"
        "  maya predict cluster=dgx_h100 model=gpt3_1_3b framework=megatron framework.tp=2",
    )
    _add_run_options(predict)
    predict.add_argument("--json", type=Path, metavar="FILE", help="write the summary")
    predict.add_argument(
        "--timeline", type=Path, metavar="FILE", help="write a Chrome trace, .json or .json.gz"
    )
    predict.add_argument(
        "--memory", type=Path, metavar="FILE", help="write what fills the memory of each rank, as JSON"
    )
    predict.add_argument("--trace-dir", type=Path, metavar="DIR", help="keep the traces there")

    capture = stage(
        "capture",
        _capture,
        "Run a training program on emulated GPUs and keep one trace per rank.",
        "maya capture --gpu a100_sxm_80gb --output traces -- torchrun --nproc-per-node 2 train.py",
    )
    _add_run_options(capture)
    capture.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the traces")
    capture.add_argument(
        "--ranks", type=_ranks, metavar="R,R,...", help="capture these ranks, each alone, and no others"
    )

    collate = stage(
        "collate",
        _collate,
        "Bring the traces of one run together: communicators, iterations, classes of ranks.",
        "maya collate traces --output job",
    )
    collate.add_argument("traces", type=Path, metavar="DIR", help="folder that `maya capture` wrote")
    collate.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder of the job")

    simulate = stage(
        "simulate",
        _simulate,
        "Give each operation of a collated job a duration and simulate it.",
        "maya simulate job --cluster dgx_h100 --json out.json --timeline timeline.json.gz",
    )
    simulate.add_argument("job", type=Path, metavar="DIR", help="folder that `maya collate` wrote")
    simulate.add_argument(
        "--cluster", default="generic", metavar="NAME", help="an option of config/cluster (default: generic)"
    )
    simulate.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="e.g. cluster.host_time_ratio=0.8"
    )
    simulate.add_argument("--json", type=Path, metavar="FILE", help="write the summary")
    simulate.add_argument(
        "--timeline", type=Path, metavar="FILE", help="write a Chrome trace, .json or .json.gz"
    )

    ingest = stage(
        "ingest",
        _ingest,
        "Bring the measured tables of installed packages into one table for a GPU.",
        "maya ingest h100_sxm --output h100_sxm.parquet",
    )
    ingest.add_argument("gpu", metavar="GPU", help="an option of config/gpu")
    ingest.add_argument("--output", type=Path, required=True, metavar="FILE")

    train = stage(
        "train",
        _train,
        "Train the estimators of a GPU on its table.",
        "maya train h100_sxm --profile profiles/h100_sxm/aiconfigurator.parquet --output estimators",
    )
    train.add_argument("gpu", metavar="GPU", help="an option of config/gpu")
    train.add_argument(
        "--profile",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="from `maya ingest`; repeatable",
    )
    train.add_argument("--output", type=Path, required=True, metavar="DIR")

    report = stage(
        "report",
        _report,
        "Run a sweep with Snakemake as far as it is not done, and write its report.",
        "maya report quickstart --cores 2",
    )
    report.add_argument("sweep", nargs="?", default="quickstart", help="an option of config/sweep")
    report.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for all jobs of the sweep")
    report.add_argument("--cores", type=int, default=2, metavar="N")

    trace = stage(
        "trace",
        _trace,
        "Print the records of one trace file.",
        "maya trace traces/rank00000.trace --limit 20",
    )
    trace.add_argument("file", type=Path, metavar="FILE")
    trace.add_argument("--limit", type=int, default=50, metavar="N", help="records to print (default: 50)")

    emulator = stage(
        "emulator",
        _emulator,
        "Build the emulated GPU for the installed PyTorch, or list what it covers.",
        "maya emulator build\nmaya emulator coverage --page coverage.md",
    )
    emulator.add_argument("action", choices=("build", "coverage"))
    emulator.add_argument(
        "--page", type=Path, metavar="FILE", help="coverage: write every function and its status as Markdown"
    )
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(takes_command=True)
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="as in config/, e.g. cluster.nodes=4"
    )
    parser.add_argument("--gpu", metavar="NAME", help="an option of config/gpu; the same as gpu=NAME")
    parser.add_argument(
        "--cluster", metavar="NAME", help="an option of config/cluster, which implies a GPU; as cluster=NAME"
    )
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="number of ranks, where the command leaves it open"
    )
    parser.add_argument("--iterations", type=int, metavar="N", help="measured iterations, after the warm-up")
    parser.add_argument(
        "--mode", choices=("auto", "linked", "solo"), help="all ranks together, or each alone"
    )
    parser.add_argument("--strict", action="store_true", help="fail at the first call that is not emulated")


def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _training_run(args: argparse.Namespace) -> "TrainingRun":
    """The run that the options describe: a user's command, or a job of the repository's workloads."""
    from maya.config.compose import compose_job, compose_target
    from maya.training_run import run_of_command, run_of_job

    shorthand = {
        "gpu": args.gpu,
        "cluster": args.cluster,
        "capture.iterations": args.iterations,
        "capture.mode": args.mode,
        "capture.strict": "true" if args.strict else None,
    }
    overrides = args.overrides + [f"{key}={value}" for key, value in shorthand.items() if value is not None]
    if args.world_size is not None and args.world_size < 1:
        raise ConfigError(f"--world-size {args.world_size}: it must be at least 1.")
    if args.command is not None:
        gpu, cluster, capture = compose_target(overrides)
        return run_of_command(args.command, gpu, cluster, capture, args.world_size)
    if not args.overrides:
        raise ConfigError(
            "nothing to run. Give a training command after `--`, as in `-- torchrun --nproc-per-node 8 a.py`,"
            " or a job as overrides, e.g. `model=gpt3_1_3b framework=fsdp2`."
        )
    if args.world_size is not None:
        raise ConfigError(
            "--world-size goes with a command. A job has cluster.nodes x cluster.gpus_per_node ranks."
        )
    return run_of_job(compose_job(overrides))


def _predict(args: argparse.Namespace) -> None:
    _check_folders(args.json, args.timeline, args.memory)
    run = _training_run(args)
    from maya.display import print_prediction, progress_display
    from maya.predict import predict

    with progress_display() as progress:
        prediction = predict(
            run,
            trace_dir=args.trace_dir,
            timeline=args.timeline,
            memory=args.memory,
            progress=progress,
        )
    print_prediction(prediction)
    if args.json is not None:
        prediction.write(args.json)
    timeline = None if prediction.summary.oom else args.timeline
    _say_written(args.json, timeline, args.memory, args.trace_dir)


def _capture(args: argparse.Namespace) -> None:
    run = _training_run(args)
    from maya.display import progress_display
    from maya.training_run import capture_run

    with progress_display() as progress:
        manifest = capture_run(run, args.output, progress, ranks=args.ranks)
    for rank in manifest.ranks:
        print(
            f"rank {rank.rank}: {rank.status}, {rank.iterations} iterations, "
            f"{sum(rank.calls.values()):,} device calls, {rank.seconds:.1f} s"
        )
    _say_written(args.output)


def _collate(args: argparse.Namespace) -> None:
    from maya.collate import collate, write_job

    job = collate(args.traces)
    write_job(job, args.output)
    for rank in job.ranks:
        print(f"rank {rank.rank} stands for {len(rank.members)}: {len(rank.ops):,} rows")
    _say_written(args.output)


def _simulate(args: argparse.Namespace) -> None:
    from maya.collate import read_job
    from maya.config.compose import compose_target
    from maya.display import print_summary, progress_display
    from maya.predict import simulate_job
    from maya.simulator.summary import write_summary

    _check_folders(args.json, args.timeline)
    job = read_job(args.job)
    gpu, cluster, _ = compose_target([f"cluster={args.cluster}", f"gpu={job.gpu}", *args.overrides])
    with progress_display() as progress:
        summary = simulate_job(job, gpu, cluster, timeline=args.timeline, progress=progress)
    print_summary(summary)
    if args.json is not None:
        write_summary(args.json, summary)
    _say_written(args.json, args.timeline)


def _ingest(args: argparse.Namespace) -> None:
    from maya.config.compose import gpu_config
    from maya.estimators.ingest import ingest

    gpu = gpu_config(args.gpu)
    ingest(gpu, args.output)
    _say_written(args.output)


def _train(args: argparse.Namespace) -> None:
    from maya.config.compose import gpu_config
    from maya.estimators.train import train

    gpu = gpu_config(args.gpu)
    train(args.profile, gpu, args.output)
    _say_written(args.output)


def _report(args: argparse.Namespace) -> None:
    import subprocess

    from maya.config.sweep import expand_sweep
    from maya.paths import PACKAGE_DIR

    expand_sweep(args.sweep, args.overrides)  # a wrong name or key ends here with one text
    snakefile = PACKAGE_DIR.parent / "Snakefile"
    if not snakefile.is_file():
        raise ConfigError(
            f"There is no workflow at {snakefile}: `maya report` works in a checkout of the repository."
        )
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile), "--cores", str(args.cores)]
    command += ["--config", f"sweep={args.sweep}", f"overrides=[{','.join(args.overrides)}]"]
    if subprocess.run(command, cwd=snakefile.parent, check=False).returncode:
        raise MayaError(
            f"The workflow did not finish; its messages stand above. Run it again with: {' '.join(command)}"
        )
    _say_written(snakefile.parent / "results" / args.sweep / "report.html")


def _trace(args: argparse.Namespace) -> None:
    from maya.trace import read_trace
    from maya.trace_dump import dump_lines

    for line in dump_lines(read_trace(args.file, allow_incomplete=True), args.limit):
        print(line)


def _emulator(args: argparse.Namespace) -> None:
    from maya.capture.build_emulator import emulator_dir
    from maya.capture.coverage import read_coverage, summarise, write_page

    if args.action == "build":
        print(emulator_dir())
        return
    _check_folders(args.page)
    coverage = read_coverage()
    print(summarise(coverage).to_string())
    if args.page is not None:
        write_page(coverage, args.page)
    _say_written(args.page)


def _check_folders(*files: Path | None) -> None:
    """Finds out before the work and not after it that a result cannot be written."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{file}: there is no folder {file.parent}. Make it, or choose another file.")


def _say_written(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
