"""Reading a training command as its user types it: python, torchrun, or another launcher."""

import argparse
import os
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn

from maya.errors import ConfigError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON_NAME = re.compile(r"python(3(\.\d+)?)?")
_SPAWN_CALL = re.compile(r"^[^#\n]*\b(mp|multiprocessing)\.(spawn|start_processes)\(", re.MULTILINE)
_PROCESS_CALL = re.compile(r"^[^#\n]*\bProcess\(\s*target=", re.MULTILINE)
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_OTHER_LAUNCHER_MODULES = ("accelerate.commands.launch", "deepspeed.launcher.runner")

TargetKind = Literal["script", "module", "executable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What every rank executes: a Python file, a module (``python -m``), or an executable."""

    kind: TargetKind
    name: str
    arguments: tuple[str, ...]

    def argv(self, interpreter: tuple[str, ...]) -> tuple[str, ...]:
        match self.kind:
            case "script":
                return (*interpreter, self.name, *self.arguments)
            case "module":
                return (*interpreter, "-m", self.name, *self.arguments)
            case "executable":
                return (self.name, *self.arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A training command taken apart.

    ``launcher`` "python" is one process, or one per rank when a world size is given besides; "torchrun" is
    one per rank, started here in place of torchrun; "foreign" is run as it is, and its children are the
    ranks (other launchers, and scripts that start processes themselves). ``interpreter`` starts Python with
    the options given; ``is_own_python`` says that it is the running interpreter without options that matter,
    so that ranks may be forked from a warm process. ``num_nodes`` is None where the command does not tell
    its world size, ``procs_per_node`` where it is one per GPU. ``env`` holds the variables set in front.
    """

    launcher: Literal["python", "torchrun", "foreign"]
    argv: tuple[str, ...]
    target: Target | None = None
    interpreter: tuple[str, ...] = ()
    is_own_python: bool = False
    num_nodes: int | None = None
    procs_per_node: int | None = None
    env: dict[str, str] = field(default_factory=dict)

    def world_size(self, gpus_per_node: int) -> int:
        """World size that the command asks for on nodes of ``gpus_per_node`` GPUs."""
        if self.num_nodes is None:
            raise ConfigError(
                f"`{self.argv[0]}` starts the ranks itself, and Maya cannot tell how many. "
                "Say so with `--world-size N`."
            )
        return self.num_nodes * (self.procs_per_node or gpus_per_node)


def parse_command(argv: tuple[str, ...]) -> Command:
    """Takes a command line apart.

    Raises:
        ConfigError: an incomplete command, or a torchrun option that torchrun does not have.
    """
    env, argv = _split_environment(argv)
    command = _parse_program(argv)
    # It chooses among devices of a real node; the emulated one has as many as there are processes on it.
    visible_devices = env.pop("CUDA_VISIBLE_DEVICES", None)
    procs_per_node = command.procs_per_node
    if procs_per_node is None and visible_devices:
        procs_per_node = len(visible_devices.split(","))
    return replace(command, procs_per_node=procs_per_node, env=env)


def _split_environment(argv: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Splits ``A=1 B=2 python train.py`` into variables and the rest, also with ``env`` in front."""
    begin = 1 if Path(argv[0]).name == "env" and len(argv) > 1 and not argv[1].startswith("-") else 0
    end = begin
    while end < len(argv) and _ASSIGNMENT.match(argv[end]):
        end += 1
    if end == len(argv):
        raise ConfigError(f"`{' '.join(argv)}` sets variables and runs nothing. Add the training command.")
    return dict(text.split("=", 1) for text in argv[begin:end]), argv[end:]


def _parse_program(argv: tuple[str, ...]) -> Command:
    name = Path(argv[0]).name
    if name == "torchrun":
        python = _resolve_interpreter(
            str(Path(argv[0]).with_name("python")) if os.sep in argv[0] else "python"
        )
        return _parse_torchrun(argv, argv[1:], (python,), is_own_python=python == sys.executable)
    if not _PYTHON_NAME.fullmatch(name):
        return Command(launcher="foreign", argv=argv)

    options, rest = _split_python_options(argv)
    interpreter = (_resolve_interpreter(argv[0]), *options)
    is_own = interpreter[0] == sys.executable and set(options) <= {"-u"}
    if rest[0] == "-m" and rest[1] in _TORCHRUN_MODULES:
        return _parse_torchrun(argv, rest[2:], interpreter, is_own_python=is_own)
    if rest[0] == "-m" and rest[1] in _OTHER_LAUNCHER_MODULES:
        return Command(launcher="foreign", argv=(*interpreter, *rest))
    if rest[0] == "-m":
        target = Target(kind="module", name=rest[1], arguments=rest[2:])
    else:
        target = Target(kind="script", name=rest[0], arguments=rest[1:])
        if _spawns_ranks(Path(rest[0])):
            return Command(launcher="foreign", argv=target.argv(interpreter), num_nodes=1)
    return Command(
        launcher="python",
        argv=argv,
        target=target,
        interpreter=interpreter,
        is_own_python=is_own,
        num_nodes=1,
        procs_per_node=1,
    )


def _spawns_ranks(script: Path) -> bool:
    """Whether a script starts one process per GPU of its node itself, as PyTorch's own tutorials do."""
    text = script.read_text(errors="replace") if script.is_file() else ""
    # Other processes may be anything, e.g. loaders of data, unless they make process groups.
    makes_groups = "init_process_group(" in text
    return bool(_SPAWN_CALL.search(text) or (makes_groups and _PROCESS_CALL.search(text)))


def _resolve_interpreter(name: str) -> str:
    """A bare ``python`` is the interpreter that Maya runs in: the one whose PyTorch the emulator fits."""
    if os.sep not in name:
        return sys.executable
    own = Path(sys.executable)
    # Symbolic links of a virtual environment must not be resolved: they tell environments apart.
    given = Path(name).absolute()
    is_own = given.parent == own.parent and given.resolve() == own.resolve()
    return sys.executable if is_own else name


def _split_python_options(argv: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Splits ``python -u -X dev script.py a`` into interpreter options and the rest, from script or -m on."""
    i = 1
    while i < len(argv):
        if argv[i] == "-c":
            raise ConfigError("`python -c` cannot be captured. Put the program into a file.")
        if argv[i] == "-m":
            if i + 1 == len(argv):
                break
            return argv[1:i], argv[i:]
        if not argv[i].startswith("-"):
            return argv[1:i], argv[i:]
        i += 2 if argv[i] in ("-W", "-X") else 1
    raise ConfigError(f"`{' '.join(argv)}` names no script or module. Example: `-- python train.py`.")


# Options with a value that do not change what a rank does.
_TORCHRUN_IGNORED = (
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval"),
    *("start-method", "event-log-handler", "role", "log-dir", "log-line-prefix-template", "logs-specs"),
    *("local-ranks-filter", "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank"),
    *("master-addr", "master-port", "local-addr", "numa-binding", "signals-to-handle", "shutdown-timeout"),
)


class _TorchrunParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"torchrun: {message}. See `torchrun --help` for its options.")


def _torchrun_parser() -> argparse.ArgumentParser:
    """The options of ``torch.distributed.run``, of which only the ones that shape the world matter here.

    Kept apart from torch's own parser because importing torch takes two seconds; a test compares both.
    """
    parser = _TorchrunParser(prog="torchrun", add_help=False)
    for name in _TORCHRUN_IGNORED:
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}")
    parser.add_argument("-r", "--redirects")
    parser.add_argument("-t", "--tee")
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--virtual-local-rank", "--virtual_local_rank", action="store_true")
    parser.add_argument("--run-path", "--run_path", action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--no-python", "--no_python", action="store_true")
    parser.add_argument("--nnodes", default=os.environ.get("PET_NNODES", "1"))
    parser.add_argument(
        "--nproc-per-node", "--nproc_per_node", default=os.environ.get("PET_NPROC_PER_NODE", "1")
    )
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _parse_torchrun(
    argv: tuple[str, ...], options: tuple[str, ...], interpreter: tuple[str, ...], is_own_python: bool
) -> Command:
    parsed = _torchrun_parser().parse_args(list(options))
    kind: TargetKind = "module" if parsed.module else "executable" if parsed.no_python else "script"
    return Command(
        launcher="torchrun",
        argv=argv,
        target=Target(kind=kind, name=parsed.training_script, arguments=tuple(parsed.training_script_args)),
        interpreter=interpreter,
        is_own_python=is_own_python,
        num_nodes=_parse_num_nodes(parsed.nnodes),
        procs_per_node=_parse_procs_per_node(parsed.nproc_per_node),
    )


def _parse_num_nodes(text: str) -> int:
    """``4`` or ``MIN:MAX``; an elastic job is taken at its largest."""
    match = re.fullmatch(r"(?:\d+:)?(\d+)", text)
    if not match or int(match[1]) < 1:
        raise ConfigError(f"torchrun: --nnodes {text!r} is neither a count nor MIN:MAX.")
    return int(match[1])


def _parse_procs_per_node(text: str) -> int | None:
    if text in ("gpu", "auto"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"torchrun: --nproc-per-node {text!r} is neither a count nor 'gpu' nor 'auto'.")
    return int(text)
