"""What a person may change of a conversation: title, pinned, system_prompt, when_full, sampling."""

from collections.abc import Mapping
from typing import Any

from chat.ports import Engine
from chat.turns import as_sampling_error, check_kept_sampling, check_system_prompt, check_title
from engine.errors import EngineDeadError, EngineNotReadyError, RequestError
from storage.records import WHEN_FULL


def checked_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values to store, whitespace and empty ones tidied. Raises RequestError."""
    for name in changes:
        if name not in _CHECKS:
            allowed = ", ".join(_CHECKS)
            message = f"{name} cannot be changed; {allowed} can"
            raise RequestError(message, param=name, code="unknown_field")
    return {name: _CHECKS[name](value) for name, value in changes.items()}


async def check_runnable(engine: Engine, sampling: Mapping[str, Any]) -> None:
    """Raise RequestError for what the model can never be sampled with; where there is none yet, a turn will be refused."""
    params = check_kept_sampling(sampling, "sampling")
    try:
        await engine.prepare(params)
    except (EngineNotReadyError, EngineDeadError):
        return
    except RequestError as error:
        raise as_sampling_error(error) from error


async def runnable_part(
    engine: Engine, sampling: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[RequestError, ...]]:
    """What of valid sampling the model can be sampled with, and why each field that is left out cannot run."""
    kept, faults = dict(sampling), []
    while kept:
        try:
            await check_runnable(engine, kept)
            break
        except RequestError as error:
            faults.append(error)
            name = (error.param or "").removeprefix("sampling.").partition(".")[0].partition("[")[0]
            kept = {key: value for key, value in kept.items() if key != name and name in kept}
    return kept, tuple(faults)


def _title(value: object) -> str:
    return check_title(value, "title")


def _pinned(value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError("pinned must be true or false", param="pinned")
    return value


def _system_prompt(value: object) -> str | None:
    return check_system_prompt(value, "system_prompt")


def _when_full(value: object) -> str:
    if value not in WHEN_FULL:
        message = f"when_full must be {' or '.join(WHEN_FULL)}"
        raise RequestError(message, param="when_full")
    return str(value)


def _sampling(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError("sampling must be an object", param="sampling")
    check_kept_sampling(value, "sampling")
    return {key: item for key, item in value.items() if item is not None}


_CHECKS = {
    "title": _title,
    "pinned": _pinned,
    "system_prompt": _system_prompt,
    "when_full": _when_full,
    "sampling": _sampling,
}
