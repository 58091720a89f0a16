"""A real kernel, driven by jupyter_client as a frontend drives it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

LIMIT = 90


@pytest.fixture(scope="module", autouse=True)
def kernelspec(tmp_path_factory):
    """The kernelspec, where the frontend finds it."""
    prefix = tmp_path_factory.mktemp("prefix")
    command = [sys.executable, "-m", "ebbtide", "install-kernel", "--memory", "160M", "--prefix", str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spec = json.loads((prefix / "share/jupyter/kernels/ebbtide-160m/kernel.json").read_text())
    assert spec["argv"][1:3] == ["run", "--wrap"] and spec["display_name"] == "Python 3 (160M)"
    os.environ["JUPYTER_PATH"] = str(prefix / "share/jupyter")
    yield
    command = [sys.executable, "-m", "ebbtide", "remove-kernel", "--name", "ebbtide-160m", "--prefix", str(prefix)]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.fixture
def kernel():
    """A manager and a client of a kernel that runs."""
    manager = jupyter_client.KernelManager(kernel_name="ebbtide-160m")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code: str) -> tuple[str, str, dict]:
    """(standard output, text of the result, the reply) of a cell."""
    message = client.execute(code)
    out, result = "", ""
    end = time.monotonic() + LIMIT
    while True:
        got = client.get_iopub_msg(timeout=max(end - time.monotonic(), 1))
        if got["parent_header"].get("msg_id") != message:
            continue
        content = got["content"]
        if got["msg_type"] == "stream":
            out += content["text"]
        elif got["msg_type"] == "execute_result":
            result = content["data"]["text/plain"]
        elif got["msg_type"] == "status" and content["execution_state"] == "idle":
            break
    while True:
        reply = client.get_shell_msg(timeout=max(end - time.monotonic(), 1))
        if reply["parent_header"].get("msg_id") == message:
            return out, result, reply["content"]


def pid_of(client) -> int:
    return int(run(client, "import os; os.getpid()")[1])


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def until_gone(*pids: int) -> None:
    end = time.monotonic() + 30
    while any(map(lives, pids)):
        assert time.monotonic() < end, [pid for pid in pids if lives(pid)]
        time.sleep(0.05)


def test_a_notebook_finishes_in_less_memory_than_it_needs(kernel):
    _, client = kernel
    out, _, reply = run(client, "import os; kept = [os.urandom(64) * 64 for _ in range(300 * 256)]; print(len(kept))")
    assert reply["status"] == "ok" and out == "76800\n", reply
    out, _, reply = run(client, "%load_ext ebbtide\n%ebb")
    assert reply["status"] == "ok" and out.startswith("memory") and "160" in out and "it pages" in out, out
    out, result, reply = run(client, "%%ebb_stats\ntotal = sum(page[0] for page in kept)\ntotal > 0")
    assert result == "True" and "faults, waited" in out and not out.startswith("no faults"), (out, result, reply)
    out, _, reply = run(client, "%%ebb_stats\n1 / 0")
    assert reply["ename"] == "ZeroDivisionError" and "faults" in out, (out, reply)
    out, _, _ = run(client, "%ebb limit 240M\n%ebb")
    assert "240" in out.splitlines()[1], out
    out, _, _ = run(client, "%ebb limit 1K")
    assert "1K" in out, out


COUNT = """
import signal, subprocess, time
interrupts = 0
def count(*_):
    global interrupts
    interrupts += 1
signal.signal(signal.SIGINT, count)
print("ready", flush=True)
child = subprocess.run(["sleep", "20"])
for _ in range(20):
    time.sleep(0.05)
signal.signal(signal.SIGINT, signal.default_int_handler)
print(interrupts, child.returncode)
"""


def interrupted(manager, client, code: str) -> str:
    """The output of a cell that is interrupted once it has said "ready"."""
    message = client.execute(code)
    out = ""
    while True:
        got = client.get_iopub_msg(timeout=LIMIT)
        if got["parent_header"].get("msg_id") != message:
            continue
        if got["msg_type"] == "stream":
            first = not out
            out += got["content"]["text"]
            if first:
                time.sleep(0.3)
                manager.interrupt_kernel()
        elif got["msg_type"] == "error":
            out += got["content"]["ename"]
        elif got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
            client.get_shell_msg(timeout=LIMIT)
            return out


def test_an_interrupt_stops_the_cell_and_comes_once(kernel):
    manager, client = kernel
    loop = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)"
    assert interrupted(manager, client, loop) == "ready\nKeyboardInterrupt"
    # To the kernel, and to what the cell has started, as without `ebb`.
    assert interrupted(manager, client, COUNT) == f"ready\n1 {-signal.SIGINT}\n"
    assert run(client, "2 + 2")[1] == "4"


def test_restart_and_shutdown_leave_nothing_behind(kernel):
    manager, client = kernel
    start = "import subprocess; child = subprocess.Popen(['sleep', '300']); child.pid"
    first, child = pid_of(client), int(run(client, start)[1])
    ebb = manager.provisioner.pid
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=LIMIT)
    until_gone(first, ebb, child)
    second = pid_of(client)
    assert run(client, "import ebbtide; ebbtide.running()")[1] == "True"
    ebb = manager.provisioner.pid
    manager.shutdown_kernel()
    until_gone(second, ebb)


FRONTEND = """
import sys, time, jupyter_client
manager = jupyter_client.KernelManager(kernel_name="ebbtide-160m")
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=90)
message = client.execute("import os; print(os.getpid(), os.environ['JPY_PARENT_PID'], os.getppid())")
while True:
    got = client.get_iopub_msg(timeout=90)
    if got["msg_type"] == "stream":
        print(got["content"]["text"], end="", flush=True)
        break
time.sleep(300)
"""


def test_a_frontend_that_dies_takes_the_kernel_with_it():
    frontend = subprocess.Popen([sys.executable, "-c", FRONTEND], stdout=subprocess.PIPE, text=True)
    try:
        kernel, named, parent = map(int, frontend.stdout.readline().split())
        assert named == parent, "the parent that the kernel watches is its own"
        assert lives(kernel)
    finally:
        frontend.kill()
        frontend.wait()
    until_gone(kernel, parent)
