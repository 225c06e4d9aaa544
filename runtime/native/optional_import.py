"""Packages of the native engines, which strixhlo does not need itself."""

from __future__ import annotations

import importlib
from typing import Any

from ...errors import StrixhloError


def optional_import(module: str, extra: str) -> Any:
    """The module; where it is missing, a StrixhloError with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise StrixhloError(f"{extra}: {package} is missing; install it: pip install 'strixhlo[{extra}]'") from error
