"""The library: its functions, its errors, and who owns what it returns."""
from __future__ import annotations

import ctypes
import enum
import os
import pathlib
from typing import Any, Callable

from . import _abi


def _bound(path: pathlib.Path, functions: dict) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))  # its calls release the GIL
    for name, (result, arguments) in functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    version = lib.aura_version().decode()
    if version != _abi.VERSION:
        raise ImportError(f"{path} is aura {version}; this package was built for {_abi.VERSION}")
    return lib


def _load() -> tuple[ctypes.CDLL, str]:
    """libaura_cuda.so where there is one, since all of libaura is in it; otherwise libaura.so, and why it is not the other."""
    here, given = pathlib.Path(__file__).parent, os.environ.get("AURA_CUDA_LIBRARY")
    path, why = pathlib.Path(given or here / "libaura_cuda.so"), "AURA_CUDA_LIBRARY is empty"
    if given or given is None and path.exists():
        try:
            return _bound(path, {**_abi.FUNCTIONS, **_abi.CUDA_FUNCTIONS}), ""
        except (OSError, AttributeError, ImportError) as error:
            if given:
                raise ImportError(f"AURA_CUDA_LIBRARY: {error}") from None
            why = str(error)
    elif given is None:
        why = f"there is no {path}; `make wheel-cuda` builds it, or AURA_CUDA_LIBRARY says where it is"
    return _bound(here / "libaura.so", _abi.FUNCTIONS), why


lib, no_cuda = _load()  # no_cuda: why caches cannot be on a GPU; "": they can
emulated = not no_cuda and hasattr(lib, "aura_cuda_emulated")  # the device of our tests, whose memory is the host's
version: str = _abi.VERSION


class Status(enum.IntEnum):
    """Why a call failed; `aura.h` says what each means."""

    BAD_ARGUMENT = _abi.AURA_BAD_ARGUMENT
    BAD_VALUE = _abi.AURA_BAD_VALUE
    UNSUPPORTED = _abi.AURA_UNSUPPORTED
    TOO_LARGE = _abi.AURA_TOO_LARGE
    OUT_OF_MEMORY = _abi.AURA_OUT_OF_MEMORY
    NOT_FINITE = _abi.AURA_NOT_FINITE
    OUT_OF_PAGES = _abi.AURA_OUT_OF_PAGES
    BAD_FILE = _abi.AURA_BAD_FILE
    IO = _abi.AURA_IO
    DEVICE = _abi.AURA_DEVICE


class Error(RuntimeError):
    """A call that failed: `status` says how, the text what was wrong and what would be right. Nothing stored has changed."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = Status(status)

    def __reduce__(self):
        return Error, (int(self.status), str(self))


def check(status: int) -> None:
    if status:
        raise Error(status, lib.aura_last_error().decode())


def bad(message: str) -> Error:
    """For what is wrong before the library sees it."""
    return Error(Status.BAD_ARGUMENT, message)


def make(struct: type, **fields: Any) -> Any:
    """A struct with its size set and all other fields zero, which means their defaults."""
    out = struct(size=ctypes.sizeof(struct))
    for name, value in fields.items():
        setattr(out, name, value)
    return out


# ---- owners --------------------------------------------------------------------------------------------------------

# A fork() copies memory but no threads, and a lock that another thread holds stays held. So what was made before a fork is of no use
# in the child: it is refused there, and never freed. What the child makes itself works.
_process = [os.getpid()]


def _forked() -> None:
    _process[0] = os.getpid()
    _shared.clear()


os.register_at_fork(after_in_child=_forked)


class Handle:
    """What a _create function returned, destroyed once. The collector finalises a cycle in any order: a parent therefore
    closes its children before itself, and a child that comes later finds nothing left to do."""

    __slots__ = ("pointer", "destroy", "parent", "children", "process")

    def __init__(self, create: Callable[..., int], *arguments: Any, destroy: Callable[..., None], parent: Handle | None = None):
        if parent is not None:
            parent.use()
        pointer = ctypes.c_void_p()
        check(create(*arguments, ctypes.byref(pointer)))
        self.pointer, self.destroy, self.parent, self.process = pointer.value, destroy, parent, _process[0]
        self.children: set[Handle] = set()
        if parent is not None:
            parent.children.add(self)

    def use(self) -> int:
        """The pointer, for a call."""
        if self.process != _process[0]:
            raise bad("made before fork(): a child process must make its own caches, or load them from a file")
        if not self.pointer:
            raise bad("used after it was freed")
        return self.pointer

    def usable(self) -> bool:
        return bool(self.pointer) and self.process == _process[0]

    def close(self) -> None:
        for child in list(self.children):
            child.close()
        pointer, self.pointer = self.pointer, None
        if pointer and self.process == _process[0]:
            self.destroy(pointer)
        if self.parent is not None:
            self.parent.children.discard(self)


class Owner:
    """An object that has a handle. It holds its parent's object, so that nobody frees that one first."""

    _handle: Handle

    def __del__(self):
        handle = getattr(self, "_handle", None)
        if handle is not None:
            handle.close()

    def __reduce__(self):
        raise bad(f"a {type(self).__name__} cannot be pickled: save() it to a file, or take its to_bytes()")

    def __copy__(self):
        raise bad(f"a {type(self).__name__} cannot be copied: fork() its sequences, or load what it saves")

    def __deepcopy__(self, memo: dict):
        return self.__copy__()


class Context(Owner):
    """The threads and kernels that caches work with.

    threads: how many work on one call, the caller's included. None: as many as this process may use.
    isa_mask: the instruction sets that may be used (AURA_ISA_... of `aura.h`); 0: all that the machine has.
    """

    def __init__(self, threads: int | None = None, isa_mask: int = 0):
        self.threads = threads or len(os.sched_getaffinity(0))
        options = make(_abi.aura_ctx_options, threads=self.threads, isa_mask=isa_mask)
        self._handle = Handle(lib.aura_ctx_create, ctypes.byref(options), destroy=lib.aura_ctx_destroy)


_shared: dict[int, Context] = {}


def context(given: Context | int | None) -> Context:
    """A context as it is, or the one that all callers with this number of threads share."""
    if isinstance(given, Context):
        return given
    threads = given or len(os.sched_getaffinity(0))
    if threads not in _shared:
        _shared[threads] = Context(threads)
    return _shared[threads]
