"""Import modules of a package as soon as other packages have been imported, by whomever and in any order."""

import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def after_import(package: str, follows: Mapping[str, str]) -> None:
    """Imports each module `follows[name]` of the package once `name` is imported: now, if it already is.

    They wait until no module of the package is half-way, else a module of ours that imports `name` would be asked for
    what it has not defined yet.
    """
    finder = _Finder(package, follows)
    sys.meta_path.insert(0, finder)
    finder.catch_up()


class _Finder(MetaPathFinder):
    """Leaves finding to the finders that come after it, and catches up when an import is over."""

    def __init__(self, package: str, follows: Mapping[str, str]) -> None:
        self.package, self.follows = package, dict(follows)
        self.local = threading.local()  # depth: imports under way; asking: whether the other finders are being asked

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = fullname in self.follows or fullname.startswith(f"{self.package}.")
        if not ours or getattr(self.local, "asking", False):
            return None
        self.local.asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self.local.asking = False
        if spec is not None and spec.loader is not None:
            self._watch(spec)
        return spec

    def _watch(self, spec: ModuleSpec) -> None:
        loader = spec.loader
        assert loader is not None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self.local.depth = getattr(self.local, "depth", 0) + 1
            try:
                execute(module)
            finally:
                self.local.depth -= 1
            if self.local.depth == 0:
                self.catch_up()

        loader.exec_module = exec_module  # type: ignore[method-assign]

    def catch_up(self) -> None:
        """Imports what is due."""
        for name in [name for name in self.follows if name in sys.modules]:
            follower = self.follows.pop(name, None)  # None: an import below this one has done it
            if follower:
                import_module(follower)
        if not self.follows and self in sys.meta_path:
            sys.meta_path.remove(self)
