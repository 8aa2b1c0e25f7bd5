"""Fixtures of the engine's tests: a small KV cache, small tokenizers, tiny runners. What is heavy is imported when it is asked for."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.kv_cache_manager import KVCacheManager
from tests.fakes import make_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from engine.cpu_runner import CpuRunner
    from engine.model_runner import ModelRunner
    from engine.tokenizer import Tokenizer


@pytest.fixture
def kv() -> KVCacheManager:
    """Ten blocks of four tokens."""
    return KVCacheManager(make_config())


@pytest.fixture(scope="module")
def hub() -> "PreTrainedTokenizerFast":
    """A byte-level vocabulary with a chat template."""
    from tests.engine.vocabularies import byte_level

    return byte_level()


@pytest.fixture(scope="module")
def tokenizer(hub: "PreTrainedTokenizerFast") -> "Tokenizer":
    from engine.tokenizer import Tokenizer

    return Tokenizer(hub)


@pytest.fixture(scope="session")
def builtin_hub(builtin_model_path: Path) -> "PreTrainedTokenizerFast":
    from engine.loader.tokenizer import load_tokenizer

    return load_tokenizer(builtin_model_path)


@pytest.fixture(scope="session")
def builtin(builtin_hub: "PreTrainedTokenizerFast") -> "Tokenizer":
    from engine.tokenizer import Tokenizer

    return Tokenizer(builtin_hub)


@pytest.fixture(scope="module")
def reference() -> "PreTrainedModel":
    """A tiny model made from nothing."""
    from tests.engine.models.tiny import make_reference

    return make_reference("llama")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, reference: "PreTrainedModel") -> Path:
    path = tmp_path_factory.mktemp("tiny")
    reference.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def exact(folder: Path) -> "ModelRunner":
    from engine.model_runner import ModelRunner
    from tests.engine.tiny_runners import QUIET, config

    return ModelRunner.load(config(folder, dtype="float32", block_size=4), **QUIET)


@pytest.fixture(scope="module")
def fused(folder: Path) -> Iterator["CpuRunner"]:
    from engine.cpu_runner import CpuRunner
    from tests.engine.tiny_runners import QUIET, config

    runner = CpuRunner.load(config(folder), **QUIET)
    yield runner
    runner.close()
