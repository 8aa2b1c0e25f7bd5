"""GET /api/defaults."""

from tests.api.conftest import Start
from tests.fake_engine import FakeEngine


async def test_defaults_are_told(start: Start) -> None:
    running = await start(FakeEngine())
    async with running.http() as http:
        assert (await http.get("/api/defaults")).json() == {
            "system_prompt": None,
            "sampling": {"temperature": 0.8},
        }
