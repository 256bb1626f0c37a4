"""Ten data sets in the shapes in which others publish them, with sums of the embedded model as their content."""

from __future__ import annotations

import csv
import gzip
import io
import json

from areal_actors.tasks import arithmetic

ROWS = [dict(row) for row in arithmetic.rows("train", 24, 5)]


def _final(row):
    return int(row["answer"].rpartition("####")[2].replace(",", ""))


def _jsonl(rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _table(rows, delimiter):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def user(row, **more):
    return [{"role": "user", "content": row["question"], **more}]


VERL = [
    {
        "data_source": "sums",
        "prompt": user(row),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(_final(row))},
        "extra_info": {"split": "train", "index": number},
    }
    for number, row in enumerate(ROWS)
]
NAMED = 'columns = { index = "extra_info.index" }\n'

DATASETS = {
    "verl": (
        "rows.jsonl",
        _jsonl(VERL),
        NAMED,
        "question = `prompt` (chat messages), answer = `reward_model.ground_truth`",
    ),
    "dapo": (
        "rows.json.gz",
        gzip.compress(
            json.dumps(
                [
                    {**row, "source_prompt": row["prompt"], "solution": row["reward_model"]["ground_truth"]}
                    for row in VERL
                ]
            ).encode()
        ),
        "",
        "question = `prompt` (chat messages), answer = `reward_model.ground_truth`",
    ),
    "trl prompts": (
        "rows.jsonl.gz",
        gzip.compress(_jsonl([{"prompt": row["question"], "ground_truth": _final(row)} for row in ROWS])),
        "",
        "question = `prompt`, answer = `ground_truth`",
    ),
    "trl conversations": (
        "rows.json",
        json.dumps({"data": [{"prompt": user(row), "solution": row["answer"]} for row in ROWS]}).encode(),
        "",
        "question = `prompt` (chat messages), answer = `solution`",
    ),
    "openai messages": (
        "rows.jsonl",
        _jsonl([{"messages": [*user(row), {"role": "assistant", "content": row["answer"]}]} for row in ROWS]),
        "",
        "question = `messages` (chat messages), answer = what follows the last message of the user",
    ),
    "openai reinforcement": (
        "rows.jsonl",
        _jsonl([{"messages": user(row), "reference_answer": _final(row) / 1} for row in ROWS]),
        "",
        "question = `messages` (chat messages), answer = `reference_answer`",
    ),
    "sharegpt": (
        "rows.json",
        json.dumps(
            [
                {
                    "id": str(n),
                    "conversations": [
                        {"from": "human", "value": row["question"]},
                        {"from": "gpt", "value": row["answer"]},
                    ],
                }
                for n, row in enumerate(ROWS)
            ]
        ).encode(),
        "",
        "question = `conversations` (chat messages), answer = what follows the last message of the user",
    ),
    "numbers": ("rows.jsonl", _jsonl([{"question": row["question"], "answer": _final(row)} for row in ROWS]), "", ""),
    "lists": (
        "rows.jsonl",
        _jsonl([{"problem": row["question"], "answer": [str(_final(row))]} for row in ROWS]),
        "",
        "question = `problem`",
    ),
    "csv": (
        "rows.csv",
        _table([{"problem": row["question"], "final_answer": _final(row)} for row in ROWS], ","),
        "",
        "question = `problem`, answer = `final_answer`",
    ),
    "tsv": (
        "rows.tsv",
        _table([{"task": row["question"], "result": _final(row)} for row in ROWS], "\t"),
        'columns = { question = "task", answer = "result" }\n',
        "",
    ),
}
"""File name, content, settings of `[task]`, and the columns that are recognised, by name of the shape."""
