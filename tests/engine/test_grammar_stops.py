"""Stop strings in answers under a grammar: they cut as ever, and what was held back of one comes when the grammar ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.grammar_spec import GrammarKind, GrammarSpec, json_grammar
from engine.loader.tokenizer import load_tokenizer
from engine.outputs import FinishReason, SampleRequest
from engine.runners import load_runner
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer
from engine.worker import LoadedModel
from tests.engine.real_runners import one_torch_thread
from tests.engine.rig import ends_of, read, running, text_of
from tests.engine.schemas import closed
from tests.fakes import VOCAB_SIZE

ABC_THEN_DS = "ą(Đ|Ņ|Ɛ)Đ{4}"


def first_by_seed(request: SampleRequest, context: Sequence[int]) -> int:
    """Candidate i takes the i-th of the tokens that its grammar allows."""
    assert request.matcher is not None
    mask = int.from_bytes(request.matcher.allowed(request.output_token_ids), "little")
    legal = [token_id for token_id in range(VOCAB_SIZE) if mask >> token_id & 1]
    return legal[(request.seed or 0) % len(legal)]


def under(regex: str, *stop: str, n: int = 1) -> SamplingParams:
    spec = GrammarSpec(GrammarKind.REGEX, regex, "guided_regex")
    return SamplingParams(grammar=spec, stop=stop, n=n, seed=0)


async def answers(params: SamplingParams) -> list[tuple[str, str, str | int | None, int]]:
    """Of each candidate: text, finish reason, stop reason, tokens; and nothing stays behind."""
    async with running(first_by_seed) as rig:
        await rig.engine.prepare(params)
        events = await read(rig.submit([5, 6, 7], params))
        assert await rig.settled_blocks() == 0
    ends = ends_of(events)
    return [
        (
            text_of(events, i),
            ends[i].finish_reason.value,
            ends[i].stop_reason,
            ends[i].usage.completion_tokens,
        )
        for i in range(params.n)
    ]


async def test_one_candidate_is_cut_and_the_others_go_on_to_the_end_of_the_grammar() -> None:
    assert await answers(under(ABC_THEN_DS, "ŅĐ", n=3)) == [
        ("ąĐĐĐĐĐ", "stop", None, 7),
        ("ą", "stop", "ŅĐ", 3),
        ("ąƐĐĐĐĐ", "stop", None, 7),
    ]


async def test_the_beginning_of_a_stop_string_at_the_end_of_the_grammar_is_shown() -> None:
    assert await answers(under("ąĐ", "ĐŅ")) == [("ąĐ", "stop", None, 3)]


async def test_a_stop_string_that_ends_where_the_grammar_does_is_cut() -> None:
    assert await answers(under("ąĐ", "Đ")) == [("ą", "stop", "Đ", 2)]


async def test_a_stop_string_that_the_grammar_does_not_allow_never_comes() -> None:
    assert await answers(under("ąĐ", "ŅŅ")) == [("ąĐ", "stop", None, 3)]


# --- with the built-in model ---------------------------------------------------------------------


@pytest.fixture
async def engine(builtin_model_path: Path) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(
        model_path=builtin_model_path, model_name="built-in", num_blocks=64, max_model_len=512
    )
    with one_torch_thread():
        tokenizer = Tokenizer(load_tokenizer(builtin_model_path))
        engine = AsyncEngine(
            config,
            load=lambda config, progress: LoadedModel(load_runner(config, progress), tokenizer),
        )
        engine.start()
        await engine.wait_ready()
        yield engine
        await engine.shutdown()


@pytest.mark.model
async def test_a_model_is_cut_inside_its_json(engine: AsyncEngine) -> None:
    """With each stop string the beginning, up to it, of what the same seed gives without any."""
    age = {"type": "integer", "minimum": 0, "maximum": 150}
    person = closed({"name": {"type": "string", "maxLength": 12}, "age": age})
    whole = SamplingParams(grammar=json_grammar(person, ""), seed=4, n=2, max_tokens=60)
    prompt = await engine.render_chat([{"role": "user", "content": "Make one up."}])
    await engine.prepare(whole)
    stops = ('"age', "me", "zebra")
    asked = [whole, *(replace(whole, stop=(stop,)) for stop in stops)]
    events = await asyncio.gather(*(read(engine.submit(prompt, params)) for params in asked))
    texts = [[text_of(each, i) for i in range(2)] for each in events]
    assert all(json.loads(text).keys() == {"name", "age"} for text in texts[0])
    for stop, cut, ended in zip(stops, texts[1:], events[1:], strict=True):
        for i in range(2):
            assert cut[i] == texts[0][i].split(stop)[0]
            end = ends_of(ended)[i]
            assert end.finish_reason is FinishReason.STOP
            assert end.stop_reason == (stop if stop in texts[0][i] else None)
