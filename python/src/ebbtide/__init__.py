"""Runs Python in less memory than it needs: the Python side of `ebb run`.

`ensure` puts a script under `ebb run`; `stats`, `limit` and `measure` ask the `ebb run` that this process is
under. All of them raise :class:`EbbError` with the next step where they cannot.

Not here: paging. `ebb` and its library do that, for this process as for any other.
"""

from __future__ import annotations

from ._command import EbbError, NotRunning, ebb_path, running
from ._figures import Device, Fault, Stats
from ._tree import Measured, ensure, limit, measure, stats

__all__ = [
    "Device",
    "EbbError",
    "Fault",
    "Measured",
    "NotRunning",
    "Stats",
    "ebb_path",
    "ensure",
    "limit",
    "measure",
    "running",
    "stats",
]


def load_ipython_extension(ipython: object) -> None:
    """Gives a notebook ``%ebb`` and ``%%ebb_stats``: called by ``%load_ext ebbtide``."""
    from ._magics import register

    register(ipython)
