"""How a chat becomes the model's text, besides its messages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import RequestError

RESERVED_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""What the template gets from elsewhere."""


@dataclass(frozen=True, kw_only=True)
class TemplateOptions:
    """What a chat template is told.

    `add_generation_prompt`: end where the model's answer begins. `continue_final_message`: end where the last message's
    content does, so that the model goes on with it; takes the place of a generation prompt. `tools`: functions in
    OpenAI's form; only for a template that knows them. `variables` are the template's own; those it does not read change
    nothing. Raises RequestError naming `chat_template_kwargs.…` for a variable that it gets from elsewhere.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.variables:
            if name in RESERVED_VARIABLES:
                param = f"chat_template_kwargs.{name}"
                raise RequestError(f"{param} is not the template's own to set", param=param)


DEFAULT_OPTIONS = TemplateOptions()


def strings_of(value: Any) -> Iterator[str]:
    """All strings inside JSON values, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_of(key)
            yield from strings_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_of(item)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """JSON values with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(item, change) for item in value]
    return value
