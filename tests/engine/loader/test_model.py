"""What tells one model from another."""

import os
import shutil
from pathlib import Path

from engine.loader.model import open_model
from tests.engine.models.tiny import make_reference


def test_identity_differs_with_place_and_content_and_is_the_same_for_the_same(
    tmp_path: Path,
) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    make_reference("llama").save_pretrained(first)
    shutil.copytree(first, copy)
    seen = {open_model(first).identity, open_model(first).identity, open_model(copy).identity}
    assert len(seen) == 2
    os.utime(copy / "config.json", ns=(1, 1))
    assert open_model(copy).identity not in seen
