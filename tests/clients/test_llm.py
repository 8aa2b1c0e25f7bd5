"""The llm command line tool, configured for an OpenAI-compatible server."""

import sys
from pathlib import Path

from tests.api.conftest import Start
from tests.clients.conftest import Run, needs, saying

pytestmark = needs("llm")
MODELS = """
- model_id: pageturn
  model_name: fake
  api_base: {url}/v1
"""


async def test_a_prompt_and_its_continuation(start: Start, run: Run, tmp_path: Path) -> None:
    running = await start(saying("One. Two."))
    (tmp_path / "extra-openai-models.yaml").write_text(MODELS.format(url=running.url))
    environment = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    command = (sys.executable, "-m", "llm")
    first = await run(*command, "-m", "pageturn", "-s", "Be brief.", "hello", **environment)
    whole = await run(*command, "-m", "pageturn", "--no-stream", "hello", **environment)
    again = await run(*command, "-c", "and then?", **environment)
    assert [first, whole, again] == ["One. Two.\n"] * 3
    roles = [[message["role"] for message in seen[0]] for seen in running.engine.rendered]
    assert roles == [["system", "user"], ["user"], ["user", "assistant", "user"]]
