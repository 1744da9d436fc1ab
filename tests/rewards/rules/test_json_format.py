"""JSON and its schemas: applied in full, or refused; no pattern holds up a run."""

import datetime
import json
import pickle
import sys
import typing

import pytest

from covey.errors import RewardError
from covey.rewards import Failure, JsonFormat
from covey.rewards.rules import json_format
from covey.rewards.rules.workers import Workers

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"$ref": "#/$defs/age"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150}},
}  # fmt: skip


@pytest.mark.parametrize(
    "text, verdict",
    [
        ('{"name": "x"}', 1.0),
        ('  {"name": "x", "age": 3, "tags": ["b", "a"]} ', 1.0),
        ('{"name": ""}', 0.0),
        ('{"age": 3}', 0.0),
        ('{"name": "x", "age": 150}', 0.0),
        ('{"name": "x", "age": true}', 0.0),
        ('{"name": "x", "age": 2.5}', 0.0),
        ('{"name": "x", "other": 1}', 0.0),
        ('{"name": "x", "tags": ["a", "a"]}', 0.0),
        ('{"name": "x", "tags": ["c"]}', 0.0),
        ('{"name": "x"} {"name": "x"}', 0.0),
        ('{"name": "x", "age": NaN}', 0.0),
        ('{"name": "x", "age": 1e999}', 0.0),
        ("[" * 100_000, 0.0),
        ("9" * 100_000, 0.0),
        ("{}", 0.0),
        ("", 0.0),
    ],
)
def test_json_schema(text, verdict):
    assert JsonFormat(SCHEMA)([text]) == [verdict]


@pytest.mark.parametrize(
    "schema, yes, no",
    [
        ({"const": 1}, "1.0", "true"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "null", "1"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, "4", "2"),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, "2", "4"),
        ({"not": {"type": "string"}}, "1", '"a"'),
        ({"multipleOf": 0.1}, "0.3", "0.35"),
        ({"exclusiveMinimum": 1}, "1.5", "1"),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, '["a", 1, 2]', '["a", "b"]'),
        ({"minItems": 1}, "[0]", "[]"),
        ({"minProperties": 1, "maxProperties": 1}, '{"a": 1}', "{}"),
        ({"maxLength": 1}, '"a"', '"ab"'),
        ({"enum": [[1, {"a": None}]]}, '[1.0, {"a": null}]', '[1, {"a": 0}]'),
        ({"type": ["integer", "null"]}, "null", "1.5"),
        ({"additionalProperties": {"type": "integer"}}, '{"x": 1}', '{"x": "1"}'),
        ({"pattern": "^a+$"}, '"aa"', '"ab"'),
        ({"patternProperties": {"^n": {"type": "integer"}}}, '{"n1": 1, "x": ""}', '{"n1": ""}'),
        ({"format": "date"}, '"2026-02-28"', '"2026-02-30"'),
        ({"format": "date-time"}, '"2026-02-28T12:00:00Z"', '"2026-02-28 12:00"'),
        ({"format": "email"}, '"a@b.c"', '"a"'),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"minimum": 2}}, "2", '"a"'),
        ({"contains": {"const": 1}, "maxContains": 1}, "[1, 2]", "[1, 1]"),
        ({"propertyNames": {"maxLength": 1}}, '{"a": 1}', '{"ab": 1}'),
        ({"dependentRequired": {"a": ["b"]}}, '{"b": 1}', '{"a": 1}'),
        ({"properties": {"a": True}, "unevaluatedProperties": False}, '{"a": 1}', '{"b": 1}'),
        ({"uniqueItems": True}, '[{"a": 1}, {"a": 2}]', '[{"a": 1}, {"a": 1.0}]'),
    ],
)
def test_json_schema_keywords(schema, yes, no):
    assert JsonFormat(schema)([yes, no]) == [1.0, 0.0]


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "("},
        {"pattern": 3},
        {"patternProperties": {"(": {}}},
        {"properties": {"at": {"format": "no such format"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [{}]},
        {"type": "text"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://x"},
        {"items": {"format2": 1}},
        3,
    ],
)
def test_json_schemas_that_would_be_half_applied_are_refused(schema):
    with pytest.raises(ValueError, match="JSON schema"):
        JsonFormat(schema)


def test_a_schema_that_refers_to_itself_ends():
    schema = {"anyOf": [{"$ref": "#"}]}
    assert JsonFormat(schema)(["1"]) == [0.0]
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert JsonFormat(tree)(['{"next": {"next": {}}}', '{"next": {"next": 1}}']) == [1.0, 0.0]


def test_a_pattern_that_never_ends_is_stopped_and_holds_up_nobody_else():
    """`(a+)+$` on 40 times `a` and a `b` takes 2^40 steps, in C code that holds the interpreter."""
    reward = JsonFormat({"type": "object", "properties": {"x": {"pattern": "^(a+)+$"}}}, seconds=0.5)
    assert reward(['{"x": "aaa"}', '{"x": "b"}', "x", '{"x": NaN}']) == [1.0, 0.0, 0.0, 0.0]
    hostile = json.dumps({"x": "a" * 40 + "b"})
    assert reward(['{"x": "a"}', hostile, '{"x": "aa"}', hostile]) == [1.0, 0.0, 1.0, 0.0]
    assert pickle.loads(pickle.dumps(reward))(['{"x": "a"}']) == [1.0]


def test_a_worker_that_cannot_start_is_not_the_answers_fault(monkeypatch):
    broken = Workers("covey.rewards.rules.json_schema", "satisfies_within", count=1)
    broken.sessions[0]._code = "import no_such_module"
    monkeypatch.setattr(json_format, "workers", lambda *_: broken)
    (score,) = JsonFormat({"pattern": "a"})(['"a"'])
    assert isinstance(score, Failure) and "could not be" in score.reason


def test_a_schema_that_pydantic_writes():
    pydantic = pytest.importorskip("pydantic")

    class Visit(pydantic.BaseModel):
        at: datetime.datetime
        who: typing.Annotated[str, pydantic.Field(pattern="^[A-Z]")]
        next: "Visit | None" = None

    Visit.model_rebuild(_types_namespace={"Visit": Visit})
    right = '{"at": "2026-02-28T12:00:00Z", "who": "Ann", "next": {"at": "2026-03-01T12:00:00+01:00", "who": "Bo"}}'
    wrong = right.replace("Bo", "bo"), right.replace("-28T", "-30T")
    assert JsonFormat(Visit.model_json_schema())([right, *wrong]) == [1.0, 0.0, 0.0]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "covey.rewards.rules.json_schema", None)
    with pytest.raises(RewardError, match=r"pip install 'covey\[json\]'"):
        JsonFormat({"type": "object"})
    assert JsonFormat()(['{"a": 1}']) == [1.0]


def test_json_in_a_fence_and_in_a_block():
    fenced = 'Here:\n```json\n{"a": 1}\n```\nDone.'
    assert JsonFormat(where="fence")([fenced, fenced * 2]) == [1.0, 0.0]
    assert JsonFormat(where="answer")(['so</think> <answer>{"a": 1}</answer>']) == [1.0]
