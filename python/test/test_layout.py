"""The bindings against the headers, by a C compiler: sizes, offsets, values of enums, arguments of functions, the version."""
import ctypes
import os
import pathlib
import subprocess
import tempfile

import aura
from aura import _abi
from run import Skip

SOURCE = os.environ.get("AURA_SOURCE")
INTEGERS = {ctypes.c_int: "int", ctypes.c_size_t: "size_t", ctypes.c_uint32: "uint32_t", ctypes.c_uint64: "uint64_t"}


def program():
    """Prints what C says of every struct and enum that _abi has, and compiles only if every function takes what _abi says."""
    lines = ['#include "aura.h"', '#include "aura_file.h"', '#include "aura_team.h"', '#include "aura_cuda.h"', "#include <stdio.h>", "int main(void) {",
             'printf("VERSION 0 0 %s\\n", AURA_VERSION_STRING);']
    for name, struct in _abi.STRUCTS.items():
        lines.append(f'printf("{name} - 0 %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            lines.append(f'printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
    for name, value in vars(_abi).items():
        if name.startswith("AURA_") and isinstance(value, int):
            lines.append(f'printf("{name} - 0 %d\\n", (int){name});')
    for name, (_, arguments) in {**_abi.FUNCTIONS, **_abi.CUDA_FUNCTIONS}.items():
        given = ["*(%s *)0" % argument.__name__ if hasattr(argument, "_fields_") else "(%s)0" % INTEGERS.get(argument, "void *")
                 for argument in arguments]
        lines.append(f"(void)sizeof({name}({', '.join(given)}), 0);")
    return "\n".join(lines + ["}"])


def test_layout():
    if not SOURCE:
        raise Skip("AURA_SOURCE does not say where the headers are")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "layout.c")
        path.write_text(program())
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-Wno-unused-value", "-I", f"{SOURCE}/include", str(path), "-o",
                        f"{folder}/layout"], check=True)
        printed = subprocess.run([f"{folder}/layout"], check=True, capture_output=True, text=True).stdout
    want = {tuple(line.split()[:2]): tuple(line.split()[2:]) for line in printed.splitlines()}
    have = {("VERSION", "0"): ("0", aura.__version__)}
    for name, struct in _abi.STRUCTS.items():
        have[name, "-"] = ("0", str(ctypes.sizeof(struct)))
        for field, _ in struct._fields_:
            place = getattr(struct, field)
            have[name, field] = (str(place.offset), str(place.size))
    have.update({(name, "-"): ("0", str(value)) for name, value in vars(_abi).items() if name.startswith("AURA_") and isinstance(value, int)})
    wrong = {key: (want.get(key), have.get(key)) for key in want.keys() | have.keys() if want.get(key) != have.get(key)}
    assert not wrong, f"C and ctypes differ: {wrong}"
    assert len(_abi.STRUCTS) > 28 and len(_abi.FUNCTIONS) > 80 and len(_abi.CUDA_FUNCTIONS) > 36
    assert "aura_cuda_attend_args" in _abi.STRUCTS


def test_every_function_is_there():
    from aura._lib import lib, no_cuda
    for name in {**_abi.FUNCTIONS, **({} if no_cuda else _abi.CUDA_FUNCTIONS)}:
        getattr(lib, name)
