"""Fingerprint that tells the scores of a reward from those of another between runs: everything that its results can hang on.

That is its name, the code of its functions with their defaults, what they close over, the globals that they name and what
they wrap, and the settings of its objects, at any depth. Code of the standard library, of installed packages and of Covey
is told by its file. What can change without a trace here (an open file, a lock, a connection) has no fingerprint.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covey.rewards.contract import Reward

MAX_PARTS = 300_000
"""Values that are looked at; what holds more takes too long to tell."""
_COVEY = str(Path(__file__).parents[1])
_INSTALLED = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_COVEY}
)
_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
_OF_PYTHON = (
    types.BuiltinFunctionType,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)
"""What Python itself makes, and tells by its name."""
_NOT_CODE = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "_abc_impl", "__firstlineno__",
                       "__static_attributes__", "__dataclass_fields__", "__dataclass_params__"})  # fmt: skip
"""Entries of a class that its results do not hang on, or that are told by others."""


def fingerprint(reward: Reward) -> bytes | None:
    """Return a digest of all that a reward's scores hang on beside the rows; None where it cannot be told."""
    walk, digest = _Walk(), hashlib.sha256()
    try:
        for part in walk.parts((reward.name, reward.function)):
            digest.update(len(part).to_bytes(8, "big") + part)
    except Exception:  # a value of the user's may refuse to be taken apart in any way
        return None
    return digest.digest()


class _Walk:
    """Take values apart into bytes; what was met before is told by its number, so that cycles end."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, object]] = {}  # objects are held, so that their ids stay theirs
        self._count = 0

    def parts(self, value: object) -> Iterator[bytes]:
        """Yield what a value is made of; raise where something in it has no content that could be told."""
        self._count += 1
        if self._count > MAX_PARTS:
            raise TypeError("too much to tell")
        if isinstance(value, _PLAIN):
            yield f"{type(value).__qualname__} {value!r}".encode("utf-8", "surrogatepass")
        if type(value) in _PLAIN:
            return
        if id(value) in self._met:
            yield b"met %d" % self._met[id(value)][0]
            return
        self._met[id(value)] = (len(self._met), value)
        if isinstance(value, types.CodeType | types.FunctionType | types.ModuleType | type):
            yield from self._code(value)
        elif type(value) in (tuple, list, dict, set, frozenset):
            yield from self._container(value)
        else:
            yield from self._object(value)

    def _container(self, value: object) -> Iterator[bytes]:
        """Yield the parts of a container; sets in the order of what their elements are, which is the same in all runs."""
        if isinstance(value, Set):
            inner: Sequence[object] = sorted(
                hashlib.sha256(b"\0".join(_Walk().parts(v))).hexdigest() for v in value
            )
        elif isinstance(value, Mapping):
            inner = [part for item in value.items() for part in item]
        else:
            assert isinstance(value, tuple | list)
            inner = list(value)
        yield f"{type(value).__qualname__} of {len(inner)}".encode()
        for element in inner:
            yield from self.parts(element)

    def _code(self, value: object) -> Iterator[bytes]:
        """Yield the parts of code, of a function, a class or a module."""
        if isinstance(value, types.CodeType):
            yield value.co_code + f" {value.co_names} {value.co_varnames} {value.co_flags}".encode()
            yield from self.parts(value.co_consts)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.ModuleType):  # what code takes out of it is told where the code is
            known = _installed(getattr(value, "__file__", None) or "")
            yield value.__name__.encode() + (known or b"")
        elif isinstance(value, type):
            yield from self._class(value)

    def _class(self, value: type) -> Iterator[bytes]:
        """Yield the parts of a class: its bases, methods and attributes, where it is the user's."""
        file = getattr(sys.modules.get(value.__module__), "__file__", None) or ""
        is_builtin = value.__module__ in sys.builtin_module_names
        known = sys.version.encode() if is_builtin else _installed(file)
        yield f"class {value.__module__} {value.__qualname__}".encode() + (known or b"")
        if known is None:
            own = {name: inner for name, inner in vars(value).items() if name not in _NOT_CODE}
            yield from self.parts((value.__bases__, own))

    def _function(self, value: types.FunctionType) -> Iterator[bytes]:
        """Yield the parts of a function: its code, what it holds and what it names."""
        held = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        known = _installed(value.__code__.co_filename)
        if known is None:
            held += [value.__code__, *_globals_of(value)]
        yield f"function {value.__code__.co_qualname}".encode() + (known or b"")
        yield from self.parts((value.__defaults__, value.__kwdefaults__, value.__dict__, held))

    def _object(self, value: object) -> Iterator[bytes]:
        """Yield the parts of any other object: what it stands in for, or what would be needed to make it anew."""
        if isinstance(value, staticmethod | classmethod):
            yield from self.parts((type(value), value.__func__))
        elif isinstance(value, property):
            yield from self.parts((property, value.fget, value.fset, value.fdel))
        elif isinstance(value, types.MethodType):
            yield from self.parts(("method", value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            yield from self.parts((functools.partial, value.func, value.args, value.keywords))
        elif isinstance(value, types.MappingProxyType):
            yield from self.parts(dict(value))
        elif isinstance(value, _OF_PYTHON):
            yield f"{type(value).__name__} {value.__qualname__} {sys.version}".encode()
            owner = getattr(value, "__self__", None)
            yield from () if isinstance(owner, types.ModuleType | type(None)) else self.parts(owner)
        else:
            yield from self._made(value)

    def _made(self, value: object) -> Iterator[bytes]:
        """Yield what would be needed to make an object anew."""
        reduce = copyreg.dispatch_table.get(type(value))
        made = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(made, str):  # known by its name, as what lru_cache makes; it holds what it wraps
            rest: tuple[object, ...] = made, getattr(value, "__dict__", None)
        else:
            rest = (*made[:3], *(None if items is None else list(items) for items in made[3:5]))
        yield from self.parts((type(value), *rest))


def _globals_of(function: types.FunctionType) -> list[object]:
    """Return the globals that a function and the functions inside it name, and what they take out of modules, with the names."""
    codes, found = [function.__code__], dict[str, object]()
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in function.__globals__:
                found[step.argval] = function.__globals__[step.argval]
    modules = [(name, module) for name, module in found.items() if isinstance(module, types.ModuleType)]
    for name, module in modules:
        if _installed(getattr(module, "__file__", None) or "") is None:
            taken = {attribute for code in codes for attribute in code.co_names if attribute in vars(module)}
            found |= {f"{name}.{attribute}": vars(module)[attribute] for attribute in sorted(taken)}
    return [part for item in sorted(found.items(), key=lambda item: item[0]) for part in item]


@functools.lru_cache(maxsize=4096)
def _installed(file: str) -> bytes | None:
    """Return a digest of a file of the standard library, of a package or of Covey; None for code of the user's."""
    if file.startswith("<frozen ") or not file.startswith(_INSTALLED):
        return sys.version.encode() if file.startswith("<frozen ") else None
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return None
