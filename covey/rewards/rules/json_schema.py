"""A validator for the JSON Schema keywords that structured answers use.

Supported: type, enum, const, properties, required, additionalProperties, minProperties, maxProperties, items,
prefixItems, minItems, maxItems, uniqueItems, minLength, maxLength, minimum, maximum, exclusiveMinimum, exclusiveMaximum,
multipleOf, allOf, anyOf, oneOf, not, $ref into $defs, and annotations. `pattern` and `format` are not: a pattern is a
regular expression run on hostile text. A schema with another keyword is refused, not half applied.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

Schema = Mapping[str, Any] | bool

_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"}
)
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: _is_number(v),
    "integer": lambda v: _is_number(v) and float(v).is_integer(),
}
MAX_REFERENCES = 64
"""Longest chain of `$ref` and subschemas on one value."""


def check_schema(schema: Any, root: Any = None) -> None:
    """Refuse a schema that this validator would not apply in full.

    Raises:
        ValueError: a keyword or a type that is not supported, or a `$ref` that leads nowhere.
    """
    root = schema if root is None else root
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError(f"A JSON schema is an object or a boolean, not {schema!r}.")
    for keyword, argument in schema.items():
        if keyword == "$ref":
            _resolve(argument, root)
        elif keyword == "type" and not set(_as_list(argument)) <= set(_TYPES):
            raise ValueError(f"JSON schema: type {argument!r}; known are {', '.join(_TYPES)}.")
        elif keyword not in _KEYWORDS and keyword not in _ANNOTATIONS:
            raise ValueError(
                f"JSON schema: keyword {keyword!r} is not supported; supported are {', '.join(sorted(_KEYWORDS))}."
            )
        for inner in _subschemas(keyword, argument):
            check_schema(inner, root)


def validates(value: Any, schema: Schema, root: Schema | None = None, depth: int = 0) -> bool:
    """Whether a parsed JSON value satisfies a schema that `check_schema` accepted."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    if depth > MAX_REFERENCES:
        return False
    inner = _Inner(root, depth)
    return all(_KEYWORDS[k](value, schema[k], schema, inner) for k in schema if k in _KEYWORDS)


class _Inner:
    """Validates against a subschema, keeping the root for `$ref` and counting the depth."""

    def __init__(self, root: Schema, depth: int) -> None:
        self.root, self.depth = root, depth

    def __call__(self, value: Any, schema: Schema) -> bool:
        return validates(value, schema, self.root, self.depth + 1)


def _subschemas(keyword: str, argument: Any) -> list[Any]:
    if keyword in ("properties", "$defs", "definitions"):
        return list(argument.values())
    if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        return list(argument)
    if keyword in ("items", "additionalProperties", "not"):
        return [argument]
    return []


def _resolve(reference: Any, root: Any) -> Any:
    found = root
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise ValueError(
            f"JSON schema: $ref {reference!r}; only references inside the schema ('#/...') are followed."
        )
    for part in reference.lstrip("#/").split("/") if reference not in ("#", "#/") else []:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or part not in found:
            raise ValueError(f"JSON schema: $ref {reference!r} leads nowhere.")
        found = found[part]
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _canonical(value: Any) -> str:
    """Equal for equal JSON values; 1 and 1.0 are equal, 1 and true are not."""
    if _is_number(value) and math.isfinite(value) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_canonical(v)}" for k, v in sorted(value.items())) + "}"
    return json.dumps(value)


def _properties(value: Any, argument: Mapping[str, Schema], inner: _Inner) -> bool:
    return all(inner(value[name], schema) for name, schema in argument.items() if name in value)


def _additional(value: Any, argument: Schema, schema: Mapping[str, Any], inner: _Inner) -> bool:
    return all(inner(v, argument) for name, v in value.items() if name not in schema.get("properties", {}))


def _items(value: Any, argument: Schema, schema: Mapping[str, Any], inner: _Inner) -> bool:
    return all(inner(v, argument) for v in value[len(schema.get("prefixItems", ())) :])


def _multiple(value: Any, argument: Any) -> bool:
    return (Fraction(str(value)) / Fraction(str(argument))).denominator == 1


def _for(kind: type, test: Callable[..., bool]) -> Callable[..., bool]:
    """A keyword that speaks of values of one kind and lets all others pass."""

    def apply(value: Any, argument: Any, schema: Mapping[str, Any], inner: _Inner) -> bool:
        return not isinstance(value, kind) or test(value, argument, schema, inner)

    return apply


def _for_numbers(test: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    def apply(value: Any, argument: Any, schema: Mapping[str, Any], inner: _Inner) -> bool:
        return not _is_number(value) or test(value, argument)

    return apply


_KEYWORDS: dict[str, Callable[[Any, Any, Mapping[str, Any], _Inner], bool]] = {
    "$ref": lambda v, a, s, inner: inner(v, _resolve(a, inner.root)),
    "type": lambda v, a, s, inner: any(_TYPES[name](v) for name in _as_list(a)),
    "enum": lambda v, a, s, inner: _canonical(v) in {_canonical(option) for option in a},
    "const": lambda v, a, s, inner: _canonical(v) == _canonical(a),
    "allOf": lambda v, a, s, inner: all(inner(v, part) for part in a),
    "anyOf": lambda v, a, s, inner: any(inner(v, part) for part in a),
    "oneOf": lambda v, a, s, inner: sum(inner(v, part) for part in a) == 1,
    "not": lambda v, a, s, inner: not inner(v, a),
    "properties": _for(dict, lambda v, a, s, inner: _properties(v, a, inner)),
    "required": _for(dict, lambda v, a, s, inner: all(name in v for name in a)),
    "additionalProperties": _for(dict, _additional),
    "minProperties": _for(dict, lambda v, a, s, inner: len(v) >= a),
    "maxProperties": _for(dict, lambda v, a, s, inner: len(v) <= a),
    "prefixItems": _for(list, lambda v, a, s, inner: all(map(inner, v, a))),
    "items": _for(list, _items),
    "minItems": _for(list, lambda v, a, s, inner: len(v) >= a),
    "maxItems": _for(list, lambda v, a, s, inner: len(v) <= a),
    "uniqueItems": _for(list, lambda v, a, s, inner: not a or len(set(map(_canonical, v))) == len(v)),
    "minLength": _for(str, lambda v, a, s, inner: len(v) >= a),
    "maxLength": _for(str, lambda v, a, s, inner: len(v) <= a),
    "minimum": _for_numbers(lambda v, a: v >= a),
    "maximum": _for_numbers(lambda v, a: v <= a),
    "exclusiveMinimum": _for_numbers(lambda v, a: v > a),
    "exclusiveMaximum": _for_numbers(lambda v, a: v < a),
    "multipleOf": _for_numbers(_multiple),
}
