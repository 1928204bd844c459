#!/usr/bin/env python3
"""python/test/run.py FILE...: runs the functions test_* of these files, and prints "ok NAME", "FAIL NAME: why" or "skip NAME: why" for each.

A test that raises Skip is skipped. With --only WORD, only tests whose names have the word in them."""
import importlib.util
import pathlib
import sys
import time
import traceback


class Skip(Exception):
    pass


def main() -> int:
    sys.modules["run"] = sys.modules["__main__"]
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    arguments = sys.argv[1:]
    only = arguments.pop(arguments.index("--only") + 1) if "--only" in arguments else ""
    failed = ran = 0
    for path in (argument for argument in arguments if argument != "--only"):
        spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, test in list(vars(module).items()):
            if not name.startswith("test_") or only not in name:
                continue
            label, start, ran = f"{module.__name__[5:]} {name[5:]}", time.monotonic(), ran + 1
            try:
                test()
                print(f"ok {label} ({time.monotonic() - start:.1f} s)", flush=True)
            except Skip as why:
                print(f"skip {label}: {why}", flush=True)
            except Exception as error:
                traceback.print_exc()
                failed += 1
                print(f"FAIL {label}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
    if not ran:
        print("FAIL python: no test ran")
    return failed > 0 or not ran


if __name__ == "__main__":
    sys.exit(main())
