"""The tables `[log.redaction]` and `[log.retention]` of a recipe: what a served log never has, and what it loses."""

from __future__ import annotations

from areal_actors.core.config import Config, NonNegativeFloat


class RedactionSettings(Config):
    """`[log.redaction]`: texts that are never written, in sessions of external agents and in feedback on them.

    A session in which a rule matches is answered as ever, and neither its tokens nor its texts are kept; see
    docs/privacy.md.
    """

    rules: tuple[str, ...] = ()
    """Rules: `email`, `phone`, `credit_card`, `iban`, `ip_address`, `api_key`, or `path.py:function`, which is called
    with a text and returns the ranges to redact, as pairs of the first character and the one after the last."""
    patterns: dict[str, str] = {}
    """Further rules: a regular expression (of Python's `re`) by its name."""

    def is_on(self) -> bool:
        """Returns True if there is a rule."""
        return bool(self.rules or self.patterns)


class RetentionSettings(Config):
    """`[log.retention]`: age and size from which on sessions are deleted from the log of a served model.

    A session is deleted as a whole, oldest first, with all events before it; see docs/privacy.md.
    """

    days: NonNegativeFloat = 0.0
    """Age since its end, in days, at which a session is deleted; 0 for none."""
    gigabytes: NonNegativeFloat = 0.0
    """Size of the log in GB (10^9 bytes), large bodies included, beyond which the oldest sessions are deleted; 0 for
    any."""

    def is_on(self) -> bool:
        """Returns True if there is a limit."""
        return self.days > 0 or self.gigabytes > 0
