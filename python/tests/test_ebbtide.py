"""The package as it is installed: each test runs a Python of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ebbtide

HELD = "kept = [os.urandom(4096) * 1 for _ in range({mib} * 256)]"


def python(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these words, and a time limit."""
    environment = {**os.environ, **variables}
    command = ["timeout", "-k1", "100", sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def script(tmp_path, text: str):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_outside_ebb_run_each_call_says_so():
    assert not ebbtide.running()
    for call in (ebbtide.stats, lambda: ebbtide.limit("1G"), lambda: ebbtide.measure().__enter__()):
        with pytest.raises(ebbtide.NotRunning, match="python -m ebbtide"):
            call()


def test_a_script_in_half_its_memory(tmp_path):
    path = script(
        tmp_path,
        """
        import os, sys, ebbtide
        kept = [os.urandom(64) * 64 for _ in range(96 * 256)]
        with ebbtide.measure() as m:
            total = sum(page[0] for page in kept)
        now = ebbtide.stats()
        assert now.budget == 48 << 20 and now.used <= now.budget + (48 << 20), now
        assert now.paging and now.pool > 0 and now.unmanaged > 0, now
        assert now.resident + now.staging + now.pool + now.unmanaged == now.used, now
        assert m.faults["pool"] + m.faults["device"] > 0 and m.seconds_waited > 0, m
        assert now.seconds_waited >= m.seconds_waited and now.counters["fault"] > 0, now
        assert str(now).startswith("memory") and "faults" in str(m)
        assert ebbtide.limit(memory="64M") == 64 << 20 and ebbtide.stats().budget == 64 << 20
        try:
            ebbtide.limit(memory="4K")
        except ebbtide.EbbError as error:
            assert "4K" in str(error), error
        else:
            raise AssertionError("4K was taken")
        print(sys.argv[1:], len(kept))
        """,
    )
    done = python("-m", "ebbtide", "-m", "48M", path, "-m", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['-m', 'a b'] 24576\n"


def test_the_status_and_the_kinds_of_program(tmp_path):
    path = script(tmp_path, "import sys; sys.exit(7)")
    assert python("-m", "ebbtide", path).returncode == 7
    say = "import ebbtide; print(ebbtide.running())"
    assert python("-m", "ebbtide", "--memory=64M", "-c", say).stdout == "True\n"
    module = python("-m", "ebbtide", "-m", "64M", "-m", "platform", "terse")
    assert module.returncode == 0 and "glibc" in module.stdout
    assert python("-m", "ebbtide", "-m", "platform", "terse").returncode == 0
    for words, says in ((["-m", "banana-2"], "No module"), (["-m"], "needs a value"), (["-m", "1G"], "name a script")):
        done = python("-m", "ebbtide", *words)
        assert done.returncode != 0 and says in done.stderr, done.stderr


def test_the_interpreters_options_stay():
    say = "import sys; print(sys.flags.optimize, sys.warnoptions, sys._xoptions, sys.stdout.write_through)"
    options = ("-O", "-W", "ignore", "-X", "utf8")
    for module in (("-m", "ebbtide"), ("-um", "ebbtide"), ("-umebbtide",)):
        with_u = str(module[0].startswith("-u"))
        done = python(*options, *module, "-m", "64M", "-c", say, PYTHONUNBUFFERED="")
        assert done.stdout == f"1 ['ignore'] {{'utf8': True}} {with_u}\n", done.stderr
    assert python("-m", "ebbtide", "-c", say, PYTHONUNBUFFERED="").stdout == "0 [] {} False\n"


def test_ensure_starts_no_session_again(tmp_path):
    def typed(text: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["timeout", "-k1", "100", sys.executable, "-i", *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    done = typed("kept = 1\nimport ebbtide\nebbtide.ensure()\nkept\n")
    assert done.stdout == "1\n" and "this is an interactive session" in done.stderr, done
    # A script before the prompt is started again, and nothing is lost.
    path = script(tmp_path, "import ebbtide; ebbtide.ensure(); print(ebbtide.running())")
    assert typed("'prompt'\n", path).stdout == "True\n'prompt'\n"


def test_ensure_starts_scripts_of_ipython_again(tmp_path):
    pytest.importorskip("IPython")
    path = script(tmp_path, "import ebbtide; ebbtide.ensure(); print(ebbtide.running())")
    environment = {"IPYTHONDIR": str(tmp_path / "ipython")}
    done = python("-m", "IPython", path, **environment)
    assert done.stdout == "True\n", done
    done = python("-m", "IPython", "--simple-prompt", "-i", path, **environment)
    assert "this is an interactive session" in done.stdout + done.stderr, done


def test_ensure_starts_the_script_again_once(tmp_path):
    path = script(
        tmp_path,
        """
        import os, sys, ebbtide
        print("begins", flush=True)
        ebbtide.ensure(memory="64M", pool="zstd")
        ebbtide.ensure(memory="32M")
        print(ebbtide.stats().budget >> 20, sys.argv[1:], sys.flags.optimize, flush=True)
        """,
    )
    done = python("-O", path, "--flag", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "begins\nbegins\n64 ['--flag', 'a b'] 1\n"
    refused = subprocess.run(
        [sys.executable], input="import ebbtide; ebbtide.ensure()", capture_output=True, text=True, check=False
    )
    assert "no script to start again" in refused.stderr


def test_a_program_that_cannot_be_started_says_why(tmp_path):
    # As on a system without glibc: the command is there, its loader is not.
    loader = b"/lib64/ld-linux-x86-64.so.2\0"
    whole = Path(ebbtide.ebb_path()).read_bytes()
    assert loader in whole
    ebb = tmp_path / "ebb"
    ebb.write_bytes(whole.replace(loader, b"/lib64/ld-linux-x86-64.so.0\0", 1))
    ebb.chmod(0o755)
    say = f"import ebbtide._tree as t; t.ebb_path = lambda: {str(ebb)!r}; t.ensure()"
    path = script(tmp_path, say)
    done = python(path)
    assert "no glibc" in done.stderr and "Debian" in done.stderr, done.stderr


def test_the_package_is_typed_and_needs_nothing():
    import importlib.metadata as metadata

    assert not metadata.requires("ebbtide")
    names = {str(file) for file in metadata.files("ebbtide") or ()}
    assert "ebbtide/py.typed" in names
    assert os.path.dirname(ebbtide.ebb_path()) == os.path.dirname(sys.executable)
    library = os.path.join(sys.prefix, "lib/ebb/libebb_preload.so")
    assert os.path.exists(library)
    doctor = subprocess.run([ebbtide.ebb_path(), "doctor", "--json"], capture_output=True, check=False)
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert os.path.samefile(checks["preload-library"]["detail"], library)
