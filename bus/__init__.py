"""A typed message bus with a durable log, independent of reinforcement learning."""

from bus.base import Bus, Delivery, Envelope, History, LogSpan, Stamp, WorkQueue
from bus.memory import MemoryBus
from bus.message import Event, Message, MonitorEvent, Reply, Request, Telemetry, Work
from bus.recorded import Tape, TapeEntry, export_log, read_log, read_tape

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
