"""Train a GPT, Llama or mixture of experts with megatron-core: tensor, sequence, pipeline (1F1B, interleaved,
uneven), context, expert and data parallelism.

    torchrun --nproc-per-node 8 workloads/megatron_gpt.py --tensor-model-parallel-size 2 \\
        --pipeline-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 32

Options are named as in Megatron-LM. The layers are megatron-core's own ("local") implementation, which
needs neither Transformer Engine nor Apex; the norms that know of sequence parallelism and the attention
over a sequence that several ranks share are here, since megatron-core takes them from those packages.
"""

import argparse
import os
from collections.abc import Iterator
from functools import partial

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron orders communication before compute

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import add_language_model_options, host_tensor, log
from megatron.core import parallel_state as mpu
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

# The router of megatron-core 0.16.1 looks for it also where Transformer Engine is absent.
moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)

PARAMETER_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("gpt", "llama"))
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--virtual-pipeline-model-parallel-size", type=int, default=1, help="stages per rank")
    parser.add_argument(
        "--pipeline-model-parallel-layout",
        help="layers of each stage, e.g. 'Et|tt|tt|tttL' for 1, 2, 2 and 3",
    )
    parser.add_argument("--context-parallel-size", type=int, default=1)
    parser.add_argument("--expert-model-parallel-size", type=int, default=1)
    parser.add_argument("--num-experts", type=int, default=None, help="of each mixture of experts")
    parser.add_argument("--moe-router-topk", type=int, default=2)
    parser.add_argument(
        "--moe-layer-freq", type=int, default=1, help="every n-th layer has experts, from the first"
    )
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--use-distributed-optimizer", action="store_true")
    parser.add_argument("--overlap-grad-reduce", action="store_true")
    parser.add_argument("--overlap-param-gather", action="store_true")
    parser.add_argument("--attention-dropout", type=float, default=0.0)
    parser.add_argument("--hidden-dropout", type=float, default=0.0)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--check-for-nan-in-loss-and-grad", action="store_true")
    return parser.parse_args()


class TorchNorm(nn.Module):
    """torch's LayerNorm or RMSNorm; marks its parameters so that Megatron sums their gradients over the
    ranks that share a sequence."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> nn.Module:  # type: ignore[misc]
        norm_type = nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm
        norm = norm_type(hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


class ContextParallelAttention(nn.Module):
    """Causal attention of the part of a sequence that this rank holds: keys and values are gathered from the
    ranks that share it, as in Llama 3 (Grattafiori et al. 2024, section 3.3.2).

    Of 2 n chunks, rank r of n holds numbers r and 2 n - 1 - r, which gives each the same work.
    """

    def __init__(self, config: TransformerConfig, pg_collection: ProcessGroupCollection, **_: object):
        super().__init__()
        self.group = pg_collection.cp
        self.dropout = config.attention_dropout

    def gather(self, x: Tensor) -> Tensor:
        """The whole sequence, [S, B, H, E], in its order."""
        num_ranks = self.group.size()
        chunks = gather_from_sequence_parallel_region(x, group=self.group).chunk(2 * num_ranks)
        return torch.cat([*chunks[::2], *chunks[::-2]])

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        key, value = (self.gather(x).permute(1, 2, 0, 3) for x in (key, value))  # [B, H, S, E]
        num_ranks, rank = self.group.size(), self.group.rank()
        outputs = []
        for number, chunk in zip((rank, 2 * num_ranks - 1 - rank), query.chunk(2), strict=True):
            length = len(chunk)
            end = (number + 1) * length
            attended = F.scaled_dot_product_attention(
                chunk.permute(1, 2, 0, 3),
                key[:, :, :end],
                value[:, :, :end],
                attn_mask=causal_lower_right(length, end),
                dropout_p=self.dropout if self.training else 0.0,
                enable_gqa=query.shape[2] != key.shape[1],
            )
            outputs.append(attended.permute(2, 0, 1, 3))
        return torch.cat(outputs).flatten(2)


def transformer_config(args: argparse.Namespace) -> TransformerConfig:
    is_llama = args.family == "llama"
    is_interleaved = args.virtual_pipeline_model_parallel_size > 1
    dtype = PARAMETER_DTYPES[args.precision]
    recompute = {
        "none": {},
        "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
        "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    }[args.recompute]
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        attention_dropout=args.attention_dropout,
        hidden_dropout=args.hidden_dropout,
        normalization="RMSNorm" if is_llama else "LayerNorm",
        activation_func=F.silu if is_llama else F.gelu,
        gated_linear_unit=is_llama,
        add_bias_linear=not is_llama,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size
        if is_interleaved
        else None,
        pipeline_model_parallel_layout=args.pipeline_model_parallel_layout,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        num_moe_experts=args.num_experts,
        moe_router_topk=args.moe_router_topk,
        moe_layer_freq=args.moe_layer_freq,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=1e-2,
        moe_token_dispatcher_type="alltoall",
        sequence_parallel=args.sequence_parallel,
        overlap_p2p_comm=is_interleaved,
        batch_p2p_comm=not is_interleaved,
        deallocate_pipeline_outputs=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=args.precision == "bf16",
        fp16=args.precision == "fp16",
        **recompute,
    )


def block_spec(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of one pipeline stage, with norms that know of sequence parallelism."""
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = TorchNorm
        layer.submodules.pre_mlp_layernorm = TorchNorm
        if config.context_parallel_size > 1:
            layer.submodules.self_attention.submodules.core_attention = ContextParallelAttention
    block.layer_norm = TorchNorm
    return block


