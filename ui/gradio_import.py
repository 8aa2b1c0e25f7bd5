"""Gradio, imported without the stub files that it would make: `from ui.gradio_import import gr`.

At each import Gradio parses the sources of its components to write a `.pyi` beside each, for editors. That is more
than half of the time that its import takes, it delays every start of the app, and nothing here reads these files.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_WRITER = "gradio.component_meta"


class _WithoutStubs(MetaPathFinder):
    """Finds the module that writes stub files, to be loaded such that it writes none."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _WRITER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Muted(spec.loader)
        return spec


class _Muted(Loader):
    """Loads as `loader` does, and then takes the writer of stub files away."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__dict__["create_or_modify_pyi"] = lambda *args: None


_finder = _WithoutStubs()
sys.meta_path.insert(0, _finder)
try:
    import gradio as gr
    from gradio import themes
finally:
    sys.meta_path.remove(_finder)

__all__ = ["gr", "themes"]
