"""Functions that a model may call, as /v1/responses writes them: without the object around each of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from api.tools import FUNCTION_NAME, FunctionSpec, Tool, ToolUse, read_tool_use
from engine.errors import RequestError


class FlatTool(BaseModel):
    """An entry of `tools`."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["function"]
    name: str = FUNCTION_NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def nested(self) -> Tool:
        """The same as /v1/chat/completions writes it."""
        function = FunctionSpec(
            name=self.name, description=self.description, parameters=self.parameters
        )
        return Tool(type="function", function=function)


def read_flat_tool_use(
    tools: Sequence[FlatTool] | None, choice: object, parallel: bool | None
) -> ToolUse | None:
    """None when nothing is to be called. Raises RequestError naming `tools[i].…` or `tool_choice.…`."""
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    with flat_paths():
        return read_tool_use([tool.nested() for tool in tools or ()], choice, parallel)


@contextmanager
def flat_paths() -> Iterator[None]:
    """RequestErrors name the fields of `tools` and `tool_choice` as this route has them."""
    try:
        yield
    except RequestError as error:
        message, param = _flat(error.message), error.param and _flat(error.param)
        raise RequestError(message, param=param, code=error.code) from None


def _flat(text: str) -> str:
    text = text.replace('"function": {"name"}}', '"name"}')
    return re.sub(r"\b(tools\[\d+\]|tool_choice)\.function\.", r"\1.", text)
