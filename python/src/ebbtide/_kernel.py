"""Kernels of Jupyter that run under `ebb run --wrap`."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Sequence

from ._command import EbbError, ebb_path

#: Marks a kernelspec as ours.
MARK = "ebbtide"


def name(memory: str | None) -> str:
    """The default name of a kernel, of the characters that Jupyter allows."""
    return re.sub(r"[^a-z0-9._-]", "-", f"ebbtide-{memory}".lower()) if memory else "ebbtide"


def spec(words: Sequence[str], memory: str | None, display_name: str | None) -> dict[str, Any]:
    """The kernelspec of this Python, in `ebb run` with these options."""
    try:
        import ipykernel  # noqa: F401
    except ImportError:
        raise EbbError(f"this Python has no kernel: `{sys.executable} -m pip install ipykernel`") from None
    kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    shown = f"Python {sys.version_info[0]} ({memory or 'Ebbtide'})"
    return {
        "argv": [ebb_path(), "run", "--wrap", *words, "--", *kernel],
        "display_name": display_name or shown,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True, MARK: True},
    }


def directory(*, prefix: str | None = None, user: bool = False, own: bool = False) -> Path:
    """Where Jupyter looks for kernelspecs."""
    if prefix:
        return Path(prefix) / "share/jupyter/kernels"
    in_environment = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    if own or in_environment and not user:
        return Path(sys.prefix) / "share/jupyter/kernels"
    data = os.environ.get("JUPYTER_DATA_DIR")
    share = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data or os.path.join(share, "jupyter")) / "kernels"


def install(content: dict[str, Any], name: str, kernels: Path) -> Path:
    """Writes a kernelspec; returns its directory."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise EbbError(f"--name {name}: letters, digits, dots, dashes and underscores are allowed")
    path = kernels / name
    known = read(path)
    if known is not None and MARK not in known.get("metadata", {}):
        raise EbbError(f"{path} is another kernel's: give another --name")
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: a frontend may be reading.
        fresh = path / ".kernel.json"
        fresh.write_text(json.dumps(content, indent=1) + "\n")
        fresh.replace(path / "kernel.json")
    except OSError as error:
        raise EbbError(f"cannot write {path}: {error.strerror}: give --user or --prefix") from None
    return path


def remove(name: str, prefix: str | None = None) -> Path:
    """Removes a kernelspec of ours; returns its directory."""
    places = [directory(prefix=prefix)] if prefix else [directory(own=True), directory(user=True)]
    for place in places:
        path = place / name
        known = read(path)
        if known is not None and MARK in known.get("metadata", {}):
            shutil.rmtree(path)
            return path
    raise EbbError(f"no kernel {name} of ebbtide in {', '.join(map(str, places))}")


def read(path: Path) -> dict[str, Any] | None:
    """A kernelspec, if there is one."""
    try:
        content = json.loads((path / "kernel.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
