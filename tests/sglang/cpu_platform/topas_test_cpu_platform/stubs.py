"""Stand-ins for triton and torchvision, which SGLang imports and this path never runs.

The real triton takes 1 GB, and the torchvision wheel of the package index does not load beside a
CPU build of torch. The finder comes last on ``sys.meta_path``: where the real ones are installed,
it is never asked. It keeps to the standard library's lightest parts, as every interpreter of the
environment imports it at start.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

STUBBED = ("triton", "torchvision")
VERSION = "0.0.0"


class _StubType(type):
    """A class whose missing attributes are dummies, so that enumerations can be read."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _StubModule(ModuleType):
    """A package whose every attribute is a class, a module or a decorator that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._make(name)
        setattr(self, name, value)
        return value

    def _make(self, name: str) -> Any:
        if not name[:1].isupper():
            child = _StubModule(f"{self.__name__}.{name}")
            child.__path__ = []
            return child
        bases: tuple[type, ...] = (Exception,) if name.endswith(("Error", "Resources")) else ()
        # every class takes any arguments: triton.Config(...) is evaluated at import
        body = {"__module__": self.__name__}
        if not bases:
            body["__init__"] = lambda self, *args, **kwargs: None  # type: ignore[assignment]
        return _StubType(name, bases, body)

    def __iter__(self) -> Iterator[Any]:
        """Hold nothing: torch asks whether a back end is among triton's."""
        return iter(())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate: ``@triton.jit`` as well as ``@triton.jit(...)``."""
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda function: function


def _cdiv(a: int, b: int) -> int:
    return -(a // -b)


def _next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 1


class _StubFinder:
    """Finds and loads the stubbed packages and anything below them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in STUBBED:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StubModule(spec.name)
        if spec.name in STUBBED:
            module.__version__ = VERSION  # type: ignore[attr-defined]
        if spec.name == "triton":
            module.cdiv = _cdiv  # type: ignore[attr-defined]
            module.next_power_of_2 = _next_power_of_2  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def install() -> None:
    """Put the finder last on ``sys.meta_path``, once."""
    if not any(isinstance(finder, _StubFinder) for finder in sys.meta_path):
        sys.meta_path.append(_StubFinder())
