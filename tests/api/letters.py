"""A real engine around a fake model whose tokens are letters, for what only the whole engine can show over HTTP."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.async_engine import AsyncEngine, LoadedModel
from engine.chat_template import DEFAULT_OPTIONS, TemplateOptions
from engine.config import EngineConfig, SchedulerConfig
from tests.fakes import EOS_TOKEN_ID, FakeModelRunner

PROMPT = [10, 11, 12, 13, 14]


class Letters:
    """Token i is the letter U+0100 + i; EOS is not shown."""

    def token_bytes(self, token_id: int) -> bytes:
        return chr(0x100 + token_id).encode()

    def visible_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS_TOKEN_ID else self.token_bytes(token_id)

    longest_token = 64
    knows_tools = False

    def render_chat(
        self, messages: Sequence[Mapping[str, object]], options: TemplateOptions = DEFAULT_OPTIONS
    ) -> list[int]:
        return PROMPT[: 3 + len(messages) + options.add_generation_prompt]

    def encode(self, text: str) -> list[int]:
        return [ord(char) % 250 + 3 for char in text]

    def encode_answer(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(0x100 + i) for i in token_ids)


def letters_engine(limits: SchedulerConfig) -> AsyncEngine:
    """An engine that has not been started."""
    config = EngineConfig(model_path=Path("nowhere"), model_name="fake")
    model = LoadedModel(FakeModelRunner(limits), Letters())
    return AsyncEngine(config, load=lambda config, progress: model)
