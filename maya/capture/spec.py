"""What to capture: a command, the GPU it believes to run on, and which ranks of which world."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from maya.config.schema import CaptureConfig, GpuConfig
from maya.errors import ConfigError

Mode = Literal["linked", "solo"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureSpec:
    """One capture.

    ``mode`` "linked" runs all ranks together, and small collectives exchange their data; "solo" runs each
    of ``ranks`` as if it were alone, with made-up answers for the absent ones. ``ranks`` is left empty for
    linked. ``env`` is added to the environment of the program.

    Raises:
        ConfigError: values that contradict each other.
    """

    command: tuple[str, ...]
    gpu: GpuConfig
    world_size: int
    gpus_per_node: int
    mode: Mode
    output_dir: Path
    ranks: tuple[int, ...] = ()
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError("No training command given. Put it after `--`, e.g. `-- python train.py`.")
        if self.world_size < 1 or self.gpus_per_node < 1:
            raise ConfigError(
                f"world_size is {self.world_size} and gpus_per_node is {self.gpus_per_node}; "
                "both must be at least 1."
            )
        if self.mode not in ("linked", "solo"):
            raise ConfigError(f"capture mode is {self.mode!r}; it must be 'linked' or 'solo'.")
        if self.capture.warmup_iterations < 1 or self.capture.iterations < 1:
            raise ConfigError(
                f"capture.warmup_iterations is {self.capture.warmup_iterations} and capture.iterations is "
                f"{self.capture.iterations}; both must be at least 1."
            )
        if self.capture.timeout_s <= 0:
            raise ConfigError(f"capture.timeout_s is {self.capture.timeout_s}; it must be above 0.")
        if self.mode == "solo":
            absent = [rank for rank in self.ranks if not 0 <= rank < self.world_size]
            if not self.ranks or absent or len(set(self.ranks)) < len(self.ranks):
                raise ConfigError(
                    f"ranks {list(self.ranks)} cannot be captured solo: give at least one rank, each once, "
                    f"from 0 to {self.world_size - 1} (world_size is {self.world_size})."
                )
        elif self.ranks not in ((), tuple(range(self.world_size))):
            raise ConfigError("A linked capture runs all ranks; leave `ranks` empty or use mode 'solo'.")

    @property
    def captured_ranks(self) -> tuple[int, ...]:
        return self.ranks if self.mode == "solo" else tuple(range(self.world_size))
