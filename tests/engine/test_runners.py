"""Which runner is chosen and why, and what is refused when the fused one cannot serve."""

import logging
from pathlib import Path
from typing import Any

import pytest

from engine import cpu_runner, runners
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.model_runner import ModelRunner
from kernels.cpu.fused.features import INSTRUCTION_SETS, num_physical_cores
from tests.engine.models.tiny import make_reference
from tests.kernels.fused_reference import needs_fused_cpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_reference("llama").save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def load(path: Path, **options: Any) -> CpuRunner | ModelRunner:
    sizes: dict[str, Any] = {"num_blocks": 24, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    config = EngineConfig(model_path=path, model_name="tiny", **(sizes | options))
    return runners.load_runner(config, lambda stage, share: None)


def pretend_features(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    monkeypatch.setattr(runners, "cpu_features", lambda: frozenset(features))


@needs_fused_cpu
@pytest.mark.parametrize(
    ("isa", "why"), [("auto", ""), ("avx512", ": --cpu-isa avx512 was asked for")]
)
def test_the_fused_runner_serves_where_it_can_and_is_logged(
    folder: Path, isa: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "engine.cpu_runner")
    runner = load(folder, cpu_isa=isa)
    assert isinstance(runner, CpuRunner)
    runner.close()
    line = f"the fused CPU runner computes the steps: one compiled step on {num_physical_cores()} cores with AVX-512 VNNI and BF16{why}"
    assert caplog.messages[0] == line


def test_an_instruction_set_that_is_not_the_fastest_has_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_runner, "cpu_features", lambda: frozenset(INSTRUCTION_SETS["avx2"]))
    config = EngineConfig(model_path=Path("nowhere"), model_name="none")
    why = cpu_runner._why(config)
    assert why.startswith(": this CPU lacks avx512f, ")
    assert why.endswith(" for AVX-512 VNNI and BF16")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cpu_isa": "torch"}, "--cpu-isa torch was asked for"),
        ({"quantization": "none"}, "--quantization none was asked for"),
        ({"block_size": 8}, "block size 8 is not a multiple of 16; --block-size 16 is one"),
    ],
)
def test_the_torch_runner_serves_with_its_reason_in_the_log(
    folder: Path,
    options: dict[str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pretend_features(monkeypatch, *INSTRUCTION_SETS["avx512"])
    caplog.set_level(logging.INFO, "engine.runners")
    assert isinstance(load(folder, **options), ModelRunner)
    assert caplog.messages == [f"the torch runner computes the steps: {reason}"]


def test_a_window_shorter_than_the_context_needs_the_torch_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_reference("mistral", sliding_window=40).save_pretrained(tmp_path)
    pretend_features(monkeypatch, *INSTRUCTION_SETS["avx512"])
    caplog.set_level(logging.INFO, "engine.runners")
    runner = load(tmp_path)
    assert isinstance(runner, ModelRunner)
    assert runner.info.max_model_len == 128
    assert caplog.messages == [
        "the torch runner computes the steps: the context of 128 tokens is longer than a sliding window; "
        "--max-model-len 40 fits in one"
    ]


@needs_fused_cpu
def test_a_context_of_one_window_stays_with_the_fused_runner(tmp_path: Path) -> None:
    make_reference("mistral", sliding_window=40).save_pretrained(tmp_path)
    runner = load(tmp_path, max_model_len=40)
    assert isinstance(runner, CpuRunner)
    runner.close()


def test_an_older_processor_falls_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend_features(monkeypatch, "avx2", "f16c", "avx512f")
    caplog.set_level(logging.INFO, "engine.runners")
    assert isinstance(load(folder), ModelRunner)
    assert caplog.messages == ["the torch runner computes the steps: this CPU lacks fma"]


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"cpu_isa": "avx2"}, "--cpu-isa: 'avx2' is not allowed; auto or torch works here: "),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype: 'int8' is not allowed; auto, float32 or bfloat16 works here: "),
        ({"quantization": "int4"}, "--quantization: 'int4' is not allowed; auto or none (on a GPU int8 and fp8 too) works here: "),
        ({"quantization": "int8"}, "--quantization: 'int8' is not allowed; auto or none works here: "),
    ],
)  # fmt: skip
def test_what_only_the_fused_runner_does_is_refused_without_it(
    folder: Path, options: dict[str, Any], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_features(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        load(folder, **options)
    assert str(caught.value).startswith(refusal + "this CPU lacks avx2")


@pytest.mark.parametrize(
    ("features", "options", "allowed"),
    [
        ((), {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype: 'fp8' is not allowed; auto, float32 or bfloat16"),
        ((), {"quantization": "fp8"}, "--quantization: 'fp8' is not allowed; auto or none"),
        (INSTRUCTION_SETS["avx2"], {"kv_cache_dtype": "fp8"},
         "--kv-cache-dtype: 'fp8' is not allowed; auto, float32, bfloat16 or int8"),
        (INSTRUCTION_SETS["avx2"], {"quantization": "fp8"},
         "--quantization: 'fp8' is not allowed; auto, int8, int4 or none"),
    ],
)  # fmt: skip
def test_what_only_a_gpu_does_is_refused_before_anything_is_loaded(
    features: tuple[str, ...],
    options: dict[str, Any],
    allowed: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.placement.cpu_features", lambda: frozenset(features))
    caplog.set_level(logging.INFO, "engine")
    with pytest.raises(ConfigError) as caught:
        load(Path("nowhere"), **options)
    assert str(caught.value) == f"{allowed} works here: fp8 needs a GPU"
    assert caplog.messages == []


@pytest.mark.parametrize("field", ["kv_cache_dtype", "quantization"])
def test_kernels_that_do_eight_bits_are_enough(folder: Path, field: str) -> None:
    runner = load(folder, attention_backend="reference", **{field: "int8"})
    assert isinstance(runner, ModelRunner)


def test_options_that_contradict_each_other_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_features(monkeypatch, *INSTRUCTION_SETS["avx512"])
    with pytest.raises(ConfigError, match="here: --dtype float32 was asked for"):
        load(folder, cpu_isa="avx512", dtype="float32")
    with pytest.raises(ConfigError, match=r"--quantization.*here: --cpu-isa torch was asked for"):
        load(folder, quantization="int8", cpu_isa="torch")


def test_a_gpu_is_used_before_the_processor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"'avx512' is not allowed.*there is a GPU"):
        load(folder, cpu_isa="avx512")
