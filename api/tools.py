"""What a chat's body says about tools, checked: which functions, whether the model may, must or must not call them.

A chat template that knows tools shows them to the model in its own way. For other models `as_text` says it in words: the
functions in the system turn, each as a line of JSON; calls as <tool_call>{"name", "arguments"}</tool_call>; results as
<tool_response> in a user's turn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from engine.errors import RequestError

MAX_TOOLS = 128
CALL_START, CALL_END = "<tool_call>", "</tool_call>"

_INSTRUCTIONS = (
    "You can call functions. Each line describes one in JSON:\n{functions}\n"
    'To call one, write {start}{{"name": "...", "arguments": {{...}}}}{end} and nothing else, '
    "{how_many}. The results come back as <tool_response>. "
    "If no function helps, answer in plain words."
)


FUNCTION_NAME: Any = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")


class FunctionSpec(BaseModel):
    """A function that may be called; `parameters` is the JSON Schema of its arguments."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: str = FUNCTION_NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """An entry of `tools`."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["function"]
    function: FunctionSpec


@dataclass(frozen=True)
class ToolUse:
    """The functions that the model may call. `must_call`: it has to; `is_parallel`: several at once.

    `places` are the functions' places in the body's `tools`.
    """

    functions: tuple[FunctionSpec, ...]
    places: tuple[int, ...]
    must_call: bool
    is_parallel: bool

    @property
    def names(self) -> frozenset[str]:
        """What a call may be named."""
        return frozenset(function.name for function in self.functions)

    def documents(self) -> list[dict[str, Any]]:
        """The functions in OpenAI's form."""
        return [
            {"type": "function", "function": function.model_dump(exclude_none=True)}
            for function in self.functions
        ]


def read_tool_use(
    tools: Sequence[Tool] | None, choice: object, parallel: bool | None
) -> ToolUse | None:
    """None when nothing is to be called. Raises RequestError naming `tools[i].…` or `tool_choice.…`."""
    functions = tuple(tool.function for tool in tools or ())
    _check_names(functions)
    if choice is None or choice == "auto" or choice == "none":
        if not functions or choice == "none":
            return None
        return ToolUse(functions, tuple(range(len(functions))), False, parallel is not False)
    if not functions:
        raise RequestError("tool_choice: there are no tools to call", param="tool_choice")
    if choice == "required":
        return ToolUse(functions, tuple(range(len(functions))), True, parallel is not False)
    name = _named(choice)
    names = [function.name for function in functions]
    if name not in names:
        param = "tool_choice.function.name"
        raise RequestError(f"{param}: {name!r} is none of the tools", param=param)
    place = names.index(name)
    return ToolUse((functions[place],), (place,), True, False)


def as_text(messages: Sequence[Mapping[str, Any]], use: ToolUse | None) -> list[dict[str, Any]]:
    """Messages without tools, calls and results: for a model whose template knows none of them."""
    plain: list[dict[str, Any]] = []
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:
            texts = [
                f"<tool_response>\n{message['content']}\n</tool_response>" for message in group
            ]
            plain.append({"role": "user", "content": "\n".join(texts)})
        else:
            plain += map(_say_calls, group)
    return plain if use is None else _with_instructions(plain, use)


def _say_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = map(_call_text, message.get("tool_calls", ()))
    content = "\n".join(filter(None, (message["content"], *calls)))
    return {"role": message["role"], "content": content}


def _with_instructions(plain: list[dict[str, Any]], use: ToolUse) -> list[dict[str, Any]]:
    lines = "\n".join(
        json.dumps(function.model_dump(exclude_none=True), ensure_ascii=False)
        for function in use.functions
    )
    how_many = "once for each call" if use.is_parallel else "once"
    text = _INSTRUCTIONS.format(functions=lines, start=CALL_START, end=CALL_END, how_many=how_many)
    if plain and plain[0]["role"] == "system":
        first = {"role": "system", "content": f"{plain[0]['content']}\n\n{text}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _call_text(call: Mapping[str, Any]) -> str:
    return f"{CALL_START}{json.dumps(call['function'], ensure_ascii=False)}{CALL_END}"


def _check_names(functions: Sequence[FunctionSpec]) -> None:
    seen: set[str] = set()
    for i, function in enumerate(functions):
        if function.name in seen:
            param = f"tools[{i}].function.name"
            raise RequestError(f"{param}: {function.name!r} is there already", param=param)
        seen.add(function.name)


def _named(choice: object) -> str:
    allowed = 'none, auto, required or {"type": "function", "function": {"name"}} is allowed'
    if not isinstance(choice, Mapping):
        raise RequestError(f"tool_choice: {allowed}", param="tool_choice")
    if choice.get("type") != "function":
        raise RequestError(f"tool_choice.type: {allowed}", param="tool_choice.type")
    function = choice.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        param = "tool_choice.function.name"
        raise RequestError(f"{param}: a string is required", param=param)
    return function["name"]
