"""Whole searches on real models: the answers of transformers' `generate(num_beams=...)`, tokens and logprobs."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.beam_params import BeamParams
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.engine_core import EngineCore
from engine.loader.gguf import config_from_gguf
from engine.loader.gguf_file import GGUFFile
from engine.loader.tokenizer import load_tokenizer
from engine.model_runner import ModelRunner
from engine.outputs import StepOutput, TokenLogprob
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.sequence import Request
from engine.tokenizer import Tokenizer
from tests.beams import expected_answers
from tests.engine.loader.gguf_files import read_with_transformers
from tests.engine.models.tiny import VOCAB_SIZE, make_reference
from tests.kernels.fused_reference import needs_fused_cpu

Answer = tuple[list[int], float]
TINY_EOS = 9
BUILTIN_EOS = 2


def iter_outputs(core: EngineCore) -> Iterator[StepOutput]:
    while core.has_work:
        yield from core.step()


def our_answers(
    runner: ModelRunner | CpuRunner, prompt: Sequence[int], params: SamplingParams
) -> list[Answer]:
    """Tokens and cumulative logprobs of the n candidates."""
    core = EngineCore(Scheduler(runner.scheduler_config), runner)
    core.add_request(Request(0, list(prompt), params, 0.0))
    tokens: list[list[int]] = [[] for _ in range(params.n)]
    logprobs = [0.0] * params.n
    for output in iter_outputs(core):
        if output.sampled:
            tokens[output.index].append(output.sampled.token_id)
        if output.end:
            assert output.end.cumulative_logprob is not None
            logprobs[output.index] = output.end.cumulative_logprob
    return list(zip(tokens, logprobs, strict=True))


def their_answers(
    model: PreTrainedModel, prompt: Sequence[int], params: SamplingParams, eos_token_id: int
) -> list[Answer]:
    """The same from transformers, whose scores are logprobs divided by length ^ penalty."""
    beams = params.beams
    assert beams is not None
    output = model.generate(  # pyright: ignore[reportCallIssue]
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=beams.width,
        num_return_sequences=params.n,
        do_sample=False,
        length_penalty=beams.length_penalty,
        early_stopping=beams.early_stopping,
        max_new_tokens=params.max_tokens,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
        return_dict_in_generate=True,
        output_scores=True,
    )
    answers = []
    for tokens, score in zip(output.sequences.tolist(), output.sequences_scores, strict=True):
        text = tokens[len(prompt) :]
        length = text.index(eos_token_id) + 1 if eos_token_id in text else len(text)
        answers.append((text[:length], float(score) * length**beams.length_penalty))
    return answers


def check(ours: list[Answer], theirs: list[Answer]) -> None:
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    logprobs = [logprob for _, logprob in theirs]
    assert [logprob for _, logprob in ours] == pytest.approx(logprobs, abs=1e-3)


def search(width: int, max_tokens: int, **beams: Any) -> SamplingParams:
    return SamplingParams(n=width, max_tokens=max_tokens, beams=BeamParams(width=width, **beams))


def config(path: Path, **changes: Any) -> EngineConfig:
    options: dict[str, Any] = {"num_blocks": 40, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineConfig(model_path=path, model_name="model", **(options | changes))


def no_progress(stage: str, share: float | None) -> None:
    """Nobody waits for it."""


# --- a small random model ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> PreTrainedModel:
    """Its end token is likely enough to come inside of answers."""
    model = make_reference("llama", eos_token_id=TINY_EOS)
    with torch.no_grad():
        model.lm_head.weight[TINY_EOS] *= 2
    return model


@pytest.fixture(scope="module")
def tiny_folder(tiny: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.save_pretrained(folder)
    return folder


def tiny_prompt(length: int) -> list[int]:
    return [(i * 37 + length) % VOCAB_SIZE for i in range(length)]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_every_answer_equals_transformers(
    block_size: int, tiny: PreTrainedModel, tiny_folder: Path
) -> None:
    num_blocks = 640 // block_size
    options = {"dtype": "float32", "block_size": block_size, "num_blocks": num_blocks}
    runner = ModelRunner.load(config(tiny_folder, **options), no_progress)
    lengths = set[int]()
    for distance, width, penalty in itertools.product((-1, 0, 1), (2, 5), (0.0, 1.0, -1.0, 2.0)):
        prompt = tiny_prompt(max(3, block_size) + distance)
        for early_stopping in (True, False, "never"):
            params = search(width, 12, length_penalty=penalty, early_stopping=early_stopping)
            ours = our_answers(runner, prompt, params)
            check(ours, their_answers(tiny, prompt, params, TINY_EOS))
            lengths |= {len(tokens) for tokens, _ in ours}
    assert len(lengths) > 6


def test_one_beam_is_greedy(tiny_folder: Path) -> None:
    runner = ModelRunner.load(config(tiny_folder, dtype="float32"), no_progress)
    for length in (5, 16, 17):
        ((tokens, _),) = our_answers(runner, tiny_prompt(length), search(1, 30))
        core = EngineCore(Scheduler(runner.scheduler_config), runner)
        greedy = SamplingParams(temperature=0.0, max_tokens=30)
        core.add_request(Request(0, tiny_prompt(length), greedy, 0.0))
        drawn = [o.sampled.token_id for o in iter_outputs(core) if o.sampled]
        assert tokens == drawn


@needs_fused_cpu
def test_the_fused_runner_searches_its_own_distribution(tiny_folder: Path) -> None:
    runner = CpuRunner.load(config(tiny_folder), no_progress)

    def ranking(context: Sequence[int]) -> Sequence[TokenLogprob]:
        core = EngineCore(Scheduler(runner.scheduler_config), runner)
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=8)
        core.add_request(Request(0, list(context), params, 0.0))
        (sampled,) = [output.sampled for output in iter_outputs(core) if output.sampled]
        return sampled.top_logprobs

    for length in (15, 16, 17):
        params = search(3, 8)
        expected = expected_answers(tiny_prompt(length), params, runner.scheduler_config, ranking)
        check(our_answers(runner, tiny_prompt(length), params), expected)
    runner.close()


# --- the built-in model --------------------------------------------------------------------------

TEXT = "The history of tea is long and complex, spreading across multiple cultures over the years."
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say yes."}]


@pytest.fixture(scope="module")
def builtin(builtin_model_path: Path) -> tuple[ModelRunner, PreTrainedModel, Tokenizer]:
    """Ours and an independent reading of the same file, both in float32."""
    options = {"dtype": "float32", "quantization": "none"}
    runner = ModelRunner.load(config(builtin_model_path, **options), no_progress)
    fields = config_from_gguf(GGUFFile(builtin_model_path))
    reference = read_with_transformers(builtin_model_path, fields)
    return runner, reference, Tokenizer(load_tokenizer(builtin_model_path))


@pytest.mark.model
@pytest.mark.parametrize(
    ("length", "width", "beams"),
    [
        (15, 3, {}),
        (16, 2, {"length_penalty": 0.5, "early_stopping": "never"}),
        (17, 4, {"length_penalty": 2.0, "early_stopping": True}),
    ],
)
def test_the_built_in_model_at_the_edges_of_a_block(
    builtin: tuple[ModelRunner, PreTrainedModel, Tokenizer],
    length: int,
    width: int,
    beams: dict[str, Any],
) -> None:
    runner, reference, tokenizer = builtin
    prompt, params = tokenizer.encode(TEXT)[:length], search(width, 8, **beams)
    assert len(prompt) == length
    expected = their_answers(reference, prompt, params, BUILTIN_EOS)
    check(our_answers(runner, prompt, params), expected)


@pytest.mark.model
def test_the_built_in_model_ends_inside(
    builtin: tuple[ModelRunner, PreTrainedModel, Tokenizer],
) -> None:
    runner, reference, tokenizer = builtin
    prompt, params = tokenizer.render_chat(CHAT), search(3, 12, length_penalty=0.0)
    ours = our_answers(runner, prompt, params)
    assert [tokens[-1] for tokens, _ in ours] == [BUILTIN_EOS] * 3
    check(ours, their_answers(reference, prompt, params, BUILTIN_EOS))
