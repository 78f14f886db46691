"""Pipeline files."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

from headrace.errors import HeadraceError, InvalidParameter, StatementError
from headrace.session.pipelines.definitions import Pipeline

_pickle_by_value: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value


def load_pipeline(path: Path) -> Pipeline:
    """All definitions of all pipelines in a file, as one. Raises `InvalidParameter`, `StatementError`."""
    if not path.is_file():
        raise InvalidParameter(f"there is no pipeline file {path}")
    name = f"headrace_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidParameter(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    _pickle_by_value(module)  # Spark's workers have no such module
    try:
        spec.loader.exec_module(module)
    except HeadraceError:
        raise
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename][1:]
        raise StatementError(
            f"{path} failed: {type(error).__name__}: {error}", detail="".join(traceback.format_list(frames))
        ) from error
    found = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if not any(p.definitions for p in found.values()):
        raise InvalidParameter(
            f"{path} defines nothing", hint="from headrace import Pipeline; db = Pipeline(); @db.materialized_view ..."
        )
    first, *others = found.values()
    for other in others:
        first.merge(other)
    return first
