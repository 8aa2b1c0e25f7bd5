"""The real model, as the worker thread loads it: its libraries are imported there too, as that takes seconds."""

from engine.config import EngineConfig
from engine.least_room import check_options, check_pool, least_tokens
from engine.worker import LoadedModel, Progress


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """`progress` is told the stage and its share, if it knows one. Raises ConfigError, ModelLoadError."""
    progress("loading libraries", None)
    from engine.loader.tokenizer import load_tokenizer
    from engine.runners import load_runner
    from engine.tokenizer import Tokenizer

    progress("reading the tokenizer", None)
    tokenizer = Tokenizer(load_tokenizer(config.model_path))
    least = least_tokens(tokenizer)
    check_options(config, least)
    runner = load_runner(config, progress)
    check_pool(config, runner.scheduler_config, least, runner.info.num_blocks_reason)
    return LoadedModel(runner, tokenizer)
