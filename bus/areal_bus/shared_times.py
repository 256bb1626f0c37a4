"""Times at which the periodic work of all processes of a machine is done together.

Each wake-up of an idle process costs more than the work that follows, and those of the server most. What recurs every
second or every third is therefore due at whole multiples of its interval on the machine's clock: the processes' pings
and heartbeats then arrive at the server together.
"""

from __future__ import annotations

import time
from typing import Final

_LEAST_SHARE: Final = 0.25
"""Share of the interval below which the next multiple is left out: a timer may end a little early."""


def seconds_to_next(interval: float, now: float | None = None) -> float:
    """Returns the seconds until the next multiple of an interval, between a quarter and five quarters of it.

    Args:
        interval: seconds, above 0.
        now: seconds since the epoch; the machine's time if it is omitted.
    """
    rest = interval - (time.time() if now is None else now) % interval
    return rest if rest >= _LEAST_SHARE * interval else rest + interval
