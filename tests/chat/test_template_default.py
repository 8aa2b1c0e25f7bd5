"""What a template adds of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from chat.template_default import default_system_prompt
from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.loader.tokenizer import load_tokenizer
from engine.tokenizer import Tokenizer
from tests.fake_engine import FakeEngine


class Templated(FakeEngine):
    """Adds `default` before a chat without a system message."""

    def __init__(self, default: str) -> None:
        super().__init__()
        self.default = default

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]:
        plain = await super().render_chat(messages, options)
        return plain if messages[0]["role"] == "system" else [*self.default.encode(), *plain]


@pytest.mark.parametrize(
    ("default", "found"),
    [("", None), ("<system>You are kind.\n", "You are kind."), ("elsewhere", None)],
)
async def test_the_default_is_what_stands_in_the_place_of_a_given_one(
    default: str, found: str | None
) -> None:
    assert await default_system_prompt(Templated(default)) == found


@pytest.mark.model
async def test_the_built_in_model_names_itself(builtin_model_path: Path) -> None:
    tokenizer = Tokenizer(load_tokenizer(builtin_model_path))

    class Real(FakeEngine):
        async def render_chat(
            self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = DEFAULT_OPTIONS
        ) -> list[int]:
            return tokenizer.render_chat(messages, options)

        async def decode(self, token_ids: Sequence[int]) -> str:
            return tokenizer.decode(token_ids)

    assert await default_system_prompt(Real()) == (
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    )
