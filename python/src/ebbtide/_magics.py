"""`%ebb` and `%%ebb_stats` in a notebook."""

from __future__ import annotations

import ast
from typing import Any

from ._command import EbbError
from ._figures import human
from ._tree import limit, measure, stats


def ebb(line: str) -> None:
    """``%ebb``: how full the budget is. ``%ebb limit 3G``: another budget."""
    words = line.split()
    if not words:
        print(stats())
    elif words[0] == "limit" and len(words) == 2:
        print(f"memory  {human(limit(words[1]))}")
    else:
        raise EbbError("%ebb shows how full the budget is, `%ebb limit 3G` gives another one")


def register(ipython: Any) -> None:
    """Gives a notebook the magics."""

    def ebb_stats(line: str, cell: str) -> Any:
        """``%%ebb_stats``: runs the cell, and says what it faulted and how long it waited."""
        tree = ast.parse(ipython.transform_cell(cell))
        # The value of a last expression is the cell's, as without the magic.
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        namespace = ipython.user_ns
        measured = None
        try:
            with measure() as measured:
                exec(compile(tree, "<cell>", "exec"), namespace)
                if last is None:
                    return None
                return eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
        finally:
            # None where there is nothing to measure.
            if measured is not None:
                print(measured)

    def shown(line: str) -> None:
        try:
            ebb(line)
        except EbbError as error:
            print(error)

    shown.__doc__ = ebb.__doc__
    ipython.register_magic_function(shown, "line", "ebb")
    ipython.register_magic_function(ebb_stats, "cell", "ebb_stats")
