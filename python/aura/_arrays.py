"""Arrays of others: where their numbers are, without copying them. numpy, torch (never imported here), anything with DLPack."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from . import _abi
from ._lib import Error, Status, bad, emulated

NUMPY_DTYPES = {np.dtype(np.float32): _abi.AURA_F32, np.dtype(np.float16): _abi.AURA_F16}
NAMES = {"float32": _abi.AURA_F32, "float16": _abi.AURA_F16, "bfloat16": _abi.AURA_BF16}
NAME_OF = {value: name for name, value in NAMES.items()}
BYTES = {_abi.AURA_F32: 4, _abi.AURA_F16: 2, _abi.AURA_BF16: 2}


class Tensor(NamedTuple):
    """Numbers of somebody's: strides are in elements. `owner` keeps them alive."""

    pointer: int
    dtype: int
    shape: tuple
    strides: tuple
    owner: Any
    gpu: int | None = None  # the number of the CUDA device that they are on; None: the CPU


# DLPack's structs.
class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int), ("dtype", _Type),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_DL_TYPES = {(2, 32): _abi.AURA_F32, (2, 16): _abi.AURA_F16, (4, 16): _abi.AURA_BF16}


def _from_dlpack(x: Any, what: str, gpu: int | None, stream: int) -> Tensor:
    kind, number = x.__dlpack_device__()
    if gpu is None or emulated:
        if kind != 1:
            raise Error(Status.UNSUPPORTED, f"{what} is not in the memory of the CPU")
        capsule = x.__dlpack__()  # not consumed: it frees itself after the call
    else:
        if (kind, number) not in ((2, gpu), (13, gpu)):  # kDLCUDA, kDLCUDAManaged
            raise Error(Status.UNSUPPORTED, f"{what} is not in the memory of CUDA device {gpu}")
        capsule = x.__dlpack__(stream=stream or 1)  # 1: the default stream
    if not _capsule_is(capsule, b"dltensor"):
        raise Error(Status.UNSUPPORTED, f"{what} gives no capsule named dltensor: those of DLPack 1, with a version, cannot be read")
    dl = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    dtype = _DL_TYPES.get((dl.dtype.code, dl.dtype.bits))
    if dtype is None or dl.dtype.lanes != 1:
        raise Error(Status.UNSUPPORTED, f"{what} has numbers of a kind that is none of float32, float16, bfloat16")
    shape = tuple(dl.shape[: dl.ndim])
    if dl.strides:
        strides = tuple(dl.strides[: dl.ndim])
    else:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(dl.ndim))
    return Tensor((dl.data or 0) + dl.byte_offset, dtype, shape, strides, capsule, gpu)


