"""Make the OpenAPI document of route tables: schemas come from pydantic, all else from the routes' declarations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from inspect import getdoc
from typing import Any, Literal

from pydantic import TypeAdapter

from eaglelocal import __version__
from eaglelocal.server.routing import ApiRoute, RouteTable

DESCRIPTION = "Local models with speculative decoding, in the formats of OpenAI, Anthropic, Ollama and llama-server."
ERROR_STATUSES = (400, 401, 403, 404, 405, 408, 413, 415, 421, 429, 500, 503, 504, 505)  # of every route
JSON, TEXT = "application/json", "text/plain"

Mode = Literal["validation", "serialization"]  # of a body, of a reply
Schemas = Mapping[tuple[Any, Mode], dict[str, Any]]  # by type and mode


def make_document(tables: Iterable[RouteTable]) -> dict[str, Any]:
    """Return the document of the routes that have a reply."""
    documented = [(table, route) for table in tables for route in table.routes if route.is_documented]
    schemas, components = make_schemas(documented)
    paths: dict[str, dict[str, Any]] = {}
    for table, route in documented:
        paths.setdefault(format_path(route), {})[route.method.lower()] = describe_route(table, route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "eaglelocal", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components},
    }


def make_schemas(documented: Iterable[tuple[RouteTable, ApiRoute]]) -> tuple[Schemas, dict[str, Any]]:
    """Return the schemas of all bodies and replies, and the components to which they refer, by name."""
    kinds: dict[tuple[Any, Mode], None] = {}  # a set in order
    for table, route in documented:
        replies = (route.reply, table.error, *route.others.values())
        kinds |= dict.fromkeys((kind, "serialization") for kind in replies if kind is not None)
        kinds |= {(route.body, "validation"): None} if route.body else {}
    inputs = [(kind, mode, TypeAdapter(kind)) for kind, mode in kinds]
    schemas, components = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    return schemas, components["$defs"]


def format_path(route: ApiRoute) -> str:
    """Return the path with OpenAPI's parameters: /v1/models/{name:path} -> /v1/models/{name}."""
    return re.sub(r":\w+}", "}", route.path)


def describe_route(table: RouteTable, route: ApiRoute, schemas: Schemas) -> dict[str, Any]:
    name, path = route.handle.__name__, format_path(route)
    in_path = [
        {"name": one, "in": "path", "required": True, "schema": {"type": "string"}}
        for one in re.findall(r"{(\w+)}", path)
    ]
    in_query = [
        {"name": one, "in": "query", "required": False, "schema": {"type": "string", "default": default}}
        for one, default in route.query.items()
    ]
    description, parameters = getdoc(route.handle), in_path + in_query
    body = {"content": {JSON: {"schema": schemas[route.body, "validation"]}}, "required": True} if route.body else None
    return {
        "tags": [table.tag],
        "summary": name.replace("_", " ").title(),
        **({"description": description} if description else {}),
        "operationId": re.sub(r"\W", "_", f"{name}{path}_{route.method.lower()}"),
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": body} if body else {}),
        "responses": describe_replies(table, route, schemas),
    }


def describe_replies(table: RouteTable, route: ApiRoute, schemas: Schemas) -> dict[str, Any]:
    media_type, content = TEXT if route.reply is str else JSON, {}
    if route.reply is not None:
        content[media_type] = {"schema": schemas[route.reply, "serialization"]}
    if route.stream:
        content[route.stream.partition(";")[0]] = {}
    errors = {**dict.fromkeys(ERROR_STATUSES, table.error), **route.others}
    return {
        "200": {"description": "whole, or a stream" if route.stream else "Successful Response", "content": content},
        **{
            str(status): {
                "description": HTTPStatus(status).phrase,
                "content": {JSON: {"schema": schemas[kind, "serialization"]}},
            }
            for status, kind in errors.items()
        },
    }
