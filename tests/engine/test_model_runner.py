"""The torch runner: the built-in model against transformers, steps as the scheduler plans them, and its options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.loader.gguf import config_from_gguf
from engine.loader.gguf_file import GGUFFile
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.outputs import BlockCopy, SampleRequest, ScheduledSequence, SchedulerOutput
from engine.rope_scaling import RopeScaling
from engine.sampling_params import SamplingParams
from tests.engine.loader.gguf_files import read_with_transformers
from tests.engine.models.tiny import (
    VOCAB_SIZE,
    load_ours,
    make_reference,
    paged_logits,
    reference_logits,
)

GREEDY = SamplingParams(temperature=0.0)
TEXT = (
    "The history of tea is long and complex, spreading across multiple cultures over thousands of years. It began "
    "in China, where legend tells of an emperor who found that leaves blown into boiling water made a fine drink. "
    "Later, traders carried it west along the old roads."
)


@pytest.fixture(scope="module")
def tokens(builtin_model_path: Path) -> list[int]:
    return load_tokenizer(builtin_model_path)(TEXT).input_ids[:50]


@pytest.fixture(scope="module")
def expected(builtin_model_path: Path, tokens: list[int]) -> torch.Tensor:
    """transformers' logits in float32 of an independent reading of the same file."""
    fields = config_from_gguf(GGUFFile(builtin_model_path))
    return reference_logits(read_with_transformers(builtin_model_path, fields), tokens)


@pytest.mark.model
def test_float32_equals_transformers_at_every_position(
    builtin_model_path: Path, tokens: list[int], expected: torch.Tensor
) -> None:
    assert len(tokens) == 50
    ours = paged_logits(load_ours(builtin_model_path, "cpu"), tokens)
    assert (ours - expected).abs().max() < 1e-3


