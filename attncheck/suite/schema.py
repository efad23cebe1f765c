"""The keys of a suite file as pydantic models, and the JSON Schema for editors."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, TypeVar, final

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


T = TypeVar("T")


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) or value is None else [value]


def _key(description: str = "", default: Any = None) -> Any:
    if callable(default):
        return Field(default_factory=default, description=description or None)
    return Field(default, description=description or None)


class _OneOrMany:
    """A list; one with a single item may be written as that item."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        many = handler(core)
        return {"anyOf": [many["items"], many]}


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


Many = Annotated[list[T], BeforeValidator(_listed), _OneOrMany]
Word = Annotated[str, Field(min_length=1)]
Format = Literal["json", "junit", "sarif", "markdown", "html"]
CacheKind = Literal["default", "dynamic", "static", "offloaded", "static offloaded", "quantised"]
Options = dict[str, Any]


@final
class SettingsEntry(_Entry):
    """How to load models. With a list of `attn`, `dtype`, `device`, `cache`, `length` or `seed`,
    everything runs once for each item.
    """

    attn: Many[Word] | None = _key("Attention implementations; `default` is the model's own.")
    dtype: Many[DtypeName] | None = _key(
        "Dtype of the weights; `auto` is the highest precision that fits and runs."
    )
    device: Many[Word] | None = _key("auto, cpu, cuda, cuda:N or mps.")
    cache: Many[CacheKind] | None = _key(
        "Kind of cache in cached forwards; `default` is the model's own."
    )
    length: Many[PositiveInt] | None = _key(
        "Length of the input in tokens; by default chosen from the config."
    )
    seed: Many[int] | None = None
    device_map: Word | None = _key("auto, or a JSON file with a device (or disk) for each module.")
    compiled: Word | None = _key(
        "Backend of torch.compile, such as inductor: compare the compiled model as well."
    )
    reach: bool | None = _key(
        "Cross windows, chunks and rotary switches that the usual input is too short for."
    )
    revision: Word | None = None
    trust_remote_code: bool | None = None
    random_init: bool | None = _key(
        "Read the config only; build a small model with amplified weights."
    )
    layers: PositiveInt | None = _key("Keep the first N layers.")
    prompt: Word | None = _key("Text, or @FILE with a path relative to this file.")
    offline: bool | None = None
    engine: Word | None = _key("Check another runtime of the same weights: mlx or ct2.")
    api: Word | None = _key("How a server is asked: auto, llama, vllm or openai.")
    served_model: Word | None = _key("Model that a server is asked for.")
    weights: Word | None = _key("Target with the weights that a server has.")
    rate: PositiveInt | None = _key("Most requests to a server in a second.")
    requests: PositiveInt | None = _key("Most requests to a server in all.")
    patience: PositiveInt | None = _key("Seconds to wait for one answer of a server.")


@final
class ProbeEntry(_Entry):
    """A probe with its options: `NAME`, `NAME: {option: value}`, or the long form with `probe:`."""

    probe: Word = _key("Name of a probe, a glob, or FILE.py:Class relative to this file.", ...)
    options: Options = _key("Options of the probe (`attncheck explain NAME`).", dict)
    tags: Many[Word] = _key(default=list)

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
        short = {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "not": {"required": ["probe"]},
            "additionalProperties": {"type": ["object", "null"]},
        }
        return {"anyOf": [{"type": "string"}, handler(core), short]}


@final
class ModelEntry(_Entry):
    """A model: a target, or a target with settings and probes of its own."""

    target: Word = _key("org/name, a folder, a .gguf file, builtin:NAME, FILE.py:factory.", ...)
    tags: Many[Word] = _key("Tags that `--tag` selects by.", list)
    settings: SettingsEntry = _key("Override the suite's settings for this model.", SettingsEntry)
    exclude: list[dict[str, Any]] = _key("Combinations of settings to exclude.", list)
    probes: list[ProbeEntry] | None = _key("Replace the suite's probes for this model.")
    skip: Many[Word] = _key("Probes to skip (globs).", list)
    options: dict[str, Options] = _key("Options by probe; they override the suite's.", dict)

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
    """A known failure that is accepted, until a date if one is given."""

    model: Word = _key("Targets (a glob).", "*")
    probe: Word = _key("Probes (a glob).", "*")
    case: Word = _key("Names of the cases that may fail (a glob).", "*")
    settings: dict[str, Any] = _key("Only under these settings.", dict)
    verdict: Many[Verdict] = _key(default=lambda: [Verdict.FAIL])
    reason: Word
    link: str = ""
    expires: date | None = _key("Last day on which the failure is accepted.")

    @field_validator("verdict")
    @classmethod
    def _not_passing(cls, value: list[Verdict]) -> list[Verdict]:
        if Verdict.PASS in value or Verdict.SKIP in value:
            raise ValueError("expected one of `fail`, `warn`, `noise`, `vacuous`, `error`")
        return value


@final
class SuiteFile(_Entry):
    """A suite of models, settings and probes for `attncheck run --suite`."""

    version: Literal[1] = 1
    include: Many[Word] = _key("Suite files to read first, relative to this one.", list)
    models: list[ModelEntry] = _key(default=list)
    settings: SettingsEntry = _key(default=SettingsEntry)
    probes: list[ProbeEntry] | None = _key("Probes to run; by default all that are installed.")
    skip: Many[Word] = _key("Probes to skip (globs).", list)
    expected_failures: list[ExpectedEntry] = _key(default=list)
    strict: bool | None = _key("Count vacuous, warn and noise as failure.")
    fail_on: Many[Verdict | Literal["trap"]] = _key("Count these verdicts as failure too.", list)
    fail_fast: bool | None = None
    quick: bool | None = _key("Ask the chosen cases only, which catch nearly all faults.")
    budget: Word | None = _key("Ask what fits in this time for each model, such as 30s or 2m.")
    shard: Word | None = _key("I/N: run part I of N of the targets (docs/scale.md).")
    baseline: Word | None = _key("File of accepted findings, relative to this file.")
    reports: dict[Format, Word] = _key("Reports to write, relative to this file.", dict)


def suite_schema() -> dict[str, Any]:
    """The JSON Schema of a suite file."""
    return {"$schema": JSON_SCHEMA, **SuiteFile.model_json_schema(), "title": "attncheck suite"}
