"""The fused CPU runner behind the scheduler's interface: right logits for every architecture, and no surprise in a step."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as QuantizationType

from engine.config import EngineConfig, SchedulerConfig
from engine.cpu_runner import CpuRunner, build_step_input, fused_runner_reason
from engine.errors import ConfigError, ModelLoadError
from engine.loader.model import open_model
from engine.outputs import BlockCopy, SampleRequest, ScheduledSequence, SchedulerOutput
from engine.rope_scaling import RopeScaling
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from kernels.cpu.fused.features import INSTRUCTION_SETS
from kernels.cpu.fused.packing import from_float, from_float_4, to_float
from tests.engine.loader.gguf_files import WIDE, write_gguf
from tests.engine.models.tiny import (
    VOCAB_SIZE,
    load_ours,
    make_reference,
    paged_logits,
    reference_logits,
)
from tests.kernels.fused_reference import needs_fused_cpu

FEATURES = frozenset(INSTRUCTION_SETS["avx512"])
TOKENS = np.random.default_rng(3).integers(0, VOCAB_SIZE, 50).tolist()
GREEDY = SamplingParams(temperature=0.0)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-no-gqa": ("llama", {"num_key_value_heads": 3}),
    "mistral-wide-heads": ("mistral", {"num_attention_heads": 4, "head_dim": 128}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


def config(path: Path, **changes: Any) -> EngineConfig:
    options: dict[str, Any] = {"num_blocks": 24, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    return EngineConfig(model_path=path, model_name="tiny", **(options | changes))


def load(path: Path, **changes: Any) -> CpuRunner:
    return CpuRunner.load(config(path, **changes), lambda stage, share: None)


def run_of(
    tokens: Sequence[int],
    start: int,
    blocks: Sequence[int],
    seq_ids: Sequence[int] = (0,),
    **params: Any,
) -> ScheduledSequence:
    """Tokens of one sequence; one sample for each of `seq_ids`."""
    samples = tuple(
        SampleRequest(seq_id, replace(GREEDY, **params), None, TOKENS, []) for seq_id in seq_ids
    )
    return ScheduledSequence(seq_ids[0] if seq_ids else 99, tokens, start, blocks, samples)


def execute(
    runner: CpuRunner, *runs: ScheduledSequence, copies: Sequence[BlockCopy] = ()
) -> dict[int, int]:
    plan = SchedulerOutput(runs, tuple(copies), sum(len(run.token_ids) for run in runs))
    return {key: token.token_id for key, token in runner.execute(plan).samples.items()}


def all_logits(runner: CpuRunner, tokens: Sequence[int], blocks: Sequence[int]) -> np.ndarray:
    """Logits at every position, one prefill chunk and then token by token."""
    half = len(tokens) // 2
    rows = []
    for start, end in [(0, half), *((i, i + 1) for i in range(half, len(tokens)))]:
        step = build_step_input([run_of(tokens[start:end], start, blocks, ())])
        wanted = np.arange(end - start, dtype=np.int32)
        for first in range(0, len(wanted), 8):
            part = replace(step, output_rows=wanted[first : first + 8])
            rows.append(runner._model.run(part).copy())
    return np.concatenate(rows)


def cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)


def assert_close(ours: np.ndarray, expected: np.ndarray) -> None:
    """As near as 8-bit inputs of random, strongly mixing layers can be; a wrong row order or bias is far off."""
    similarity = cosines(ours, expected)
    assert similarity.mean() > 0.998
    assert similarity.min() > 0.99


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_reference("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_runner(tiny_folder: Path):
    runner = load(tiny_folder)
    yield runner
    runner.close()


@needs_fused_cpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_folders_give_the_logits_of_transformers(variant: str, tmp_path: Path) -> None:
    model_type, changes = VARIANTS[variant]
    reference = make_reference(model_type, **changes)
    reference.save_pretrained(tmp_path)
    runner = load(tmp_path)
    expected = reference_logits(reference, TOKENS).numpy()
    assert_close(all_logits(runner, TOKENS, [7, 0, 23, 2]), expected)
    assert "rounded to 8 bits" in runner.info.quantization
    runner.close()


@needs_fused_cpu
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16"])
def test_gguf_files_give_the_logits_of_the_exact_runner(kind: str, tmp_path: Path) -> None:
    reference = make_reference("llama", tie_word_embeddings=True)
    path = write_gguf(tmp_path / "tiny.gguf", reference, QuantizationType[kind])
    runner = load(path)
    expected = paged_logits(load_ours(path), TOKENS).numpy()
    assert_close(all_logits(runner, TOKENS, [7, 0, 23, 2]), expected)
    assert runner.info.quantization.endswith("as in the file") == (kind != "F16")
    runner.close()


@needs_fused_cpu
def test_q4_k_stays_4_bits(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "wide.gguf", make_reference("llama", **WIDE), QuantizationType.Q4_K
    )
    runner = load(path)
    expected = paged_logits(load_ours(path), TOKENS).numpy()
    assert_close(all_logits(runner, TOKENS, [7, 0, 23, 2]), expected)
    assert re.fullmatch(
        r"5\.\d bits, as in the file, relative error 0\.0\d%", runner.info.quantization
    )
    runner.close()


@needs_fused_cpu
def test_int4_is_4_bits_for_the_layers_and_8_for_embedding_and_head(tmp_path: Path) -> None:
    reference = make_reference("llama", tie_word_embeddings=False)
    reference.save_pretrained(tmp_path)
    runner = load(tmp_path, quantization="int4")
    for name, parameter in reference.named_parameters():
        if parameter.ndim == 2:
            convert = from_float_4 if "layers" in name else from_float
            parameter.data = torch.from_numpy(to_float(convert(parameter.detach().numpy())))
    expected = reference_logits(reference, TOKENS).numpy()
    assert_close(all_logits(runner, TOKENS, [7, 0, 23, 2]), expected)
    assert re.fullmatch(
        r"\d\.\d bits, \d+% rounded to 4 bits, \d+% rounded to 8 bits, relative error \d\.\d\d%",
        runner.info.quantization,
    )
    runner.close()


@needs_fused_cpu
@pytest.mark.parametrize(
    ("kind", "description"),
    [
        ("Q4_1", "rounded to 8 bits, relative error"),
        ("Q5_0", "as in the file"),
        ("Q8_0", "as in the file"),
    ],
)
def test_int8_is_8_bits_for_all_matrices(kind: str, description: str, tmp_path: Path) -> None:
    """A matrix of 4 bits is rounded to 8, what 8 bits hold stays as it is; 8 bits and half a scale are 8.5."""
    reference = make_reference("llama", tie_word_embeddings=True)
    path = write_gguf(tmp_path / "tiny.gguf", reference, QuantizationType[kind])
    runner = load(path, quantization="int8")
    expected = paged_logits(load_ours(path), TOKENS).numpy()
    assert_close(all_logits(runner, TOKENS, [7, 0, 23, 2]), expected)
    assert runner.info.quantization.startswith("8.5 bits, ")
    assert description in runner.info.quantization
    runner.close()


@needs_fused_cpu
@pytest.mark.model
def test_the_builtin_model_agrees_with_the_exact_runner(builtin_model_path: Path) -> None:
    """Teacher-forced, against float32 on the same weights; what 8-bit activations cost is stated, not hidden."""
    tokens = open_text_tokens(builtin_model_path)
    runner = load(builtin_model_path, max_model_len=256)
    ours = all_logits(runner, tokens, list(range(23, 18, -1)))
    runner.close()
    exact = paged_logits(load_ours(builtin_model_path, "cpu", max_model_len=256), tokens).numpy()
    similarity = cosines(ours, exact)
    assert similarity.mean() > 0.9994
    assert similarity.min() > 0.99
    assert (ours.argmax(1) == exact.argmax(1)).mean() >= 0.9


@needs_fused_cpu
@pytest.mark.model
def test_the_builtin_model_says_the_same_behind_part_of_a_cached_block(
    builtin_model_path: Path,
) -> None:
    """A prompt that leaves a cached one inside a block or at its edge; tokens and their log-probabilities, bit for bit."""
    tokens = open_text_tokens(builtin_model_path)
    runner = load(builtin_model_path, max_model_len=256)
    for position in (1, 2, 7, 15, 16, 17, 24, 31, 32, 33):
        prompt = [*tokens[:position], *tokens[20:26]]
        hot, cold = Scheduler(runner.scheduler_config), Scheduler(without_cache(runner))
        draw_all(hot, runner, tokens[:36])
        num_known = hot.view.stats().counters.prefix_hits
        ours, theirs = draw_all(hot, runner, prompt), draw_all(cold, runner, prompt)
        assert hot.view.stats().counters.prefix_hits - num_known >= min(position, 32)
        assert ours == theirs
    runner.close()


def without_cache(runner: CpuRunner) -> SchedulerConfig:
    return replace(runner.scheduler_config, enable_prefix_caching=False)


def draw_all(scheduler: Scheduler, runner: CpuRunner, prompt: list[int]) -> list[Any]:
    """Three greedy tokens with their log-probabilities."""
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
    scheduler.add_request(Request(0, prompt, params, 0.0))
    drawn = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        drawn += scheduler.update(plan, runner.execute(plan))
    return [output.sampled for output in drawn if output.sampled]


def open_text_tokens(path: Path) -> list[int]:
    from engine.loader.tokenizer import load_tokenizer

    text = (
        "The keeper of the lighthouse climbed the stairs every evening, lit the lamp, and wrote the weather "
        "in a large book: wind from the west, rain before midnight, two ships seen at the horizon."
    )
    return list(load_tokenizer(path).encode(text))


@needs_fused_cpu
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_rope_scaling_stretches_the_context_as_transformers_does(kind: str, tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    scaling = RopeScaling(rope_type=kind, factor=2.5)
    runner = load(tmp_path, rope_scaling=scaling, max_num_batched_tokens=256)
    assert runner.info.max_model_len == 320
    tokens = np.random.default_rng(5).integers(0, VOCAB_SIZE, 300).tolist()
    parameters = {"rope_theta": 1e4, "original_max_position_embeddings": 128, **scaling.parameters}
    reference = make_reference("llama", rope_parameters=parameters)
    # Dynamic NTK is computed for the longest text there can be, transformers' for the one it sees.
    expected = reference_logits(reference, tokens + tokens[:20])[:300].numpy()
    ours = all_logits(runner, tokens, list(range(23, 4, -1)))
    runner.close()
    assert cosines(ours, expected).min() > 0.98, "without scaling the mean is 0.3"


@needs_fused_cpu
def test_a_step_samples_where_it_is_asked_to(tiny_runner: CpuRunner) -> None:
    """A chunk that ends inside its prompt, a decode, and a prompt that forks into three: all in one step."""
    execute(tiny_runner, run_of(TOKENS[:20], 0, [3, 4], ()))
    (alone,) = execute(tiny_runner, run_of(TOKENS[20:21], 20, [3, 4])).values()
    runs = [
        run_of(TOKENS[:7], 0, [9], ()),
        run_of(TOKENS[20:21], 20, [3, 4], (5,)),
        run_of(TOKENS[:21], 0, [11, 12], (6, 7, 8)),
    ]
    assert execute(tiny_runner, *runs) == {5: alone, 6: alone, 7: alone, 8: alone}


@needs_fused_cpu
def test_block_copies_come_before_the_tokens(tiny_runner: CpuRunner) -> None:
    execute(tiny_runner, run_of(TOKENS[:20], 0, [3, 4], ()))
    expected = execute(tiny_runner, run_of(TOKENS[20:22], 20, [3, 4]))
    execute(tiny_runner, run_of(TOKENS[30:50], 0, [5, 6], ()))
    copied = run_of(TOKENS[21:22], 21, [3, 6])
    assert execute(tiny_runner, copied, copies=[BlockCopy(4, 6)]) == expected


@needs_fused_cpu
def test_a_step_without_samples_gives_none(tiny_runner: CpuRunner) -> None:
    assert execute(tiny_runner, run_of(TOKENS[:20], 0, [3, 4], ())) == {}


@needs_fused_cpu
def test_logits_are_lent_not_copied_and_survive_sampling(tiny_runner: CpuRunner) -> None:
    step = build_step_input([run_of(TOKENS[:20], 0, [3, 4])])
    before = tiny_runner._model.run(step).copy()
    execute(tiny_runner, run_of(TOKENS[:20], 0, [3, 4], temperature=1.0, top_p=0.5, logprobs=3))
    np.testing.assert_array_equal(tiny_runner._model.run(step), before)


@needs_fused_cpu
def test_what_the_model_is_and_how_it_is_served(tiny_runner: CpuRunner) -> None:
    info, limits = tiny_runner.info, tiny_runner.scheduler_config
    assert (info.attention_backend, info.device, info.kv_cache_dtype) == ("cpu", "cpu", "bfloat16")
    assert (info.num_blocks, info.block_size, info.vocab_size) == (24, 16, VOCAB_SIZE)
    assert info.bytes_per_block == limits.bytes_per_token * 16 == tiny_runner._model.kv[:, 0].nbytes
    assert limits.max_model_len == 128
    assert info.load_seconds > 0


@needs_fused_cpu
def test_a_pool_of_8_bits_takes_half_and_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    reference = make_reference("llama")
    reference.save_pretrained(tmp_path)
    runner = load(tmp_path, kv_cache_dtype="int8")
    assert runner.info.kv_cache_dtype == "int8"
    assert runner.info.bytes_per_block == 3 * 16 * (64 + 2) * 2
    assert runner.info.bytes_per_block == runner._model.kv[:, 0].nbytes
    expected = reference_logits(reference, TOKENS).numpy()
    assert_close(all_logits(runner, TOKENS, [7, 0, 23, 2]), expected)
    execute(runner, run_of(TOKENS[:20], 0, [3, 4], ()))
    there = execute(runner, run_of(TOKENS[20:22], 20, [3, 4]))
    copied = run_of(TOKENS[20:22], 20, [3, 6])
    assert execute(runner, copied, copies=[BlockCopy(4, 6)]) == there
    runner.close()


@needs_fused_cpu
def test_loading_reports_progress(tiny_folder: Path) -> None:
    told: list[tuple[str, float | None]] = []
    CpuRunner.load(config(tiny_folder), lambda stage, share: told.append((stage, share))).close()
    assert told[0] == ("opening the model", None)
    assert [share for stage, share in told if stage == "loading weights"] == [1 / 3, 2 / 3, 1]
    assert told[-1] == ("warming up", None)


@needs_fused_cpu
def test_too_long_a_context_is_refused(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match="--max-model-len: 129 is not allowed; at most 128"):
        load(tiny_folder, max_model_len=129)


@needs_fused_cpu
def test_weights_that_are_not_numbers_are_refused_by_name(tmp_path: Path) -> None:
    reference = make_reference("llama")
    with torch.no_grad():
        reference.model.layers[1].mlp.down_proj.weight[3, 5] = float("nan")
    reference.save_pretrained(tmp_path)
    with pytest.raises(
        ModelLoadError, match=r"layers\.1\.mlp\.down_proj\.weight: a weight is not a finite"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"attention_backend": "cpu", "kv_cache_dtype": "bfloat16"}, None),
        ({"block_size": 64, "kv_cache_dtype": "int8"}, None),
        ({"dtype": "float32"}, "--dtype float32 was asked for"),
        ({"attention_backend": "reference"}, "--attention-backend reference was asked for"),
        ({"kv_cache_dtype": "float32"}, "--kv-cache-dtype float32 was asked for"),
        ({"quantization": "none"}, "--quantization none was asked for"),
        ({"quantization": "int8", "cpu_isa": "avx512"}, None),
        ({"cpu_isa": "torch"}, "--cpu-isa torch was asked for"),
        ({"block_size": 24}, "block size 24 is not a multiple of 16; --block-size 16 is one"),
    ],
)
def test_options_decide_whether_it_runs(
    tiny_folder: Path, options: dict[str, Any], reason: str | None
) -> None:
    model = open_model(tiny_folder).config
    assert fused_runner_reason(config(tiny_folder, **options), model, FEATURES) == reason


def test_model_and_processor_decide_whether_it_runs(tiny_folder: Path) -> None:
    model, options = open_model(tiny_folder).config, config(tiny_folder)
    wanted, old = config(tiny_folder, cpu_isa="avx512"), FEATURES - {"avx512bf16", "avx512vnni"}
    assert fused_runner_reason(wanted, model, old) == "this CPU lacks avx512vnni, avx512bf16"
    assert fused_runner_reason(options, model, old) == "this CPU lacks avx2, fma"
    assert fused_runner_reason(options, model, old | {"avx2", "fma"}) is None
    for change, reason in (
        ({"output_bias": True}, "the output projection has a bias"),
        ({"mlp_bias": True}, "the MLP has biases"),
        ({"sliding_windows": (None, 100, 120)}, "the context of 128 tokens is longer than a sliding window; --max-model-len 100 fits in one"),
        ({"sliding_windows": (None, None, 128)}, None),
        ({"head_dim": 72}, "head_dim 72 is not a multiple of 16 up to 128"),
    ):  # fmt: skip
        assert fused_runner_reason(options, replace(model, **change), FEATURES) == reason


def test_forcing_it_where_it_cannot_run_says_why(tiny_folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be used: --dtype float32 was asked for"):
        load(tiny_folder, dtype="float32")
