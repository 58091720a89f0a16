"""Timing of a workload's phases, reported on stderr as "phase NAME us_per_page N"."""

import sys
import time


class Phases:
    """Each `end` closes the phase that began with the one before."""

    def __init__(self, units):
        self.units = units
        self.start = time.monotonic()

    def end(self, name, units=None):
        now = time.monotonic()
        report(name, (now - self.start) / (units or self.units))
        self.start = now


def report(name, seconds):
    print(f"phase {name} us_per_page {seconds * 1e6:.3f}", file=sys.stderr)
