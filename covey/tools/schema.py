"""JSON schemas of tools: made from hints and docstring, and held against what the policy gives.

transformers makes the schema, so that a prompt with tools has the tokens that the tokenizer's own template gives it. Arguments
are taken as their schema says; text that stands for a number becomes one, where nothing is lost.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from covey.errors import ToolError
from covey.tools.decorator import ToolOptions, tool_name


class InvalidArguments(ValueError):
    """Arguments of a call that do not fit the tool."""


def schema_of(function: Callable[..., Any], options: ToolOptions) -> dict[str, Any]:
    """Return the JSON schema of a function: `{"type": "function", "function": {"name", "description", "parameters"}}`.

    Raises:
        ToolError: no docstring, an argument without a hint or a description, or a given schema of another shape.
    """
    name = options.name or tool_name(function)
    schema = made_schema(function, name) if options.schema is None else given_schema(options.schema, name)
    schema["function"]["name"] = name
    return schema


def made_schema(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the schema that hints and docstring give."""
    from transformers.utils import get_json_schema

    try:
        kinds = {p.name: p.kind for p in inspect.signature(function).parameters.values()}
        made = dict(get_json_schema(function))
    except Exception as error:  # transformers raises several kinds, and inspect others
        raise ToolError(
            f"Tool {name!r} has no JSON schema: {str(error).rstrip('.!')}. A tool needs a docstring that says what it does, a type hint for each "
            "argument, and a line for each under 'Args:' (Google style); or give it tool(schema={...})."
        ) from error
    if by_position := [n for n, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]:
        raise ToolError(
            f"Tool {name!r}: its arguments {', '.join(by_position)} go by position only. A policy gives arguments by name: take "
            "the / out of the signature."
        )
    return made


def given_schema(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a schema as users give it, the whole or its inner part, in the form that templates take."""
    inner = schema.get("function", schema)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("parameters"), Mapping):
        raise ToolError(
            f"Tool {name!r}: schema={repr(schema)[:120]} has no 'parameters'. It is "
            '{"name": ..., "description": ..., "parameters": {"type": "object", "properties": {...}}}.'
        )
    return {"type": "function", "function": {"name": name, "description": "", **inner}}


def parameters_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the arguments of a tool."""
    parameters: Mapping[str, Any] = schema["function"]["parameters"]
    return parameters


def fitted_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, each as its schema says.

    Raises:
        InvalidArguments: names the argument that is unknown, missing, or of another type.
    """
    parameters = parameters_of(schema)
    known: Mapping[str, Any] = parameters.get("properties", {})
    if not parameters.get("additionalProperties"):
        for name in arguments:
            if name not in known:
                raise InvalidArguments(
                    f"there is no argument {name!r}; arguments are {', '.join(map(repr, known)) or 'none'}"
                )
    for name in parameters.get("required", ()):
        if name not in arguments:
            raise InvalidArguments(f"the argument {name!r} is missing")
    fitted = {}
    for name, value in arguments.items():
        try:
            fitted[name] = fitted_value(value, known.get(name, {}))
        except InvalidArguments as error:
            raise InvalidArguments(f"the argument {name!r} {error}") from None
    return fitted


def fitted_value(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a value as its schema says it; raise InvalidArguments, as the rest of a sentence, where it cannot be so."""
    if value is None and schema.get("nullable"):
        return None
    options = choices_of(schema)
    for exact in (True, False):  # a union of text and number keeps what it was given
        for option in options:
            done, fitted = as_type(value, option, exact)
            if done and not ("enum" in schema and fitted not in schema["enum"]):
                return fitted
    wanted = " or ".join(str(option.get("type", "another value")) for option in options)
    if "enum" in schema:
        wanted = f"one of {', '.join(map(repr, schema['enum']))}"
    text = repr(value)
    shown = text if len(text) < 60 else text[:57] + "..."
    raise InvalidArguments(f"is {shown} ({type(value).__name__}), expected {wanted}")


def choices_of(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas that a value may have: those of a union, or the schema alone."""
    for union in ("anyOf", "oneOf"):
        if isinstance(schema.get(union), list):
            return [choice for option in schema[union] for choice in choices_of(option)]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": kind} for kind in schema["type"]]
    return [schema]


def as_type(value: Any, schema: Mapping[str, Any], exact: bool) -> tuple[bool, Any]:
    """Return whether a value is, or without loss becomes, of a schema's type, and it.

    Args:
        exact: it must be of the type already.
    """
    kind = schema.get("type")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "integer" | "number":
            return as_number(value, kind == "integer", exact)
        case "string":
            return isinstance(value, str) or (is_number and not exact), value if isinstance(
                value, str
            ) else str(value)
        case "boolean":
            words = {} if exact or not isinstance(value, str) else {"true": True, "false": False}
            return (
                (True, value)
                if isinstance(value, bool)
                else (str(value).lower() in words, words.get(str(value).lower()))
            )
        case "null":
            return value is None or (not exact and value in ("null", "None")), None
        case "array" | "object":
            return as_nested(value, schema, exact)
    return True, value


def as_number(value: Any, whole: bool, exact: bool) -> tuple[bool, Any]:
    """Return whether a value is a number, or text that says one, and it."""
    if isinstance(value, str) and not exact:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False, value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False, value
    if whole and isinstance(value, float):
        return value.is_integer(), int(value) if value.is_integer() else value
    return True, value


def as_nested(value: Any, schema: Mapping[str, Any], exact: bool) -> tuple[bool, Any]:
    """Return whether a value is a list or an object whose parts fit, or text that says one, and it."""
    if isinstance(value, str) and not exact:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False, value
    try:
        if schema["type"] == "array":
            is_list, items = isinstance(value, list), schema.get("items") or {}
            return is_list, [fitted_value(v, items) for v in value] if is_list else value
        if not isinstance(value, dict):
            return False, value
        known = schema.get("properties") or {}
        if any(name not in value for name in schema.get("required", ())):
            return False, value
        return True, {k: fitted_value(v, known.get(k) or {}) for k, v in value.items()}
    except InvalidArguments:
        return False, value
