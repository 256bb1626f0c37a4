"""Prints what a tracker holds of a run, read with the tracker's own library: `points` as [metric, step, value],
`config`, `status`."""

import json
import sys
from pathlib import Path


def tensorboard(runs, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import Status

    found = EventAccumulator(str(runs / name / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    points = [[tag, one.step, one.value] for tag in found.Tags()["scalars"] for one in found.Scalars(tag)]
    about = found.PluginTagToContent("hparams")
    began = metadata.parse_session_start_info_plugin_data(about[metadata.SESSION_START_INFO_TAG])
    ended = metadata.parse_session_end_info_plugin_data(about[metadata.SESSION_END_INFO_TAG])
    config = {name: getattr(value, value.WhichOneof("kind")) for name, value in began.hparams.items()}
    return {"points": points, "config": config, "status": Status.Name(ended.status)}


def mlflow(runs, name):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{runs / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("areal").experiment_id
    (run,) = [one for one in client.search_runs([experiment]) if one.info.run_name == name]
    points = [
        [metric, one.step, one.value]
        for metric in run.data.metrics
        for one in client.get_metric_history(run.info.run_id, metric)
    ]
    return {"points": points, "config": run.data.params, "status": run.info.status}


def trackio(runs, name):
    import os

    os.environ["TRACKIO_DIR"] = str(runs / "trackio")
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = [one for one in Api().runs("areal") if one.name == name]
    rows = SQLiteStorage.get_logs("areal", name, run_id=run.id)
    points = [
        [metric, row["step"], value]
        for row in rows
        for metric, value in row.items()
        if metric not in {"step", "timestamp"}
    ]
    return {"points": points, "config": run.config, "status": run.alerts()[0]["title"]}


def records(content):
    """Yields the records of W&B's file: parts of a LevelDB log, in blocks of 32 KiB, after a header of 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            yield record
            record = b""


def wandb(runs, name):
    from wandb.proto import wandb_internal_pb2

    points, config, status = [], {}, ""
    for file in sorted((runs / name / "wandb").glob("offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            row = {
                item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
                for item in record.history.item
            }
            points += [
                [metric, row["step"], value]
                for metric, value in row.items()
                if metric != "step" and not metric.startswith("_")
            ]
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            found = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.summary.update}
            status = found.get("status", status)
    return {"points": points, "config": config, "status": status}


if __name__ == "__main__":
    tracker, folder, run = sys.argv[1:]
    sys.stdout.write(json.dumps(globals()[tracker](Path(folder), run)))
