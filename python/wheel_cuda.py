#!/usr/bin/env python3
"""python/wheel_cuda.py LIBRARY FOLDER: packs a libaura_cuda.so into the wheel aura-kv-cuda, which puts it beside aura-kv's own library, where
that package looks for it. `make wheel-cuda` builds both."""
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import sys
import zipfile


def glibc_of(library):
    """The oldest C library that has every symbol which it asks for."""
    symbols = subprocess.run(["objdump", "-T", library], check=True, capture_output=True, text=True).stdout
    return max((int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols)), default=17)


def main():
    library, folder = map(pathlib.Path, sys.argv[1:])
    header = pathlib.Path(__file__).parent.parent.joinpath("include/aura.h").read_text(encoding="utf-8")
    version = re.search(r'define AURA_VERSION_STRING "(.*)"', header).group(1)
    tag = f"py3-none-manylinux_2_{glibc_of(library)}_{platform.machine()}"
    info = f"aura_kv_cuda-{version}.dist-info"
    files = {
        "aura/libaura_cuda.so": library.read_bytes(),
        f"{info}/METADATA": (f"Metadata-Version: 2.1\nName: aura-kv-cuda\nVersion: {version}\nSummary: aura-kv on NVIDIA GPUs\n"
                             f"License: MIT\nRequires-Dist: aura-kv=={version}\nRequires-Dist: torch>=2.6\n").encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: aura\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    record = "".join("%s,sha256=%s,%d\n" % (name, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
                     for name, data in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"aura_kv_cuda-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    print(path)


if __name__ == "__main__":
    main()
