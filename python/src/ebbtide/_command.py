"""Finds `ebb` and asks it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig


class EbbError(RuntimeError):
    """It cannot be done; the message says what happened and the next step."""


class NotRunning(EbbError):
    """This process is not under `ebb run`."""


def ebb_path() -> str:
    """The path of `ebb`: the one that was installed with this package, else the first on PATH."""
    scripts = {sysconfig.get_path("scripts"), os.path.dirname(sys.executable)}
    user = sysconfig.get_path("scripts", f"{os.name}_user")
    for directory in [*scripts, user]:
        path = os.path.join(directory or "", "ebb")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("ebb")
    if found is None:
        raise EbbError("`ebb` is not installed: the wheel of `cargo xtask dist` brings it; or put its directory on PATH")
    return found


def cannot_execute(path: str, error: OSError) -> EbbError:
    """Why `ebb` does not start, for people."""
    machine = platform.machine()
    if machine != "x86_64":
        return EbbError(f"cannot execute {path}: it is for x86-64, and this machine is {machine}: build Ebbtide here")
    # The file is there: its loader is not.
    if isinstance(error, FileNotFoundError) and os.path.exists(path):
        return EbbError(
            f"cannot execute {path}: this system has no glibc, which ebb needs (musl has none): "
            "use an image of a distribution with glibc, such as Debian"
        )
    return EbbError(f"cannot execute {path}: {error.strerror}: `pip install --force-reinstall ebbtide`")


def running() -> bool:
    """Whether this process is managed by an `ebb run`."""
    if "EBB_CONTROL" not in os.environ:
        return False
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return any("libebb_preload.so" in line for line in maps)
    except OSError:
        return True


def ask(*words: str) -> str:
    """The answer of the `ebb run` that this process is under."""
    if not running():
        raise NotRunning(
            "this process is not under `ebb run`: start it with `python -m ebbtide`, or call "
            "`ebbtide.ensure()` first; in a notebook choose a kernel of `python -m ebbtide install-kernel`"
        )
    path = ebb_path()
    # Managed memory is not wanted there, and a second library would only cost time.
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "EBB_CONTROL")}
    try:
        done = subprocess.run(
            [path, *words], capture_output=True, text=True, env=environment, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise cannot_execute(path, error) from None
    if done.returncode != 0:
        raise EbbError(done.stderr.strip().removeprefix("ebb: ") or f"{path} ended with {done.returncode}")
    return done.stdout