def _from_numpy(x: np.ndarray, what: str, gpu: int | None) -> Tensor:
    if gpu is not None and not emulated:
        raise Error(Status.UNSUPPORTED, f"{what} is an array of numpy: this cache is on CUDA device {gpu}")
    dtype = NUMPY_DTYPES.get(x.dtype)
    if dtype is None:
        dtype = _abi.AURA_BF16 if x.dtype.name == "bfloat16" else None
    if dtype is None:
        raise Error(Status.UNSUPPORTED, f"{what} has dtype {x.dtype}: float32, float16 and bfloat16 can be read")
    size = x.itemsize
    if not x.flags.aligned or any(stride % size for stride in x.strides):
        raise bad(f"{what} is not aligned to its numbers")
    return Tensor(x.__array_interface__["data"][0], dtype, x.shape, tuple(stride // size for stride in x.strides), x, gpu)


def _from_torch(x: Any, what: str, gpu: int | None) -> Tensor:
    dtype = NAMES.get(str(x.dtype).partition(".")[2])
    if dtype is None:
        raise Error(Status.UNSUPPORTED, f"{what} has dtype {x.dtype}: float32, float16 and bfloat16 can be read")
    place = x.device
    if place.type != "cpu" if gpu is None or emulated else (place.type, place.index) != ("cuda", gpu):
        raise Error(Status.UNSUPPORTED, f"{what} is on {place}: this cache is on {'the CPU' if gpu is None else f'cuda:{gpu}'}")
    if x.is_neg():
        x = x.resolve_neg()
    return Tensor(x.data_ptr(), dtype, tuple(x.shape), x.stride(), x, gpu)


def is_torch(x: Any) -> bool:
    return hasattr(x, "data_ptr") and hasattr(x, "is_neg")


def look(x: Any, what: str, gpu: int | None = None, stream: int = 0) -> Tensor:
    """Where an array's numbers are: on the CPU, or on CUDA device `gpu`, for work on that stream. Raises Error for what cannot be
    read in place."""
    if isinstance(x, np.ndarray):
        return _from_numpy(x, what, gpu)
    if is_torch(x):
        return _from_torch(x, what, gpu)
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x, what, gpu, stream)
    raise bad(f"{what} is a {type(x).__name__}: give an array of numpy, of torch, or one with __dlpack__")


def shaped(t: Tensor, what: str, shape: tuple, write: bool = False) -> Tensor:
    """Checks the shape, None being any number, and that a row's numbers lie side by side. A stride that says nothing (of an axis of
    length 1) becomes the one of a contiguous array: 0 means that to the library."""
    if len(t.shape) != len(shape) or any(want is not None and want != have for want, have in zip(shape, t.shape)):
        want = ", ".join("any" if n is None else str(n) for n in shape)
        raise bad(f"{what} has shape {list(t.shape)}: [{want}] was expected")
    if 0 in t.shape:  # there is nothing to read, wherever it is
        return t
    if t.shape[-1] > 1 and t.strides[-1] != 1:
        raise bad(f"{what}: the numbers of a head must lie side by side, these are {t.strides[-1]} apart")
    if any(n > 1 and stride == 0 for n, stride in zip(t.shape, t.strides)):
        if write:
            raise bad(f"{what}: several numbers of it are at one place")
        t = _spread(t, what)
    if write and isinstance(t.owner, np.ndarray) and not t.owner.flags.writeable:
        raise bad(f"{what} cannot be written to")
    return t


def _spread(t: Tensor, what: str) -> Tensor:
    """A copy of a broadcast array: the library takes a stride of 0 for "contiguous"."""
    if is_torch(t.owner) or isinstance(t.owner, np.ndarray):
        owner = t.owner.contiguous() if is_torch(t.owner) else np.ascontiguousarray(t.owner)
        return look(owner, what, t.gpu)
    raise bad(f"{what}: an array of DLPack with a stride of 0")


def empty(like: Any, dtype: int, shape: tuple, gpu: int | None = None) -> tuple[Any, Tensor]:
    """A new array: of torch beside tensors of torch and on a GPU, otherwise of numpy, where bfloat16 becomes float32 unless `like` has it."""
    if is_torch(like):
        out = like.new_empty(shape) if NAMES.get(str(like.dtype).partition(".")[2]) == dtype else None
        if out is None:
            raise bad(f"no new tensor of {NAME_OF[dtype]} like one of {like.dtype}")
        return out, look(out, "out", gpu)
    if gpu is not None and not emulated:
        import torch

        out = torch.empty(shape, dtype=getattr(torch, NAME_OF[dtype]), device=f"cuda:{gpu}")
        return out, look(out, "out", gpu)
    kinds = {_abi.AURA_F32: np.dtype(np.float32), _abi.AURA_F16: np.dtype(np.float16)}
    kind = kinds.get(dtype)
    if kind is None:
        kind = like.dtype if isinstance(like, np.ndarray) and like.dtype.name == "bfloat16" else kinds[_abi.AURA_F32]
    array = np.empty(shape, kind)
    return array, look(array, "out", gpu)


def floats(x: Any, what: str, shape: tuple) -> np.ndarray:
    """Few numbers (slopes, sinks, factors), as float32 in a row; these are copied."""
    if is_torch(x):
        x = x.detach().float().cpu().numpy()
    out = np.ascontiguousarray(x, dtype=np.float32)
    if out.shape != shape:
        raise bad(f"{what} has shape {list(out.shape)}: {list(shape)} was expected")
    return out
