"""Runners of a tiny model made from nothing: what they are loaded with."""

from pathlib import Path

from engine.config import EngineConfig

QUIET = {"progress": lambda stage, share: None}


def config(path: Path, **changes: object) -> EngineConfig:
    options = {"num_blocks": 24, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    return EngineConfig(model_path=path, model_name="tiny", **(options | changes))  # type: ignore[arg-type]
