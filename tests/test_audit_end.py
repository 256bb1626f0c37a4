"""The audit of a run's end: how many steps an early end may state."""

from __future__ import annotations

from support.audit_logs import sound_log
from test_audit import audited, changed


def test_a_run_that_ends_early_may_overlook_its_last_step():
    log = sound_log()
    early = changed(log, len(log) - 1, steps=2, error="interrupted after 2 of 3 steps")
    assert not [fault for fault in audited(early).all_faults() if fault.check == "end"]
    too_many = changed(log, len(log) - 1, steps=4, error="interrupted after 4 of 3 steps")
    assert [fault.check for fault in audited(too_many).all_faults()] == ["end"]
