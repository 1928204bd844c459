"""A plugin of pytest, for transformers' own tests where they are a little older than it: pytest -p older. What they import from modules about
many devices and those no longer have is None; none of the chosen tests uses it."""
import importlib


def missing(name):
    if name.startswith("__"):
        raise AttributeError(name)


for module in ("distributed", "distributed.fsdp", "distributed.tensor_parallel", "distributed.utils"):
    try:
        importlib.import_module(f"transformers.{module}").__getattr__ = missing
    except ImportError:  # of a version that has no such module: its own tests do not ask for it
        pass