@pytest.mark.model
def test_the_default_numbers_are_close_at_every_position(
    builtin_model_path: Path, tokens: list[int], expected: torch.Tensor
) -> None:
    model = load_ours(builtin_model_path, "cpu", dtype=torch.bfloat16, packed=True)
    ours = paged_logits(model, tokens)
    assert torch.cosine_similarity(ours, expected).min() > 0.999
    assert torch.equal(ours.argmax(-1), expected.argmax(-1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    make_reference("llama", eos_token_id=9).save_pretrained(path)
    return path


def load(
    path: Path, stages: list[tuple[str, float | None]] | None = None, **changes: Any
) -> ModelRunner:
    options: dict[str, Any] = {
        "num_blocks": 20,
        "block_size": 4,
        "dtype": "float32",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
    }
    config = EngineConfig(model_path=path, model_name="tiny", **(options | changes))
    return ModelRunner.load(
        config, lambda stage, share: None if stages is None else stages.append((stage, share))
    )


def run(
    seq_id: int,
    token_ids: Sequence[int],
    start: int,
    block_table: Sequence[int],
    num_samples: int = 1,
    params: SamplingParams = GREEDY,
) -> ScheduledSequence:
    """A run of a sequence whose candidates have the ids seq_id, seq_id + 1, ..."""
    samples = tuple(SampleRequest(seq_id + i, params, i, token_ids, ()) for i in range(num_samples))
    return ScheduledSequence(seq_id, token_ids, start, block_table, samples)


def step(
    runner: ModelRunner, *scheduled: ScheduledSequence, copies: Sequence[BlockCopy] = ()
) -> dict[int, int]:
    """The drawn token ids by seq_id."""
    num_tokens = sum(len(sequence.token_ids) for sequence in scheduled)
    output = runner.execute(SchedulerOutput(scheduled, tuple(copies), num_tokens))
    return {seq_id: token.token_id for seq_id, token in output.samples.items()}


def greedy(runner: ModelRunner, prompt: list[int], block_table: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    tokens.append(step(runner, run(0, tokens, 0, block_table))[0])
    while len(tokens) < len(prompt) + count:
        tokens.append(step(runner, run(0, tokens[-1:], len(tokens) - 1, block_table))[0])
    return tokens[len(prompt) :]


def test_greedy_text_equals_transformers(folder: Path) -> None:
    runner = load(folder)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    reference = make_reference("llama", eos_token_id=9)
    tokens = list(prompt)
    for _ in range(12):
        tokens.append(int(reference_logits(reference, tokens)[-1].argmax()))
    assert greedy(runner, prompt, [13, 2, 7, 0, 19], 12) == tokens[len(prompt) :]


def test_a_step_mixes_chunks_decodes_and_rows_that_sample_nothing(folder: Path) -> None:
    runner = load(folder)
    a, b, c = [5, 6, 7], [8, 9, 10, 11, 12, 13], [1, 2]
    alone = {
        1: greedy(runner, a, [1, 2], 2)[1],
        2: greedy(runner, b, [3, 4, 5], 1)[0],
        4: greedy(runner, c, [7], 1)[0],
    }
    first = step(runner, run(1, a, 0, [1, 2]), run(2, b[:2], 0, [3], num_samples=0))
    assert set(first) == {1}
    second = step(
        runner,
        run(2, b[2:], 2, [3, 4]),
        run(3, [15] * 5, 0, [8, 9], num_samples=0),
        run(1, [first[1]], 3, [1, 2]),
        run(4, c, 0, [7]),
    )
    assert second == alone


def test_candidates_draw_from_their_prompts_one_row(folder: Path) -> None:
    runner = load(folder)
    hot = SamplingParams(temperature=2.0)
    drawn = step(
        runner,
        run(1, [5, 6, 7], 0, [1], num_samples=6, params=hot),
        run(10, [8], 0, [2], num_samples=2),
    )
    assert set(drawn) == {1, 2, 3, 4, 5, 6, 10, 11}
    assert len({drawn[i] for i in range(1, 7)}) > 1
    assert drawn[10] == drawn[11] == greedy(runner, [8], [3], 1)[0]
    single = step(runner, run(1, [5, 6, 7], 0, [1], params=hot))
    assert single[1] == drawn[1], "the first candidate is not changed by the others"


def test_blocks_are_copied_before_the_forward_pass(folder: Path) -> None:
    runner = load(folder)
    prompt, block_table = [3, 1, 4, 1, 5, 9], [11, 12]
    expected = greedy(runner, prompt, block_table, 2)
    step(runner, run(0, prompt, 0, [11, 12]))
    copies = [BlockCopy(11, 5), BlockCopy(12, 17)]
    drawn = step(runner, run(0, expected[:1], len(prompt), [5, 17]), copies=copies)
    assert drawn[0] == expected[1]


def test_what_start_up_reports(folder: Path) -> None:
    stages: list[tuple[str, float | None]] = []
    runner = load(folder, stages)
    info, limits = runner.info, runner.scheduler_config
    assert (info.model_name, info.architecture) == ("tiny", "LlamaForCausalLM")
    assert info.num_parameters == make_reference("llama").num_parameters()
    assert (info.dtype, info.kv_cache_dtype, info.quantization) == ("float32", "float32", "none")
    assert (info.device, info.attention_backend) == ("cpu", "cpu")
    assert (info.vocab_size, info.max_model_len, info.num_blocks) == (VOCAB_SIZE, 128, 20)
    assert info.num_blocks_reason == "--num-blocks 20"
    assert info.bytes_per_block == 4 * limits.bytes_per_token == 4 * 2 * 3 * 64 * 4
    assert info.load_seconds > 0
    assert (limits.block_size, limits.num_blocks, limits.max_model_len) == (4, 20, 128)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (8, 64)
    assert limits.eos_token_ids == {9}
    assert limits.model_identity
    names = [stage for stage, _ in stages]
    assert names[0] == "opening the model"
    assert names[-2:] == ["allocating KV memory", "warming up"]
    shares = [share for stage, share in stages if stage == "loading weights"]
    assert shares == [0, 1 / 3, 2 / 3]


@pytest.mark.model
def test_the_built_in_model_stays_packed(builtin_model_path: Path) -> None:
    runner = load(builtin_model_path, dtype="auto", max_model_len=64, block_size=16)
    assert runner.info.quantization == "int4 (79% of the weights)"
    assert runner.info.dtype == runner.info.kv_cache_dtype == "bfloat16"
    assert runner.info.num_parameters == 134_515_008
    assert runner.scheduler_config.eos_token_ids == {2}
    assert runner.scheduler_config.bytes_per_token == 23_040


def test_kv_memory_may_be_of_another_type(folder: Path) -> None:
    runner = load(folder, kv_cache_dtype="bfloat16")
    assert runner.info.kv_cache_dtype == "bfloat16"
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    assert greedy(runner, prompt, [1, 2, 3], 1) == greedy(load(folder), prompt, [1, 2, 3], 1)


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_kv_memory_of_eight_bits(folder: Path, dtype: str) -> None:
    runner = load(folder, kv_cache_dtype=dtype, attention_backend="reference")
    info, limits = runner.info, runner.scheduler_config
    assert info.kv_cache_dtype == dtype
    assert info.bytes_per_block == 4 * limits.bytes_per_token == 4 * 2 * 3 * (64 + 4)
    prompt = [3, 1, 4, 1, 5, 9]
    expected = greedy(load(folder), prompt, [1, 2], 2)
    assert greedy(runner, prompt, [1, 2], 2) == expected
    step(runner, run(0, prompt, 0, [11, 12]))
    copies = [BlockCopy(11, 5), BlockCopy(12, 17)]
    drawn = step(runner, run(0, expected[:1], len(prompt), [5, 17]), copies=copies)
    assert drawn[0] == expected[1], "copies have their scales"


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_of_eight_bits(tmp_path: Path, quantization: str, tied: bool) -> None:
    make_reference("llama", eos_token_id=9, tie_word_embeddings=tied).save_pretrained(tmp_path)
    runner = load(tmp_path, quantization=quantization, attention_backend="reference")
    assert runner.info.quantization == f"{quantization} (100% of the weights)"
    assert runner.info.num_parameters == load(tmp_path).info.num_parameters
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    exact = logits_of(load(tmp_path, attention_backend="reference"), prompt)
    assert torch.corrcoef(torch.stack([logits_of(runner, prompt), exact]))[0, 1] > 0.99


def logits_of(runner: ModelRunner, prompt: list[int]) -> torch.Tensor:
    """Behind the last token of a prompt."""
    with torch.inference_mode():
        return runner._forward([run(0, prompt, 0, [1, 2])], [len(prompt) - 1])[0][0]


YARN = RopeScaling(rope_type="yarn", factor=2.5)


def test_rope_scaling_stretches_the_context_as_transformers_does(folder: Path) -> None:
    runner = load(folder, rope_scaling=YARN, num_blocks=80)
    assert runner.info.max_model_len == runner.scheduler_config.max_model_len == 320
    prompt = [int(i * 37) % VOCAB_SIZE for i in range(300)]
    parameters = {"rope_theta": 1e4, "original_max_position_embeddings": 128, **YARN.parameters}
    reference = make_reference("llama", eos_token_id=9, rope_parameters=parameters)
    expected = int(reference_logits(reference, prompt)[-1].argmax())
    assert greedy(runner, prompt, list(range(76)), 1) == [expected]


def test_rope_scaling_is_part_of_the_models_identity(folder: Path) -> None:
    scalings = [None, YARN, RopeScaling(rope_type="yarn", factor=2)]
    runners = [load(folder, rope_scaling=scaling) for scaling in scalings]
    assert len({runner.scheduler_config.model_identity for runner in runners}) == 3


def test_a_context_may_be_shorter_than_what_scaling_allows(folder: Path) -> None:
    assert load(folder, rope_scaling=YARN, max_model_len=200).info.max_model_len == 200
    with pytest.raises(ConfigError, match="--max-model-len: 321 is not allowed; at most 320"):
        load(folder, rope_scaling=YARN, max_model_len=321)


def test_a_pool_of_one_block_warms_up(folder: Path) -> None:
    assert load(folder, num_blocks=1, block_size=2).info.num_blocks == 1


@pytest.mark.parametrize(
    ("block_size", "table"), [(1, range(19, -1, -1)), (3, [8, 1, 5, 0, 3, 2, 9]), (1024, [1])]
)
def test_text_is_the_same_in_blocks_of_any_size(
    folder: Path, block_size: int, table: Sequence[int]
) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = greedy(load(folder), prompt, [13, 2, 7, 0, 19], 12)
    runner = load(folder, block_size=block_size)
    assert greedy(runner, prompt, list(table), 12) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len": 129}, "--max-model-len: 129 is not allowed; at most 128, the longest"),
        ({"dtype": "float16"}, "--dtype: 'float16' is not allowed; auto, float32 or bfloat16"),
        ({"kv_cache_dtype": "float16"}, "--kv-cache-dtype: 'float16' is not allowed; auto"),
        (
            {"attention_backend": "triton"},
            "--attention-backend: 'triton' is not allowed; auto, .*reference work here: .*GPU",
        ),
    ],
)
def test_options_that_cannot_work_are_named(
    folder: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match=message):
        load(folder, **changes)


def test_heads_that_the_kernels_cannot_do_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    make_reference("llama", head_dim=320).save_pretrained(tmp_path)
    message = (
        "head_dim 320 is not supported by the triton backend; supported: even numbers up to 256"
    )
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path, attention_backend="triton")


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no usable config\.json in"):
        load(tmp_path / "none")
