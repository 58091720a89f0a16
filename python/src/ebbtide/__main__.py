"""`python -m ebbtide [-m 2G] SCRIPT`, and the kernels of Jupyter."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn, Sequence

from . import _kernel
from ._command import EbbError
from ._tree import execute, interpreter_options, options

RUN = """\
usage: python -m ebbtide [-m SIZE] [-s SPEC]... [--pool CODEC] SCRIPT [ARG...]
       python -m ebbtide [-m SIZE] [...] (-m MODULE | -c CODE) [ARG...]
       python -m ebbtide install-kernel [--memory SIZE] [--name NAME] [...]
       python -m ebbtide remove-kernel --name NAME

Runs a Python script in less memory than it needs: `ebb run -- python SCRIPT`.

  -m, --memory SIZE   memory for the script and all it starts: 512M, 2G, 50%
  -s, --swap SPEC     where cold pages go; `ebb run --help` tells more
  --pool CODEC        lz4, zstd, lz4+zstd, none

A second -m, or one that is followed by no size, is Python's own: a module.
"""


def is_size(word: str) -> bool:
    """Whether a word is a size and no module's name."""
    return word[:1].isdigit()


def run(words: list[str]) -> NoReturn:
    """Becomes `ebb run` with this Python, and its options."""
    python = [sys.executable, *interpreter_options(words)]
    memory, swap, pool = None, [], None
    while words:
        word, separator, value = words[0].partition("=")
        long = word in ("--memory", "--swap", "--pool")
        if not long and (word not in ("-m", "-s") or separator):
            break
        if not separator:
            if len(words) < 2:
                raise EbbError(f"{word} needs a value: `python -m ebbtide --help`")
            value = words[1]
        if word == "-m" and (memory is not None or not is_size(value)):
            break  # a module
        if word in ("-m", "--memory"):
            memory = value
        elif word in ("-s", "--swap"):
            swap.append(value)
        else:
            pool = value
        del words[: 1 if separator else 2]
    if not words:
        raise EbbError("name a script: `python -m ebbtide --help`")
    execute([*python, *words], options(memory, swap, pool))


def install_kernel(words: list[str]) -> None:
    """Writes a kernelspec."""
    parser = argparse.ArgumentParser(
        prog="python -m ebbtide install-kernel",
        description="Gives Jupyter a kernel of this Python that runs in less memory than it needs.",
    )
    parser.add_argument("-m", "--memory", metavar="SIZE", help="memory for the kernel and all it starts")
    parser.add_argument("-s", "--swap", metavar="SPEC", action="append", default=[], help="where cold pages go")
    parser.add_argument("--pool", metavar="CODEC", help="compression in RAM")
    parser.add_argument("--name", help="of the kernel; default: ebbtide, and the memory")
    parser.add_argument("--display-name", metavar="TEXT", help="what people see")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for you; the default outside virtual environments")
    where.add_argument("--sys-prefix", action="store_true", help="for this environment; the default inside one")
    where.add_argument("--prefix", metavar="DIRECTORY", help="below DIRECTORY/share/jupyter")
    args = parser.parse_args(words)
    spec = _kernel.spec(options(args.memory, args.swap, args.pool), args.memory, args.display_name)
    name = args.name or _kernel.name(args.memory)
    directory = _kernel.directory(prefix=args.prefix, user=args.user, own=args.sys_prefix)
    path = _kernel.install(spec, name, directory)
    print(f'kernel "{spec["display_name"]}" is in {path}; `python -m ebbtide remove-kernel --name {name}` removes it')


def remove_kernel(words: list[str]) -> None:
    """Removes a kernelspec that `install-kernel` wrote."""
    parser = argparse.ArgumentParser(prog="python -m ebbtide remove-kernel")
    parser.add_argument("--name", required=True)
    parser.add_argument("--prefix", metavar="DIRECTORY")
    args = parser.parse_args(words)
    print(f"removed {_kernel.remove(args.name, args.prefix)}")


def main(words: Sequence[str]) -> None:
    """The words after `python -m ebbtide`."""
    rest = list(words)
    if not rest or rest[0] in ("-h", "--help"):
        print(RUN, end="")
    elif rest[0] == "install-kernel":
        install_kernel(rest[1:])
    elif rest[0] == "remove-kernel":
        remove_kernel(rest[1:])
    else:
        run(rest)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except EbbError as error:
        sys.exit(f"ebbtide: {error}")
