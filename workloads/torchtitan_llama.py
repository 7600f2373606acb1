"""A two-layer Llama 3 for torchtitan, with FlexAttention and full activation checkpointing.

    PYTHONPATH=workloads torchrun --nproc-per-node 8 -m torchtitan.train --module torchtitan_llama \\
        --config llama3_2layers --hf_assets_path tokenizer/ --dataloader.dataset_path text/

The options of torchtitan override what stands here, e.g. `--parallelism.tensor_parallel_degree 2`.
"""

from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer


def llama3_2layers() -> Trainer.Config:
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    config.activation_checkpoint = FullAC.Config()
    config.training.local_batch_size = 1
    config.training.seq_len = 512
    config.parallelism.pipeline_parallel_schedule = "1F1B"
    config.checkpoint.enable = False
    config.validator.enable = False
    return config
