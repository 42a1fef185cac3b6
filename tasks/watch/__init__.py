"""Watching a server that is in use: its acceptance over time, and whether that fell for good."""

from tasks.watch.counters import Counters, read_counters
from tasks.watch.fall import Fall, Interval, fallen

__all__ = ["Counters", "Fall", "Interval", "fallen", "read_counters"]
