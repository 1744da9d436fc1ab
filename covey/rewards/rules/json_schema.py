"""JSON schemas, by the package jsonschema. Imported where a schema is used, and in the workers that apply slow ones.

A schema is applied in full or refused: an unknown keyword, a format that cannot be checked and a reference that leads
nowhere are errors, not annotations.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Mapping
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from covey.rewards.rules.json_format import read_json

SLOW = frozenset(
    {"pattern", "patternProperties", "format", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords that can take far more time than the text is long, above all regular expressions on hostile text."""

_ANNOTATIONS = frozenset(
    [
        "$schema",
        "$id",
        "$anchor",
        "$dynamicAnchor",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "contentEncoding",
        "contentMediaType",
        "then",
        "else",
        "minContains",
        "maxContains",
    ]
)
"""Keywords that say nothing of a value, or that another keyword applies."""
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = frozenset(
    [
        "items",
        "additionalItems",
        "additionalProperties",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)


def read_schema(schema: object) -> tuple[str, bool]:
    """Check a schema; return it as JSON text, and whether it has slow keywords.

    Raises:
        ValueError: it is no JSON schema, or has something that would not be applied.
    """
    try:
        text = json.dumps(schema)
        root = json.loads(text)
        kind = validators.validator_for(root, default=Draft202012Validator)
        kind.check_schema(root)
    except SchemaError as error:
        raise ValueError(f"JSON schema: {error.message}.") from None
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"A JSON schema is an object or a boolean, not {schema!r}.") from None
    resource = Resource.from_contents(root, default_specification=DRAFT202012)
    resolver = Registry().with_resource(resource.id() or "", resource).resolver(resource.id() or "")
    keywords = sorted({*kind.VALIDATORS, *_ANNOTATIONS})
    formats = sorted(_validator(text).format_checker.checkers)
    used: set[str] = set()
    for part in _parts(root):
        used |= set(part)
        _check_keywords(part, keywords, formats)
        try:
            resolver.lookup(part.get("$ref", "#"))
        except Unresolvable:
            raise ValueError(
                f"JSON schema: $ref {part['$ref']!r} leads nowhere; only references inside the schema ('#/...') are "
                "followed."
            ) from None
    return text, bool(used & SLOW)


def _check_keywords(part: Mapping[str, Any], keywords: list[str], formats: list[str]) -> None:
    for keyword in part:
        if keyword not in keywords:
            raise ValueError(
                f"JSON schema: keyword {keyword!r} is not supported; supported are {', '.join(keywords)}."
            )
    if "format" in part and part["format"] not in formats:
        raise ValueError(
            f"JSON schema: format {part['format']!r} cannot be checked; {', '.join(formats)} can. More can after "
            "pip install 'jsonschema[format]'."
        )
    for pattern in [part.get("pattern", ""), *part.get("patternProperties", ())]:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"JSON schema: pattern {pattern!r} is none for Python: {error}.") from None


def satisfies(schema: str, answer: str) -> bool:
    """Return whether a text is JSON that satisfies a schema that `read_schema` accepted."""
    try:
        return bool(_validator(schema).is_valid(read_json(answer)))
    except (ValueError, RecursionError, OverflowError):
        return False


def satisfies_within(schema: str, answer: str, cpu_seconds: float) -> bool:
    """Do `satisfies` in a worker; when the processor time is up, SIGPROF ends the process, which nothing handles."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        return satisfies(schema, answer)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _parts(schema: object) -> Iterator[dict[str, object]]:
    """Yield all subschemas that are objects, the whole one first."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, argument in schema.items():
        inner: list[object] = []
        if keyword in _BY_NAME and isinstance(argument, dict):
            inner = list(argument.values())
        elif keyword in _SINGLE or keyword in _LISTED:
            inner = argument if isinstance(argument, list) else [argument]
        for part in inner:
            yield from _parts(part)


@lru_cache(maxsize=64)
def _validator(schema: str) -> Validator:
    """Return the validator of a schema, with the formats that need no further package, and date-time."""
    root = json.loads(schema)
    kind = validators.validator_for(root, default=Draft202012Validator)
    formats = FormatChecker(formats=())
    formats.checkers = {"date-time": (_is_date_time, ValueError), **kind.FORMAT_CHECKER.checkers}
    return validators.extend(kind, {"multipleOf": _multiple_of})(root, format_checker=formats)


def _multiple_of(
    _validator: Validator, divisor: float, value: object, _schema: object
) -> Iterator[ValidationError]:
    """Yield an error for a number that is no multiple, exactly; the package divides floats, where 0.3 / 0.1 < 3."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (Fraction(str(value)) / Fraction(str(divisor))).denominator != 1:
        yield ValidationError(f"{value} is not a multiple of {divisor}")


def _is_date_time(value: object) -> bool:
    if not isinstance(value, str):
        return True
    # RFC 3339 is narrower than ISO 8601, which `fromisoformat` reads.
    return _DATE_TIME.fullmatch(value) is not None and bool(datetime.fromisoformat(value.upper()))


_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)
