"""What the engine checks and compiles before a request, and answers under a grammar."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.errors import (
    RequestError,
)
from engine.grammar_spec import GrammarKind, GrammarSpec
from engine.outputs import (
    SampleRequest,
)
from engine.sampling_params import SamplingParams
from tests.engine.rig import ends_of, read, running, text_of
from tests.fakes import (
    VOCAB_SIZE,
)


def grammar(regex: str) -> SamplingParams:
    return SamplingParams(grammar=GrammarSpec(GrammarKind.REGEX, regex, "guided_regex"))


async def test_a_grammar_is_compiled_off_the_loop_and_each_candidate_follows_it_for_itself() -> (
    None
):
    seen: list[SampleRequest] = []

    def script(request: SampleRequest, context: Sequence[int]) -> int:
        seen.append(request)
        assert request.matcher is not None
        mask = int.from_bytes(request.matcher.allowed(request.output_token_ids), "little")
        legal = [token_id for token_id in range(VOCAB_SIZE) if mask >> token_id & 1]
        return legal[(request.seed or 0) % len(legal)]

    params = replace(grammar("\u0105(\u0110|\u0145|\u0190)"), n=3, seed=0)
    async with running(script) as rig:
        await rig.engine.prepare(params)
        assert not any(name.startswith("MainThread") for name in rig.letters.threads)
        events = await read(rig.submit([5, 6, 7], params))
    ends = ends_of(events)
    assert [text_of(events, i) for i in range(3)] == [
        "\u0105\u0110",
        "\u0105\u0145",
        "\u0105\u0190",
    ]
    assert {end.finish_reason for end in ends.values()} == {"stop"}
    assert [ends[i].usage.completion_tokens for i in range(3)] == [3, 3, 3]
    assert len({id(request.matcher) for request in seen}) == 3


async def test_a_grammar_that_cannot_be_compiled_is_refused_before_anything_is_held() -> None:
    async with running() as rig:
        with pytest.raises(RequestError, match="unclosed group") as caught:
            await rig.engine.prepare(grammar("a("))
        assert caught.value.param == "guided_regex"
        with pytest.raises(RequestError, match="unclosed group"):
            rig.engine.check_request([5], grammar("a("))
        with pytest.raises(RequestError, match="unclosed group"):
            rig.submit([5], grammar("a("))
        assert await rig.settled_blocks() == 0
        assert await rig.engine.requests() == ()


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(stop_token_ids=(5, VOCAB_SIZE)), "stop_token_ids[1]"),
        (SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), f"logit_bias.{VOCAB_SIZE}"),
        (SamplingParams(n=9), "n"),
        (replace(grammar("a"), ignore_eos=True), "ignore_eos"),
    ],
)
async def test_what_no_prompt_can_run_with_is_told_without_one(
    params: SamplingParams, param: str
) -> None:
    async with running() as rig:
        with pytest.raises(RequestError) as caught:
            await rig.engine.prepare(params)
    assert caught.value.param == param


async def test_a_priority_needs_its_policy_with_or_without_a_prompt() -> None:
    async with running(scheduling_policy="fcfs") as rig:
        with pytest.raises(RequestError, match="only 0 is allowed under --scheduling-policy fcfs"):
            await rig.engine.prepare(SamplingParams(priority=1))
