"""What a program asks of its tree."""

from __future__ import annotations

import builtins
import json
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Iterator, Mapping, NoReturn, Sequence

from ._command import EbbError, ask, cannot_execute, ebb_path, running
from ._figures import WAYS, Stats

#: Set for the program that `ensure` starts again: where that does not help, it is not tried for ever.
AGAIN = "EBBTIDE_ENSURED"


def stats() -> Stats:
    """The figures of the tree that this process is in."""
    return Stats.parse(json.loads(ask("stats", str(os.getpid()), "--json")))


def limit(memory: str | int) -> int:
    """Gives the tree another budget, like "3G"; returns it in bytes.

    A lower one is reached by swapping out. Where that is not enough, the budget stays, and the error says so.
    """
    answer = ask("limit", str(os.getpid()), "--memory", str(memory), "--json")
    return int(json.loads(answer)["memory_bytes"])


@dataclass
class Measured:
    """What a block cost; complete when the block has ended."""

    #: Faults by the way in which the page came.
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))
    #: Seconds that threads of the tree waited for them, all together.
    seconds_waited: float = 0.0
    #: Pages evicted.
    evicted: int = 0
    #: Bytes in use at the end, less those at the beginning.
    grown: int = 0

    def __str__(self) -> str:
        by_way = ", ".join(f"{count} {way}" for way, count in self.faults.items() if count)
        waited = f"waited {self.seconds_waited:.3f} s"
        return f"{by_way or 'no'} faults, {waited}, {self.evicted} pages evicted"


@contextmanager
def measure() -> Iterator[Measured]:
    """Measures what a block faults, and how long its tree waits for that. Other processes of the tree count too."""
    before = stats()
    measured = Measured()
    try:
        yield measured
    finally:
        after = stats()
        for way in WAYS:
            measured.faults[way] = after.faults[way].count - before.faults[way].count
        measured.seconds_waited = after.seconds_waited - before.seconds_waited
        measured.evicted = after.counters["evicted"] - before.counters["evicted"]
        measured.grown = after.used - before.used


def ensure(
    memory: str | int | None = None, *, swap: str | Sequence[str] = (), pool: str | None = None
) -> None:
    """Makes sure that this script runs under `ebb run`: where it does not, it is started again under it.

    To be called first, before anything has been done that must not be done twice. It returns at once where the
    script runs under `ebb run` already, whatever that one's budget is. A session in which somebody types is not
    started again: it would lose what it has.
    """
    if running():
        return
    refuse_sessions()
    # The process that started again became `ebb run`, our parent.
    if os.environ.get(AGAIN) == str(os.getppid()):
        raise EbbError("this Python cannot be managed, and `ebb run` has said why: is it static, or setuid?")
    os.environ[AGAIN] = str(os.getpid())
    execute([sys.executable, *own_arguments()], options(memory, swap, pool))


def options(memory: str | int | None, swap: str | Sequence[str], pool: str | None) -> list[str]:
    """As the words of `ebb run`."""
    words = [] if memory is None else ["--memory", str(memory)]
    for spec in [swap] if isinstance(swap, str) else swap:
        words += ["--swap", spec]
    return words if pool is None else [*words, "--pool", pool]


def refuse_sessions() -> None:
    """Raises where this is no script but a session."""
    in_ipython = "get_ipython" in vars(builtins)
    if in_ipython and "ipykernel" in sys.modules:
        raise EbbError("this is a notebook: choose a kernel of `python -m ebbtide install-kernel`")
    if hears_nobody() if in_ipython else not hasattr(sys, "ps1"):
        return
    raise EbbError("this is an interactive session: start it under `ebb run`, as `ebb run -- python`")


def hears_nobody() -> bool:
    """Whether IPython runs but a script here, after which it ends."""
    module = sys.modules.get("IPython.terminal.ipapp")
    application = getattr(module, "TerminalIPythonApp", None)
    return application is not None and application.initialized() and not application.instance().interact


def original_words() -> list[str]:
    """The words after the interpreter's name that started this program."""
    words = getattr(sys, "orig_argv", None)
    if words is None:  # Python 3.9
        with open("/proc/self/cmdline", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return list(words[1:])


def own_arguments() -> list[str]:
    """The words that start this script again."""
    if not sys.argv or sys.argv[0] in ("", "-"):
        raise EbbError("there is no script to start again: run `python -m ebbtide SCRIPT`, or `ebb run -- python`")
    return original_words()


def interpreter_options(words: Sequence[str]) -> list[str]:
    """The interpreter's own options, where `python OPTIONS -m ebbtide WORDS` started this program."""
    options = original_words()
    del options[len(options) - len(words) :]
    if options[-1:] == ["ebbtide"]:
        options[-2:] = ["".join(options[-2:])]
    if not options or not options[-1].endswith("mebbtide"):
        return []
    # Others may stand before the m: `-um ebbtide`.
    others = options.pop()[: -len("mebbtide")]
    return options if others == "-" else [*options, others]


def execute(command: Sequence[str], words: Sequence[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Becomes `ebb run` with that command."""
    path = ebb_path()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execve(path, [path, "run", *words, "--", *command], dict(environment or os.environ))
    except OSError as error:
        raise cannot_execute(path, error) from None
