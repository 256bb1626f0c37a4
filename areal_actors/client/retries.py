"""Retries of failed calls: for which errors, and after how long, as the OpenAI SDK has it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from email.utils import mktime_tz, parsedate_tz

from areal_actors.client.errors import APIConnectionError, APIError, APIStatusError

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 8.0
"""Wait before the first retry, doubled for each further one, and its maximum."""
JITTER = 0.25
LONGEST_ASKED_SECONDS = 120.0
"""Longest wait that a server may ask for; a call that would have to wait longer is not sent again."""
RETRIED = frozenset({408, 409, 429})
"""Statuses after which a call is sent again, besides those from 500 on."""


def seconds_before_retry(error: APIError, retries: int) -> float | None:
    """Return the wait before a call is sent again after this number of retries; None if it is not sent again."""
    asked = None
    if isinstance(error, APIStatusError):
        asked = _asked_seconds(error.headers)
        if asked is not None and math.isfinite(asked) and asked > LONGEST_ASKED_SECONDS:
            return None
        wanted = error.headers.get("x-should-retry")
        if wanted == "false" or (wanted != "true" and error.status_code not in RETRIED and error.status_code < 500):
            return None
    elif not isinstance(error, APIConnectionError):
        return None
    if asked is not None and 0 < asked <= LONGEST_ASKED_SECONDS:
        return asked
    return float(min(FIRST_SECONDS * 2 ** min(retries, 10), LONGEST_SECONDS) * (1 - JITTER * random.random()))


def _asked_seconds(headers: Mapping[str, str]) -> float | None:
    """The wait that the server asks for: in milliseconds, in seconds, or until a date."""
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            return float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
    date = parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else mktime_tz(date) - time.time()