def build_chunk(args: argparse.Namespace, config: TransformerConfig, vp_stage: int | None) -> nn.Module:
    """The part of the model that is one (virtual) pipeline stage of this rank."""
    stage = {} if vp_stage is None else {"ignore_virtual": False, "vp_stage": vp_stage}
    model = GPTModel(
        config=config,
        transformer_layer_spec=block_spec(config, vp_stage),
        vocab_size=args.vocab_size,
        max_sequence_length=args.seq_length,
        pre_process=mpu.is_pipeline_first_stage(**stage),
        post_process=mpu.is_pipeline_last_stage(**stage),
        share_embeddings_and_output_weights=args.family == "gpt",
        position_embedding_type="learned_absolute" if args.family == "gpt" else "rope",
        vp_stage=vp_stage,
    )
    model.model_type = ModelType.encoder_or_decoder
    model.cuda()
    return model if args.precision == "fp32" else Float16Module(config, model)


def build_model(args: argparse.Namespace, config: TransformerConfig) -> list[DistributedDataParallel]:
    num_chunks = args.virtual_pipeline_model_parallel_size
    stages = list(range(num_chunks)) if num_chunks > 1 else [None]
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=args.precision == "bf16",
        overlap_grad_reduce=args.overlap_grad_reduce,
        overlap_param_gather=args.overlap_param_gather,
        use_distributed_optimizer=args.use_distributed_optimizer,
        check_for_nan_in_grad=args.check_for_nan_in_loss_and_grad,
    )
    chunks = [
        DistributedDataParallel(
            config, ddp_config, build_chunk(args, config, vp_stage), disable_bucketing=number > 0
        )
        for number, vp_stage in enumerate(stages)
    ]
    config.no_sync_func = [chunk.no_sync for chunk in chunks] if num_chunks > 1 else chunks[0].no_sync
    config.finalize_model_grads_func = finalize_model_grads
    return chunks


def build_optimizer(args: argparse.Namespace, chunks: list[DistributedDataParallel]) -> MegatronOptimizer:
    return get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1.5e-4,
            weight_decay=0.1,
            adam_beta1=0.9,
            adam_beta2=0.95,
            clip_grad=args.clip_grad,
            bf16=args.precision == "bf16",
            fp16=args.precision == "fp16",
            params_dtype=PARAMETER_DTYPES[args.precision],
            use_distributed_optimizer=args.use_distributed_optimizer,
            overlap_param_gather=args.overlap_param_gather,
        ),
        chunks,
        use_gloo_process_groups=False,
    )


def token_batches(args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """Random token ids, their successors and positions: read by the first rank of a tensor-parallel group,
    which sends them to the others. Of each sequence a rank takes its share of the context-parallel group."""
    generator = torch.Generator().manual_seed(1234 + mpu.get_data_parallel_rank())
    shape = (args.micro_batch_size, args.seq_length + 1)
    while True:
        if mpu.get_tensor_model_parallel_rank() == 0:
            tokens = host_tensor(torch.randint(args.vocab_size, shape, generator=generator), device)
            tokens = tokens.to(device, non_blocking=True)
        else:
            tokens = torch.empty(shape, dtype=torch.int64, device=device)
        if args.tensor_model_parallel_size > 1:
            source = mpu.get_tensor_model_parallel_src_rank()
            dist.broadcast(tokens, source, group=mpu.get_tensor_model_parallel_group())
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        positions = torch.arange(args.seq_length, device=device).repeat(args.micro_batch_size, 1)
        yield get_batch_on_this_cp_rank({"tokens": inputs, "labels": labels, "positions": positions})


def loss_function(args: argparse.Namespace, token_losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = token_losses.float().mean()
    if args.check_for_nan_in_loss_and_grad and torch.isnan(loss):
        raise RuntimeError(f"rank {dist.get_rank()}: the loss is not a number")
    # The schedule multiplies by the ranks that share a sequence: it takes each one's part of a sum.
    return loss / args.context_parallel_size, {"loss": loss.detach()}


def forward_step(
    args: argparse.Namespace, batches: Iterator[dict[str, Tensor]] | None, model: nn.Module
) -> tuple[Tensor, partial[tuple[Tensor, dict[str, Tensor]]]]:
    """One micro-batch through one stage; only the first and the last stage look at the data."""
    batch: dict[str, Tensor | None] = {"tokens": None, "labels": None, "positions": None}
    if batches is not None:
        batch |= next(batches)
    output = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])
    return output, partial(loss_function, args)


def main() -> None:
    args = parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    num_chunks = args.virtual_pipeline_model_parallel_size
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=num_chunks if num_chunks > 1 else None,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(1234)

    num_replicas = mpu.get_data_parallel_world_size()
    global_batch_size = args.global_batch_size or args.micro_batch_size * num_replicas
    num_micro_batches, rest = divmod(global_batch_size, args.micro_batch_size * num_replicas)
    if rest or not num_micro_batches:
        raise SystemExit(
            f"--global-batch-size {global_batch_size} is not a multiple of --micro-batch-size "
            f"{args.micro_batch_size} x {num_replicas} replicas"
        )

    config = transformer_config(args)
    chunks = build_model(args, config)
    optimizer = build_optimizer(args, chunks)
    config.grad_scale_func = optimizer.scale_loss
    forward_backward = get_forward_backward_func()
    needs_data = mpu.is_pipeline_first_stage() or mpu.is_pipeline_last_stage()
    batches = [token_batches(args, device) if needs_data else None for _ in chunks]
    for step in range(args.train_iters):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=partial(forward_step, args),
            data_iterator=batches if num_chunks > 1 else batches[0],
            model=chunks if num_chunks > 1 else chunks[0],
            num_microbatches=num_micro_batches,
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            forward_only=False,
        )
        optimizer.step()
        if losses:
            loss = torch.stack([entry["loss"] for entry in losses]).mean()
            log(step, loss, args, optimizer.get_loss_scale().item() if args.precision == "fp16" else None)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
