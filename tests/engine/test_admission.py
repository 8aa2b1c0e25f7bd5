"""What is refused at the door, and how a step's budget is shared."""

from typing import Any

import pytest

from engine.admission import check_request, max_output_tokens, share_budget
from engine.errors import RequestError
from engine.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from tests.fakes import make_config


@pytest.mark.parametrize(
    ("num_prompt", "n", "changes", "param", "numbers"),
    [
        (0, 1, {}, "prompt", ["empty"]),
        (
            40,
            1,
            {},
            "prompt",
            ["has 40 tokens; the KV block pool has room for 40, an answer included"],
        ),
        (
            15031,
            1,
            {"max_model_len": 8192},
            "prompt",
            ["has 15,031 tokens; the model's context has room for 8,192, an answer included"],
        ),
        (
            20,
            1,
            {"max_model_len": 20},
            "prompt",
            ["has 20 tokens; the model's context has room for 20, an answer included"],
        ),
        (3, 9, {}, "n", ["9", "1 to 8"]),
        (3, 0, {}, "n", ["0", "1 to 8"]),
    ],
)
def test_what_can_never_run_is_refused_with_both_numbers(
    num_prompt: int, n: int, changes: dict[str, Any], param: str, numbers: list[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        check_request(make_config(**changes), [1] * num_prompt, SamplingParams(n=n))
    assert caught.value.param == param
    assert all(number in caught.value.message for number in numbers)


def test_a_priority_is_refused_under_first_come_first_served() -> None:
    fcfs, by_priority = make_config(scheduling_policy="fcfs"), make_config()
    for priority in (-1, 1):
        params = SamplingParams(priority=priority)
        with pytest.raises(RequestError, match=r"only 0 is allowed .* fcfs") as caught:
            check_request(fcfs, [1], params)
        assert caught.value.param == "priority"
        check_request(by_priority, [1], params)
    check_request(fcfs, [1], SamplingParams())


@pytest.mark.parametrize(
    ("num_prompt", "changes"), [(39, {}), (19, {"max_model_len": 20}), (1, {"max_model_len": 2})]
)
def test_the_longest_prompt_that_fits_is_accepted(num_prompt: int, changes: dict[str, Any]) -> None:
    check_request(make_config(**changes), [1] * num_prompt, SamplingParams(n=8))


@pytest.mark.parametrize(
    ("max_tokens", "changes", "expected"),
    [
        (5, {}, 5),
        (0, {}, 0),
        (500, {}, 31),
        (500, {"max_model_len": 30}, 20),
        (None, {"max_model_len": 30}, 20),
        (None, {"num_blocks": 1000, "max_model_len": 4000}, DEFAULT_MAX_TOKENS),
        (2000, {"num_blocks": 1000, "max_model_len": 4000}, 2000),
    ],
)
def test_output_is_limited_by_request_context_and_pool(
    max_tokens: int | None, changes: dict[str, Any], expected: int
) -> None:
    params = SamplingParams(max_tokens=max_tokens)
    assert max_output_tokens(make_config(**changes), 10, params) == expected


@pytest.mark.parametrize(
    ("wants", "budget", "grants"),
    [
        ([], 8, []),
        ([100], 8, [8]),
        ([3, 2], 8, [3, 2]),
        ([100, 3], 8, [5, 3]),
        ([100, 90, 3], 16, [8, 5, 3]),
        ([100, 90, 80], 8, [4, 0, 4]),
        ([2, 100, 1], 8, [2, 5, 1]),
        ([100, 50], 1, [1, 0]),
        ([5, 5], 0, [0, 0]),
    ],
)
def test_half_of_the_budget_goes_to_the_smallest_and_the_rest_by_age(
    wants: list[int], budget: int, grants: list[int]
) -> None:
    assert share_budget(wants, budget) == grants
