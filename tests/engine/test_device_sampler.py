"""Draws on the device: the tokens of the host's sampler, whatever is asked."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.device_sampler import DeviceSampler, is_plain
from engine.outputs import SampleRequest
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def request(seed: int = 0, **params: Any) -> SampleRequest:
    return SampleRequest(0, SamplingParams(**params), seed, [1, 2], [3])


def test_draws_are_those_of_the_host() -> None:
    draw = random.Random(2)
    asked = [
        request(
            seed,
            temperature=draw.choice([0.0, 0.3, 1.0, 2.0]),
            top_p=draw.choice([1.0, 1.0, 0.9, 0.3, 0.01]),
            top_k=draw.choice([0, 0, 1, 5, 2000]),
            min_p=draw.choice([0.0, 0.0, 0.05, 1.0]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.0, 1.3]),
            logprobs=draw.choice([None, None, None, 2]),
        )
        for seed in range(300)
    ]
    logits = torch.randn((300, 700), generator=torch.Generator().manual_seed(1)) * 4
    expected = Sampler(None).sample(logits, asked)
    actual = DeviceSampler(Sampler(None)).sample(logits.to(DEVICE), asked)
    assert actual == expected
    assert len({token.token_id for token in expected}) > 50


def test_equal_logits_rank_by_token_id() -> None:
    logits = torch.zeros((3, 50), device=DEVICE)
    logits[:, [7, 30, 31]] = 1.0
    asked = [request(temperature=0.0), request(top_p=0.001), request(top_p=0.0)]
    drawn = DeviceSampler(Sampler(None)).sample(logits, asked)
    assert [token.token_id for token in drawn] == [7, 7, 7]


def test_no_draw_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors without numbers whatever asks for one raises; so would a size that depends on them."""
    monkeypatch.setattr("engine.transfer.pin", torch.from_numpy)
    nowhere = torch.device("meta")
    asked = [
        request(temperature=0.0),
        request(temperature=0.7),
        request(top_k=5),
        request(top_p=0.9, min_p=0.1),
    ]
    sampler = DeviceSampler(Sampler(None))
    for requests in (asked, *([one] for one in asked)):
        drawn = sampler._draw(torch.empty((len(requests), 700), device=nowhere), requests)
        assert (drawn.device, drawn.shape) == (nowhere, (len(requests),))
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.empty(2, device=nowhere).tolist()


def test_rows_do_not_depend_on_each_other() -> None:
    logits = torch.randn((6, 90), device=DEVICE)
    asked = [request(seed, temperature=1.5, top_p=0.5 + seed / 12) for seed in range(6)]
    sampler = DeviceSampler(Sampler(None))
    together = sampler.sample(logits, asked)
    alone = [sampler.sample(logits[i : i + 1], [asked[i]])[0] for i in range(6)]
    assert together == alone


def test_logits_that_are_not_finite_end_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [0.0, float("nan"), 2.0]], device=DEVICE)
    drawn = DeviceSampler(Sampler(None)).sample(logits, [request(temperature=0.0)] * 2)
    assert [token.token_id for token in drawn] == [1, 2]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {1: 2.0}},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logprobs": 0},
    ],
)
def test_rows_that_ask_for_more_are_not_plain(params: dict[str, Any]) -> None:
    assert is_plain(request())
    assert not is_plain(request(**params))
    assert not is_plain(replace(request(), forbidden_token_ids=(3,)))
    assert not is_plain(replace(request(), num_candidates=5))
