"""Counts of episodes as each reader of a log has them."""

from __future__ import annotations

import io
import json
import re
from collections import Counter

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from support.audit_logs import given_up

from areal_actors.audit.fold import AuditFold
from areal_actors.audit.report import report
from areal_actors.display.prometheus import RunCollector
from areal_actors.display.summary import summary
from areal_actors.display.view import RunView
from areal_actors.history import History
from areal_actors.history.counts import count_episodes
from areal_actors.history.database import DATABASE, open_database
from areal_actors.reader import open_run
from areal_actors.reader.episode_page import EpisodeFilter, show
from areal_actors.track.traces import Traces
from areal_actors.web.tables import PageTables
from areal_bus.recorded import LogWriter


def abandoned(episode, reason, attempts_left=0, attempt=1):
    event = given_up(episode, attempts_left, attempt)
    return msgspec.structs.replace(event, reason=reason, detail=f"because of {reason}")


def run_state(log):
    view = RunView()
    for envelope in log:
        view.receive(envelope)
    return view.state


def of_counts(counts):
    return {
        "episodes": counts.episodes,
        "exported": counts.exported,
        "evaluated": counts.evaluated,
        "failures": counts.failures(),
        "given up": counts.given_up,
        "rejected": counts.rejected,
        "surplus": counts.surplus(),
    }


def of_summary(log, _):
    """From the text of the summary; what it does not name is zero."""
    screen = io.StringIO()
    Console(file=screen, width=2000).print(summary(run_state(log), []))
    text = screen.getvalue()
    find = lambda pattern: sum(int(number.replace(",", "")) for number in re.findall(pattern, text))  # noqa: E731
    return {
        "exported": find(r"([\d,]+) episodes exported"),
        "failures": find(r"([\d,]+) attempts? abandoned \("),
        "given up": find(r"([\d,]+) episodes? given up"),
        "rejected": find(r"([\d,]+) rejected by the recipe"),
        "surplus": find(r"([\d,]+) surplus \("),
    }


def of_prometheus(log, _):
    registry = CollectorRegistry()
    state = run_state(log)
    registry.register(RunCollector(lambda: state))
    totals = Counter()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            totals[sample.name] += sample.value
    names = {
        "episodes": "areal_episodes_ended_total",
        "exported": "areal_trajectories_exported_total",
        "failures": "areal_attempts_abandoned_total",
        "given up": "areal_episodes_given_up_total",
        "rejected": "areal_attempts_rejected_total",
        "surplus": "areal_episodes_surplus_total",
    }
    return {name: totals[metric] for name, metric in names.items()}


def of_audit(log, _):
    fold = AuditFold()
    for envelope in log:
        fold.receive(envelope)
    text = report(fold.audit)
    (line,) = re.findall(r"^episodes +(.*)$", text, re.MULTILINE)
    find = lambda pattern: sum(int(number.replace(",", "")) for number in re.findall(pattern, line))  # noqa: E731
    trajectories = int(re.findall(r"^trajectories +([\d,]+) exported", text, re.MULTILINE)[0].replace(",", ""))
    assert trajectories == find(r"([\d,]+) exported")
    return {
        "episodes": find(r"^([\d,]+) ended"),
        "exported": trajectories,
        "evaluated": find(r"([\d,]+) evaluated"),
        "failures": find(r"failed attempts: ([\d,]+)"),
        "given up": find(r"([\d,]+) given up"),
        "surplus": find(r"([\d,]+) surplus") + fold.audit.groups.dropped_for.get("surplus", 0),
    }


def of_page(log, _):
    """From the rows that the page counts; an episode has ended if its newest attempt has."""
    tables = PageTables(History.in_memory())
    for envelope in log:
        tables.history.receive(envelope)
    rows = tables.episodes("true")
    newest = {row.name: row for row in rows}
    counts = _of_rows([(row.outcome, bool(row.dropped) and row.reason) for row in rows if row.ended])
    return counts | {"episodes": sum(bool(row.ended) for row in newest.values())}


def of_show(log, folder):
    screen = io.StringIO()
    chosen = EpisodeFilter(last=1_000_000)
    show(
        str(write_log_file(log, folder)),
        folder=folder,
        chosen=chosen,
        as_json=True,
        console=Console(file=screen, width=100),
    )
    rows = [json.loads(line) for line in screen.getvalue().splitlines()]
    return _of_rows([(row["outcome"], row["reason"]) for row in rows])


def of_open_run(log, folder):
    return of_counts(open_run(write_log_file(log, folder)).state.episodes)


def of_database(log, folder):
    """From a database that was written in three parts."""
    counts, third = None, max(len(log) // 3, 1)
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / DATABASE).unlink(missing_ok=True)
    for part in range(0, len(log), third):
        with open_database(folder / "run") as history:
            assert history.progress.last == (log[part - 1].sequence if part else 0)
            for envelope in log[part : part + third]:
                history.receive(envelope)
            history.commit()
            counts = count_episodes(history)
            history.close()
    assert counts.repeated == run_state(log).episodes.repeated
    return of_counts(counts)


def of_traces(log, _):
    """From the roots of the spans: an error is a failure."""
    traces, roots = Traces(), []
    for envelope in log:
        roots += [span for span in traces.receive(envelope) if span.name == "episode"]
    assert all(bool(span.error) == (span.attributes["areal.outcome"] == "abandoned") for span in roots)
    found = Counter(span.attributes["areal.outcome"] for span in roots)
    return {
        "exported": found["exported"],
        "evaluated": found["evaluated"],
        "failures": found["abandoned"],
        "rejected": found["rejected"],
    }


def _of_rows(rows):
    outcomes = Counter(outcome for outcome, _ in rows)
    return {
        "exported": outcomes["exported"],
        "evaluated": outcomes["evaluated"],
        "failures": outcomes["abandoned"],
        "rejected": outcomes["rejected"],
        "surplus": outcomes["surplus"] + sum(row == ("exported", "surplus") for row in rows),
    }


def write_log_file(log, folder):
    """The log as an exported file."""
    path = folder / "run.log"
    with LogWriter(path, "a") as file:
        for envelope in log:
            file.write(envelope)
    return path


READERS = {
    "summary": of_summary,
    "Prometheus": of_prometheus,
    "audit": of_audit,
    "page": of_page,
    "show": of_show,
    "open_run": of_open_run,
    "database": of_database,
    "traces": of_traces,
}
