"""What may enter: the checks every request passes first, and the sharing of a step's token budget. Pure functions.

The checks read nothing but their arguments, so any thread may call them.
"""

from collections.abc import Sequence

from engine.config import SchedulerConfig
from engine.errors import RequestError
from engine.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams


def check_params(config: SchedulerConfig, params: SamplingParams) -> None:
    """Raise RequestError for parameters that no prompt can run with."""
    if not 1 <= params.n <= config.max_num_seqs:
        raise RequestError(
            f"n is {params.n}; 1 to {config.max_num_seqs} candidates are allowed", param="n"
        )
    if params.priority and config.scheduling_policy != "priority":
        raise RequestError(
            f"priority is {params.priority}; only 0 is allowed under --scheduling-policy "
            f"{config.scheduling_policy}",
            param="priority",
        )


def check_request(
    config: SchedulerConfig, prompt_token_ids: Sequence[int], params: SamplingParams
) -> None:
    """Raise RequestError for what can never run, with both numbers: what it needs and what there is.

    A prompt needs room for one token more, unless none is to be drawn.
    """
    check_params(config, params)
    if not prompt_token_ids:
        raise RequestError("the prompt is empty; at least one token is needed", param="prompt")
    num_tokens = len(prompt_token_ids)
    num_drawn = int(params.max_tokens != 0)
    num_slots = config.num_blocks * config.block_size
    _check_room(num_tokens, num_drawn, config.max_model_len, "the model's context has room for")
    _check_room(num_tokens, num_drawn, num_slots, "the KV block pool has room for")
    if params.beams is not None:
        _check_beams(config, num_tokens, params.beams.width)


def max_output_tokens(
    config: SchedulerConfig, num_prompt_tokens: int, params: SamplingParams
) -> int:
    """How many tokens a sequence may draw: `max_tokens`, the context, or a pool that it has all to itself.

    The last token is drawn without being stored, so a pool of T tokens ends a sequence at T + 1.
    """
    limit = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
    longest = min(config.max_model_len, config.num_blocks * config.block_size + 1)
    return min(limit, longest - num_prompt_tokens)


def share_budget(wants: Sequence[int], budget: int) -> list[int]:
    """Grant tokens to those who want `wants` of them, in order of rank in the list.

    Half of the budget goes to the smallest wants, the rest by rank. What one does not need goes to the next.
    """
    grants = [0] * len(wants)
    by_size = sorted(range(len(wants)), key=wants.__getitem__)
    rest = _hand_out(grants, wants, by_size, budget // 2)
    _hand_out(grants, wants, range(len(wants)), budget - budget // 2 + rest)
    return grants


def _hand_out(grants: list[int], wants: Sequence[int], order: Sequence[int], budget: int) -> int:
    for index in order:
        granted = min(wants[index] - grants[index], budget)
        grants[index] += granted
        budget -= granted
    return budget


def _check_beams(config: SchedulerConfig, num_prompt_tokens: int, width: int) -> None:
    if width > config.max_num_seqs:
        raise RequestError(
            f"best_of is {width}; {config.max_num_seqs} beams (--max-num-seqs) are the most",
            param="best_of",
        )
    num_needed = num_prompt_tokens // config.block_size + width
    if num_needed > config.num_blocks:
        raise RequestError(
            f"best_of is {width}; {width} beams behind {num_prompt_tokens} tokens need {num_needed} KV blocks, "
            f"the pool has {config.num_blocks}",
            param="best_of",
        )


def _check_room(num_tokens: int, num_drawn: int, num_there: int, where: str) -> None:
    if num_tokens + num_drawn > num_there:
        rest = ", an answer included" if num_drawn else ""
        raise RequestError(
            f"the prompt has {num_tokens:,} tokens; {where} {num_there:,}{rest}",
            param="prompt",
            code="context_length_exceeded",
        )
