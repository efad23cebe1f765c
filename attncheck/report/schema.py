"""The JSON Schema of a report, and the check of a file against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from attncheck.core.errors import UsageError
from attncheck.report.record import ReportRecord

MOST_CHARACTERS = 200


class _Schema(GenerateJsonSchema):
    """Unconstrained numbers may be the strings of those that are not finite; no titles."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        found = super().float_schema(schema)
        return found if "ge" in schema else {"anyOf": [found, {"enum": ["nan", "inf", "-inf"]}]}

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def report_schema() -> dict[str, Any]:
    """The JSON Schema of `attncheck/1`."""
    return ReportRecord.model_json_schema(schema_generator=_Schema)


def check_report(path: Path) -> None:
    """Check that a file is a report.

    Raises:
        UsageError: it is none; names the place in it and what was expected there.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refused)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON: {error}") from error
    complaint = first_complaint(data)
    if complaint:
        raise UsageError(f"{path}: {complaint}")


def is_baseline(path: Path) -> bool:
    """Whether a file declares itself a baseline."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and str(data.get("schema", "")).startswith("attncheck-baseline/")


def _refused(constant: str) -> None:
    raise ValueError(f"`{constant}` is no JSON (a report writes it as a string)")


def first_complaint(data: Any) -> str:
    """The most relevant violation of the schema with its place, or an empty string."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(report_schema()).iter_errors(data))
    if error is None:
        return ""
    return f"{error.json_path.replace('$', 'report', 1)}: {error.message[:MOST_CHARACTERS]}"
