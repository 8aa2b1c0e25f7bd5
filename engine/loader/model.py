"""A model's files opened: its configuration, its stored tensors, and the tokens that end an answer."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.loader.gguf import GGUFTensors, config_from_gguf
from engine.loader.gguf_file import GGUFFile
from engine.loader.safetensors import SafetensorsTensors
from engine.loader.weights import Tensors
from engine.models.config import ModelConfig, parse_config, stretch
from engine.rope_scaling import OPTION

END_OF_TURN = ("<|im_end|>", "<|eot_id|>")  # GGUF files name one end, chats may use another


@dataclass(frozen=True)
class OpenModel:
    """What is known before any weight is read. `identity` differs between models."""

    config: ModelConfig
    tensors: Tensors
    eos_token_ids: frozenset[int]
    identity: str


def open_configured(config: EngineConfig) -> OpenModel:
    """The model that `config` names, with its `rope_scaling`. Raises ModelLoadError, ConfigError."""
    opened, scaling = open_model(config.model_path), config.rope_scaling
    if scaling is None:
        return opened
    if opened.tensors.rope_factors() is not None:
        raise ConfigError(OPTION, scaling.parameters, "this file brings rotary factors of its own")
    identity = f"{opened.identity}:{sorted(scaling.parameters.items())}"
    return replace(opened, config=stretch(opened.config, scaling), identity=identity)


def open_model(path: Path) -> OpenModel:
    """Open a .gguf file or a folder with safetensors. Raises ModelLoadError naming what is missing or not supported."""
    return _open_gguf(path) if path.is_file() else _open_folder(path)


def _open_gguf(path: Path) -> OpenModel:
    file = GGUFFile(path)
    config = parse_config(AutoConfig.for_model(**config_from_gguf(file)))
    return OpenModel(config, GGUFTensors(file), _gguf_eos(file.metadata), _identity(path))


def _open_folder(path: Path) -> OpenModel:
    try:
        source = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ModelLoadError(f"no usable config.json in {path}: {reason}") from error
    quantization = getattr(source, "quantization_config", None)
    if quantization is not None:
        raise ModelLoadError(f"{path} has a quantization_config, which is not supported; use GGUF")
    config = parse_config(source)
    tensors = SafetensorsTensors(path, tied=config.tie_word_embeddings)
    return OpenModel(config, tensors, _folder_eos(path), _identity(path / "config.json"))


def _gguf_eos(metadata: dict[str, Any]) -> frozenset[int]:
    named = {
        metadata[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if key in metadata
    }
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    return frozenset(named | {tokens.index(text) for text in END_OF_TURN if text in tokens})


def _folder_eos(path: Path) -> frozenset[int]:
    """Ends named by generation_config.json, else by config.json, and the tokenizer's."""
    named = _json(path / "generation_config.json").get("eos_token_id")
    if named is None:
        named = _json(path / "config.json").get("eos_token_id")
    ids: set[int] = set(named if isinstance(named, list) else [] if named is None else [named])
    tokenizer = _json(path / "tokenizer_config.json")
    eos = tokenizer.get("eos_token")
    text = eos.get("content") if isinstance(eos, dict) else eos
    added = _json(path / "tokenizer.json").get("added_tokens", [])
    return frozenset(ids | {token["id"] for token in added if token["content"] == text})


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error


def _identity(path: Path) -> str:
    stat = path.stat()
    return f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
