"""The keys of a suite file, as pydantic models: what may stand where, and the JSON Schema for
editors.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from attncheck.core.settings import DtypeName
from attncheck.core.verdict import Verdict

JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


class _OneOrMany:
    """A list that may be written as its only item."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        many = handler(core)
        return {"anyOf": [many["items"], many]}


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


Word = Annotated[str, Field(min_length=1)]
Words = Annotated[list[Word], BeforeValidator(_listed), _OneOrMany]
Verdicts = Annotated[list[Verdict], BeforeValidator(_listed), _OneOrMany]
Format = Literal["json", "junit", "sarif", "markdown", "html"]
CacheKind = Literal["default", "dynamic", "static", "offloaded", "static offloaded", "quantised"]
Options = dict[str, Any]


@final
class SettingsEntry(_Entry):
    """How to load: a list of `attn`, `dtype`, `device`, `cache`, `length` or `seed` is one axis of
    the matrix.
    """

    attn: Words | None = Field(
        None, description="Attention implementations; `default` is the model's own."
    )
    dtype: Annotated[list[DtypeName], BeforeValidator(_listed), _OneOrMany] | None = Field(
        None, description="Weights; `auto` is the highest precision that fits and runs."
    )
    device: Words | None = Field(None, description="auto, cpu, cuda, cuda:N or mps.")
    cache: Annotated[list[CacheKind], BeforeValidator(_listed), _OneOrMany] | None = Field(
        None, description="The kind of cache that cached passes fill; `default` is the model's own."
    )
    length: Annotated[list[PositiveInt], BeforeValidator(_listed), _OneOrMany] | None = Field(
        None, description="Tokens of the main input; chosen from the config when left out."
    )
    seed: Annotated[list[int], BeforeValidator(_listed), _OneOrMany] | None = None
    device_map: Word | None = Field(
        None, description="auto, or a JSON file with a device (or disk) for each module."
    )
    compiled: Word | None = Field(
        None,
        description="A backend of torch.compile, inductor as a rule: the compiled model is compared as well.",
    )
    revision: Word | None = None
    trust_remote_code: bool | None = None
    random_init: bool | None = Field(
        None, description="Draw the weights here, from the config alone."
    )
    layers: PositiveInt | None = Field(None, description="Keep the first N layers.")
    prompt: Word | None = Field(None, description="Text, or @FILE relative to this file.")
    offline: bool | None = None


@final
class ProbeEntry(_Entry):
    """A probe with its options: `NAME`, `NAME: {option: value}`, or the long form with `probe:`."""

    probe: Word = Field(
        description="A probe's name, a glob over the names, or FILE.py:Class relative to this file."
    )
    options: Options = Field(
        default_factory=dict, description="Options of the probe (`attncheck explain NAME`)."
    )
    tags: Words = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"probe": value}
        if isinstance(value, dict) and len(value) == 1 and "probe" not in value:
            ((name, options),) = value.items()
            return {"probe": name, "options": {} if options is None else options}
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        long = handler(core)
        short = {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "not": {"required": ["probe"]},
        }
        return {
            "anyOf": [
                {"type": "string"},
                long,
                {**short, "additionalProperties": {"type": ["object", "null"]}},
            ]
        }


Probes = list[ProbeEntry]


@final
class ModelEntry(_Entry):
    """A model: its target alone, or the target with settings and probes of its own."""

    target: Word = Field(
        description="org/name, a folder, a .gguf file, builtin:NAME, FILE.py:factory."
    )
    tags: Words = Field(default_factory=list, description="Words that `--tag` selects by.")
    settings: SettingsEntry = Field(
        default_factory=SettingsEntry,  # type: ignore[arg-type]
        description="Replaces the suite's settings for this model.",
    )
    exclude: list[dict[str, Any]] = Field(
        default_factory=list, description="Combinations of settings to leave out."
    )
    probes: Probes | None = Field(None, description="In place of the suite's probes.")
    skip: Words = Field(default_factory=list, description="Probes to leave out (globs).")
    options: dict[str, Options] = Field(
        default_factory=dict, description="Options by probe, over the suite's."
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"target": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core)]}


@final
class ExpectedEntry(_Entry):
    """A failure that is known and accepted until a date."""

    model: Word = Field("*", description="A glob over targets.")
    probe: Word = Field("*", description="A glob over probes.")
    case: Word = Field("*", description="A glob over the names of the cases that may fail.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Only under these settings.")
    verdict: Verdicts = Field(default_factory=lambda: [Verdict.FAIL])
    reason: Word
    link: str = ""
    expires: date | None = Field(None, description="The last day on which it is accepted.")

    @field_validator("verdict")
    @classmethod
    def _not_passing(cls, value: list[Verdict]) -> list[Verdict]:
        if Verdict.PASS in value or Verdict.SKIP in value:
            raise ValueError(
                "expected one of `fail`, `warn`, `noise`, `vacuous`, `error`: neither pass nor skip fails a run"
            )
        return value


@final
class SuiteFile(_Entry):
    """A suite of models, settings and probes for `attncheck run --suite`."""

    version: Literal[1] = 1
    include: Words = Field(
        default_factory=list, description="Files to take in first, relative to this one."
    )
    models: list[ModelEntry] = Field(default_factory=list)
    settings: SettingsEntry = Field(default_factory=SettingsEntry)  # type: ignore[arg-type]
    probes: Probes | None = Field(None, description="All installed probes when left out.")
    skip: Words = Field(default_factory=list, description="Probes to leave out (globs).")
    expected_failures: list[ExpectedEntry] = Field(default_factory=list)
    strict: bool | None = Field(None, description="vacuous, warn and noise count as failure.")
    fail_on: Verdicts = Field(
        default_factory=list, description="Further verdicts that count as failure."
    )
    fail_fast: bool | None = None
    baseline: Word | None = Field(None, description="Known findings, relative to this file.")
    reports: dict[Format, Word] = Field(
        default_factory=dict, description="Reports to write, relative to this file."
    )


def suite_schema() -> dict[str, Any]:
    """The JSON Schema of a suite file."""
    return {"$schema": JSON_SCHEMA, **SuiteFile.model_json_schema(), "title": "attncheck suite"}
