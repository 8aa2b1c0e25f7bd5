"""What start-up computes from the options and the model: the limits that the scheduler works with."""

from engine.config import EngineConfig, SchedulerConfig
from engine.errors import ConfigError
from engine.kv_cache import KVCacheSize
from engine.loader.model import OpenModel
from engine.models.config import ModelConfig


def resolve_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """`--max-model-len`, else the model's context. Raises ConfigError when it is longer than that."""
    if config.max_model_len is None:
        return model.max_position_embeddings
    if config.max_model_len > model.max_position_embeddings:
        raise ConfigError(
            "--max-model-len",
            config.max_model_len,
            f"at most {model.max_position_embeddings}, the longest context of this model",
        )
    return config.max_model_len


def make_scheduler_config(
    config: EngineConfig,
    opened: OpenModel,
    size: KVCacheSize,
    max_model_len: int,
    num_speculative_tokens: int,
) -> SchedulerConfig:
    """The scheduler's limits for a pool of `size`; `num_speculative_tokens` is what suits the runner best."""
    return SchedulerConfig(
        block_size=config.block_size,
        num_blocks=size.num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        scheduling_policy=config.scheduling_policy,
        model_identity=opened.identity,
        eos_token_ids=opened.eos_token_ids,
        bytes_per_token=size.bytes_per_block // config.block_size,
        num_speculative_tokens=(
            num_speculative_tokens
            if config.num_speculative_tokens is None
            else config.num_speculative_tokens
        ),
    )
