"""The reward for JSON that satisfies a schema."""

import json
import sys
import time

import pytest

from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.rewards import json_schema, resolve_reward
from areal_actors.rewards.json_schema import JsonSchema

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANN = '{"name": "Ann", "age": 7}'


@pytest.mark.parametrize(
    ("output", "reward", "partial"),
    [
        (ANN, 1.0, 1.0),
        (f"  {ANN}\n", 1.0, 1.0),
        (f"```json\n{ANN}\n```", 1.0, 1.0),
        (f"```\n{ANN}\n```\n", 1.0, 1.0),
        (f"Here: {ANN}", 0.0, 0.0),
        (f"{ANN} {ANN}", 0.0, 0.0),
        ('{"name": "Ann"}', 0.0, 1 / 3),
        ('{"name": "Ann", "age": -1}', 0.0, 1 / 3),
        ('{"name": "Ann", "age": "7", "tags": []}', 0.0, 2 / 3),
        ('{"name": "Ann", "age": 7, "more": 1}', 0.0, 2 / 3),
        ('{"name": "Ann", "age": NaN}', 0.0, 0.0),
        ('{"name": "Ann", "age": ' + "9" * 5000 + "}", 0.0, 0.0),
        ("[" * 100_000 + "]" * 100_000, 0.0, 0.0),
        ("[" * 200 + "]" * 200, 0.0, 0.0),
        ("[]", 0.0, 0.0),
        ("null", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("{'name': 'Ann', 'age': 7}", 0.0, 0.0),
    ],
)
def test_an_answer_that_satisfies_the_schema_has_reward_1(output, reward, partial):
    for task, options in [({"schema": PERSON}, {}), ({"schema": json.dumps(PERSON)}, {}), ({}, {"schema": PERSON})]:
        assert JsonSchema(**options)(task, output) == reward
        assert JsonSchema(partial=True, **options)(task, output) == pytest.approx(partial)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (None, "`schema` must be a JSON schema, as an object or its text, got None"),
        ("", "`schema` must be a JSON schema"),
        (7, "`schema` must be a JSON schema"),
        ("{", "not a JSON schema: Expecting property name"),
        ({"type": "no such type"}, "not a JSON schema: 'no such type' is not valid"),
        ({"$ref": "http://localhost:9/person.json"}, "the schema cannot be followed: "),
        ({"$ref": "#/$defs/none"}, "the schema cannot be followed: "),
        ({"$ref": "#"}, "the schema cannot be followed: RecursionError"),
    ],
)
def test_a_schema_that_is_none_is_an_error_that_names_the_task(schema, complaint):
    with pytest.raises(RewardError, match=r"^task ann: ") as error:
        JsonSchema()({"id": "ann", "schema": schema}, "{}")
    assert complaint in str(error.value)


def test_a_schema_for_all_tasks_is_looked_at_before_anything_runs(tmp_path):
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    assert resolve_reward("json_schema", options={"schema": str(path)})({}, ANN) == 1.0
    for schema, complaint in [
        ({"type": "tabel"}, "not a JSON schema"),
        (str(tmp_path / "none.json"), "none.json cannot be read"),
    ]:
        with pytest.raises(RecipeError, match=f"`task.reward_options.schema`: .*{complaint}"):
            resolve_reward("json_schema", options={"schema": schema})


def test_a_schema_of_true_or_false_accepts_all_or_nothing():
    assert [JsonSchema()({"schema": allowed}, "1") for allowed in (True, False)] == [1.0, 0.0]


def test_without_the_package_the_recipe_is_refused_with_the_name_of_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    json_schema.library.cache_clear()
    with pytest.raises(
        RecipeError, match=r"`json_schema` needs the jsonschema package; pip install 'areal-actors\[rewards\]'"
    ):
        resolve_reward("json_schema")
    monkeypatch.undo()
    json_schema.library.cache_clear()


def test_no_answer_takes_long_to_read():
    started = time.process_time()
    for output in ("```json\n" * 20_000, " " * 200_000 + "x", "```" + " " * 200_000, '{"a":' * 50_000):
        assert JsonSchema()({"schema": PERSON}, output) == 0.0
    assert time.process_time() - started < 5
