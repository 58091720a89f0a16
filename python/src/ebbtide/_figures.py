"""The figures of a tree, as `ebb stats --json` gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

#: Where a page came from: memory never touched before, a page still in RAM, the pool, a device.
WAYS = ("zero", "cache", "pool", "device")


def human(size: int) -> str:
    """A size for people."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"


@dataclass(frozen=True)
class Fault:
    """Faults of one way."""

    count: int
    #: Seconds that threads waited for them, all together.
    seconds: float
    #: Half of them took no longer, in seconds.
    median: float
    #: 99% of them took no longer, in seconds.
    p99: float


@dataclass(frozen=True)
class Device:
    """A swap device."""

    path: str
    size: int
    used: int


@dataclass(frozen=True)
class Stats:
    """The figures of the whole tree now; sizes in bytes."""

    #: What the tree may use.
    budget: int
    #: What it uses: resident memory, pool, staging and bookkeeping.
    used: int
    #: The most that it used.
    peak: int
    #: Resident pages of its programs, and the tables of their pagers.
    resident: int
    #: Captured pages that have no place yet.
    staging: int
    #: Compressed pages in RAM.
    pool: int
    #: Memory that cannot be paged: unmanaged programs, stacks, code.
    unmanaged: int
    #: Compressed pages on devices.
    device: int
    #: Whether it has begun to page.
    paging: bool
    #: Managed processes.
    processes: int
    #: Faults by the way in which the page came.
    faults: Mapping[str, Fault]
    devices: tuple[Device, ...]
    #: Counters with the kernel's names.
    counters: Mapping[str, int]

    @property
    def seconds_waited(self) -> float:
        """Seconds that threads waited for pages, all together."""
        return sum(fault.seconds for fault in self.faults.values())

    @staticmethod
    def parse(answer: Mapping[str, Any]) -> Stats:
        """From the answer of `ebb stats --json`."""
        latency = answer["fault_latency"]
        faults = {
            way: Fault(
                count=latency[way]["count"],
                seconds=latency[way]["sum_ns"] / 1e9,
                median=latency[way]["p50_ns"] / 1e9,
                p99=latency[way]["p99_ns"] / 1e9,
            )
            for way in WAYS
        }
        others = [answer[f"{part}_bytes"] for part in ("staging", "pool", "unmanaged")]
        devices = tuple(Device(d["path"], d["size_bytes"], d["used_bytes"]) for d in answer["devices"])
        return Stats(
            budget=answer["budget_bytes"],
            used=answer["used_bytes"],
            peak=answer["peak_bytes"],
            resident=max(answer["used_bytes"] - sum(others), 0),
            staging=answer["staging_bytes"],
            pool=answer["pool_bytes"],
            unmanaged=answer["unmanaged_bytes"],
            device=sum(device.used for device in devices),
            paging=answer["paged"],
            processes=len(answer["members"]),
            faults=faults,
            devices=devices,
            counters=answer["counters"],
        )

    def __str__(self) -> str:
        state = "it pages" if self.paging else "it does not page yet"
        text = (
            f"memory  {human(self.used)} of {human(self.budget)}, {state}\n"
            f"pool    {human(self.pool)}\n"
            f"device  {human(self.device)}"
        )
        if self.paging:
            text += f"\nwaited  {self.seconds_waited:.2f} s for {sum(f.count for f in self.faults.values())} faults"
        return text
