"""The OpenAPI document (3.1) of the table of operations."""

from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cli.web.api.operation import Cost, Operation
from cli.web.api.problem_types import BY_NAME

_BASE: Final = "/api/v1"
_NDJSON: Final = "application/x-ndjson"
_OF_BODIES: Final = frozenset({409, 415, 422})
_OF_READING: Final = frozenset({406, 410})
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A retry with the same key and body within 10 min is not published again; the "
    "answer is the first one. Keys are lost when the web page's process restarts.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
}
_REF: Final = "#/components/schemas/{model}"
_ABOUT: Final = (
    "What the log of a foldmq broker knows. Names are those of the commands' --json. Positions are "
    "text such as 12.3; times are in UTC. Each answer has the header Foldmq-Position: what it "
    "includes."
)
_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": True,
}
_PROBLEM: Final = {
    "description": "Problem details",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_POSITION: Final = {
    "Foldmq-Position": {
        "description": "The last position that the answer includes; of several logs, one of each.",
        "schema": {"type": "string"},
    }
}


def openapi_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document of some operations."""
    operations = list(operations)
    views = list(dict.fromkeys(operation.view for operation in operations))
    bodies = [operation.body for operation in operations if operation.body is not None]
    models: list[tuple[type[BaseModel], Literal["serialization", "validation"]]] = []
    models += [(view, "serialization") for view in views]
    models += [(body, "validation") for body in bodies]
    _, definitions = models_json_schema(models, ref_template=_REF)
    schemas = {name: _plain(definition) for name, definition in definitions["$defs"].items()} | {
        "Problem": _PROBLEM_SCHEMA
    }
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "foldmq", "version": "1", "description": _ABOUT},
        "servers": [{"url": _BASE}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"$ref": _REF.format(model=operation.view.__name__)}
    content: dict[str, Any] = {"application/json": {"schema": answer}}
    if operation.is_list:
        content["application/json"] = {"schema": _page(answer)}
        content[_NDJSON] = {"schema": {"type": "string"}}
        content["text/event-stream"] = {"schema": {"type": "string"}}
    answered: dict[str, Any] = {
        "description": "The answer",
        "headers": _POSITION,
        "content": content,
    }
    about = [operation.doc, f"The command: {operation.command}."]
    if operation.cost is Cost.DEAR:
        about.append("It may read much of the log: few such requests run at the same time.")
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.doc.partition(":")[0].rstrip("."),
        "description": " ".join(about),
        "x-role": str(operation.role),
        "parameters": list(_parameters(operation)),
    }
    if operation.body is None:
        responses = {"200": answered}
        if operation.moments:
            responses["304"] = {"description": "The answer is the one with the tag given"}
    else:
        described["parameters"] = [_KEY]
        described["requestBody"] = _body(operation.body)
        receipts = {"description": "Receipts", "content": {_NDJSON: {"schema": {"type": "string"}}}}
        accepted = {"description": "Passed on, not recorded", "content": content}
        responses = {"201": answered, "200": receipts, "202": accepted}
    statuses = {kind.status for kind in BY_NAME.values()}
    statuses -= _OF_BODIES if operation.body is None else _OF_READING
    problems = {str(status): _PROBLEM for status in sorted(statuses)}
    return {**described, "responses": responses | problems}


def _body(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = {"$ref": _REF.format(model=model.__name__)}
    lines = {"type": "string", "description": "A message for each line, at most 1,000."}
    content = {"application/json": {"schema": schema}, _NDJSON: {"schema": lines}}
    return {"required": True, "content": content}


def _page(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": item},
            "next": {
                "type": ["string", "null"],
                "description": "Parameter next of the following page; null: there is none.",
            },
            "as_of": {"type": "string", "description": "The position that the list includes."},
            "gaps": {
                "type": "array",
                "items": {"type": "object"},
                "description": "Where records were deleted before the first item: ``first`` is the "
                "position of the first one left, in ``log``.",
            },
            "unsure": {
                "type": "array",
                "items": {"type": "string"},
                "description": "What the list may lack, because records of the log were lost.",
            },
            "snapshot": {
                "const": False,
                "description": "Present if the pages of the list are not of one moment.",
            },
        },
        "required": ["items", "next", "as_of"],
    }


def _parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    schema = operation.params.model_json_schema()
    required = schema.get("required", ())
    for name, own in schema.get("properties", {}).items():
        value = _plain(own)
        description = value.pop("description", "").replace("``", "")
        in_path = name in operation.path_params
        yield {
            "name": name,
            "in": "path" if in_path else "query",
            "required": in_path or name in required,
            "description": description,
            "schema": value,
            **({"explode": True} if value.get("type") == "array" else {}),
        }


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without generated titles; parameters are left out, not null."""
    plain = {key: value for key, value in schema.items() if key != "title"}
    kinds = [option for option in plain.get("anyOf", ()) if option != {"type": "null"}]
    if plain.get("default", "") is None and len(kinds) == 1:
        del plain["anyOf"], plain["default"]
        plain = {**_plain(kinds[0]), **plain}
    if "properties" in plain:
        plain["properties"] = {
            name: {key: value for key, value in own.items() if key != "title"}
            for name, own in plain["properties"].items()
        }
    return plain
