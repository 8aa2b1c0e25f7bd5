"""Random life of the scheduler in blocks of 16: see tests/engine/life.py. A file of its own, to run beside the others."""

import pytest

from tests.engine.life import life_in_blocks_of

pytestmark = pytest.mark.timeout(900)

TestLife = life_in_blocks_of(16, max_examples=700)
