"""A typed message bus with a durable log, independent of reinforcement learning."""

from areal_bus.base import Bus, Delivery, Envelope, History, LogSpan, Stamp, WorkQueue
from areal_bus.memory import MemoryBus
from areal_bus.message import Event, Message, MonitorEvent, Reply, Request, Telemetry, Work
from areal_bus.recorded import Tape, TapeEntry, export_log, read_log, read_tape

__version__ = "0.2.0"

__all__ = [
    "Bus",
    "Delivery",
    "Envelope",
    "Event",
    "History",
    "LogSpan",
    "MemoryBus",
    "Message",
    "MonitorEvent",
    "Reply",
    "Request",
    "Stamp",
    "Tape",
    "TapeEntry",
    "Telemetry",
    "Work",
    "WorkQueue",
    "export_log",
    "read_log",
    "read_tape",
]
