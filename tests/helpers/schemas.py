"""JSON that a command printed, beside the schema that `windtunnel explain --schema` prints of it."""

from __future__ import annotations

from typing import Any

import jsonschema

from windtunnel.cli._schemas import schema_of


def conforms(command: str, data: object) -> bool:
    """Whether JSON is what a command's schema says, with no key that the schema does not know; raises where not."""
    schema = schema_of(command)
    for form in schema["$defs"].values():
        if form.get("properties"):
            form["additionalProperties"] = False
    validator: Any = jsonschema.Draft202012Validator
    validator.check_schema(schema)
    validator(schema).validate(data)
    return True
