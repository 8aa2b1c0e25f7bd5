"""The least memory an engine is of use with: what the shortest chat takes, and a token of its answer.

A pool or a context below it would start, and refuse everything. How much that is only the model's own template and vocabulary
can tell.
"""

from engine.config import ByteSize, EngineConfig, SchedulerConfig
from engine.errors import ConfigError, ModelLoadError, RequestError
from engine.worker import Codec

SHORTEST_CHAT = ({"role": "user", "content": "a"},)


def least_tokens(tokenizer: Codec) -> int:
    """Tokens that the shortest chat takes with a token of its answer; 2 where the template refuses such a chat."""
    try:
        return len(tokenizer.render_chat(SHORTEST_CHAT)) + 1
    except RequestError:
        return 2


def check_options(config: EngineConfig, least: int) -> None:
    """Raise ConfigError for an option that leaves less room than `least` tokens, before anything is loaded."""
    why = f"the shortest chat with this model takes {least} tokens"
    if config.max_model_len is not None and config.max_model_len < least:
        raise ConfigError("--max-model-len", config.max_model_len, f"at least {least}: {why}")
    num_blocks = _least_blocks(least, config.block_size)
    if config.num_blocks is not None and config.num_blocks < num_blocks:
        allowed = f"at least {num_blocks} of --block-size {config.block_size}: {why}"
        raise ConfigError("--num-blocks", config.num_blocks, allowed)


def check_pool(options: EngineConfig, config: SchedulerConfig, least: int, reason: str) -> None:
    """Refuse a pool whose memory holds less than `least` tokens; `reason` says how its size came about.

    Raises ConfigError where the memory was asked for, ModelLoadError where there is no more.
    """
    num_blocks = _least_blocks(least, config.block_size)
    if config.num_blocks < num_blocks:
        num_bytes = ByteSize(num_blocks * config.block_size * config.bytes_per_token)
        if options.kv_cache_memory is not None:
            allowed = (
                f"at least {num_bytes}: the shortest chat with this model takes {least} tokens"
            )
            raise ConfigError("--kv-cache-memory", ByteSize(options.kv_cache_memory), allowed)
        raise ModelLoadError(
            f"the KV pool holds {config.num_blocks * config.block_size} tokens ({reason}); the shortest chat with this model "
            f"takes {least}: at least --kv-cache-memory {num_bytes}, or --num-blocks {num_blocks}, is needed"
        )


def _least_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
