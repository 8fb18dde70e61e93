"""The package's sources, parsed once for all rules about them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """Return the module of a file, and every node below it."""
    return tuple(ast.walk(ast.parse(file.read_text())))
