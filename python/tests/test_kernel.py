"""A real kernel, driven by jupyter_client as a frontend drives it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

LIMIT = 90


#: Needs some 300 MiB, nearly all of which compresses well.
HOLDS = "import os; kept = [os.urandom(64) * 64 for _ in range(300 * 256)]; print(len(kept))"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m ebbtide` with these words."""
    line = [sys.executable, "-m", "ebbtide", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory):
    """The directory of kernelspecs that the frontend looks in, with ours."""
    prefix = tmp_path_factory.mktemp("prefix")
    kernels = prefix / "share/jupyter/kernels"
    done = command("install-kernel", "--memory", "160M", "--prefix", str(prefix))
    assert done.returncode == 0, done.stderr
    spec = json.loads((kernels / "ebbtide-160m/kernel.json").read_text())
    assert spec["argv"][1:3] == ["run", "--wrap"] and spec["display_name"] == "Python 3 (160M)"
    os.environ["JUPYTER_PATH"] = str(prefix / "share/jupyter")
    yield kernels
    assert command("remove-kernel", "--name", "ebbtide-160m", "--prefix", str(prefix)).returncode == 0


def command_line(kernels: Path) -> tuple[list[str], list[str]]:
    """The words that start our kernel, and those of its own behind `ebb run`."""
    words = json.loads((kernels / "ebbtide-160m/kernel.json").read_text())["argv"]
    return words, words[words.index("--") + 1 :]


def put(kernels: Path, name: str, words: list[str]) -> None:
    """Writes the kernelspec of a kernel that these words start."""
    (kernels / name).mkdir()
    spec = {"argv": words, "display_name": name, "language": "python"}
    (kernels / name / "kernel.json").write_text(json.dumps(spec))


@contextmanager
def started(name: str):
    """A manager and a client of a kernel that runs."""
    manager = jupyter_client.KernelManager(kernel_name=name)
    manager.start_kernel()
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=LIMIT)
        yield manager, client
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel():
    """A manager and a client of our kernel."""
    with started("ebbtide-160m") as both:
        yield both


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
    out, _, reply = run(client, HOLDS)
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


class Group:
    """A memory cgroup that kills what has more."""

    def __init__(self, limit: int):
        first = Path("/sys/fs/cgroup/memory")
        self.first = (first / "memory.limit_in_bytes").exists()
        top = first if self.first else Path("/sys/fs/cgroup")
        self.path = top / f"ebbtide-kernel-{os.getpid()}"
        self.path.mkdir()
        try:
            (self.path / ("memory.limit_in_bytes" if self.first else "memory.max")).write_text(str(limit))
        except OSError:
            self.path.rmdir()
            raise
        swap = self.path / ("memory.swappiness" if self.first else "memory.swap.max")
        # Absent where the kernel has no swap at all, which is just as well.
        if swap.exists():
            swap.write_text("0")

    def behind(self, words: list[str]) -> list[str]:
        """A command line that runs these words in the group."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *words]

    def kills(self) -> int:
        """Processes that were killed for memory."""
        text = (self.path / ("memory.oom_control" if self.first else "memory.events")).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def remove(self) -> None:
        """Removes the group once its processes have ended."""
        end = time.monotonic() + 30
        while True:
            try:
                return self.path.rmdir()
            except OSError:
                assert time.monotonic() < end, (self.path / "cgroup.procs").read_text()
                time.sleep(0.05)


@pytest.fixture
def group():
    """A memory cgroup for the budget of our kernel and what `ebb run` may take beside it."""
    try:
        group = Group(208 << 20)
    except OSError as error:
        pytest.skip(f"no memory cgroup: {error}")
    yield group
    group.remove()


def test_a_notebook_finishes_where_another_kernel_is_killed(kernels, group):
    ours, plain = command_line(kernels)
    put(kernels, "limited", group.behind(ours))
    put(kernels, "killed", group.behind(plain))
    with started("limited") as (_, client):
        out, _, reply = run(client, HOLDS)
        assert reply["status"] == "ok" and out == "76800\n", reply
        assert group.kills() == 0
    with started("killed") as (manager, client):
        client.execute(HOLDS)
        end = time.monotonic() + LIMIT
        while group.kills() == 0 or manager.is_alive():
            assert time.monotonic() < end, "it was not killed"
            time.sleep(0.05)


def test_another_kernel_names_the_next_step_and_is_not_replaced(kernels):
    put(kernels, "plain", command_line(kernels)[1])
    with started("plain") as (_, client):
        out, _, reply = run(client, "%load_ext ebbtide\n%ebb")
        assert reply["status"] == "ok" and "python -m ebbtide install-kernel" in out, (out, reply)
        out, _, reply = run(client, "%%ebb_stats\nprint('never')")
        assert reply["ename"] == "NotRunning" and "python -m ebbtide install-kernel" in reply["evalue"], reply
        assert out == "", out
        _, _, reply = run(client, "kept = 1\nimport ebbtide\nebbtide.ensure()")
        assert "choose a kernel of `python -m ebbtide install-kernel`" in reply["evalue"], reply
        assert run(client, "kept")[1] == "1"


def test_a_kernel_by_a_name_of_its_own(tmp_path):
    where = ("--prefix", str(tmp_path), "--name")
    kernels = tmp_path / "share/jupyter/kernels"
    # Again: our own is replaced.
    for shown in ("Mine", "Still mine"):
        done = command("install-kernel", "--display-name", shown, *where, "mine")
        assert done.returncode == 0 and "--name mine" in done.stdout, done
        spec = json.loads((kernels / "mine/kernel.json").read_text())
        assert spec["display_name"] == shown and os.listdir(kernels) == ["mine"]
    put(kernels, "theirs", ["python3"])
    theirs = (kernels / "theirs/kernel.json").read_text()
    for name, says in (("a b", "letters, digits"), ("../up", "letters, digits"), ("theirs", "give another --name")):
        done = command("install-kernel", *where, name)
        assert done.returncode != 0 and says in done.stderr, done
    done = command("remove-kernel", *where, "theirs")
    assert done.returncode != 0 and "no kernel theirs of ebbtide" in done.stderr, done
    assert (kernels / "theirs/kernel.json").read_text() == theirs
    assert command("remove-kernel", *where, "mine").returncode == 0
    assert os.listdir(kernels) == ["theirs"]


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
