"""The commented suite that `attncheck init` writes."""

from __future__ import annotations

FILE = "attncheck.yaml"
SCHEMA_FILE = ".attncheck.schema.json"

STARTER = """\
# yaml-language-server: $schema={schema}
#
# An attncheck suite: which models to check, how to load them, and which probes to run.
# Run it from this folder or any folder below:
#   attncheck run
# Check the file without loading a model:
#   attncheck validate {file}
# Paths are relative to this file; ${{NAME}} and ${{NAME:-default}} are environment variables.

# Models: org/name[@revision], a folder, a .gguf file, builtin:NAME or path/to/file.py:factory.
models:
  - {target}
  # - target: my-org/my-model
  #   tags: [slow]                      # attncheck run --tag slow, or --tag '!slow'
  #   settings: {{dtype: bfloat16}}       # override the settings below
  #   exclude: [{{attn: eager}}]          # exclude these combinations of settings
  #   skip: [kv-repeat]                 # skip these probes
  #   options:                          # options of probes for this model
  #     document-leakage: {{policy: isolate}}

# How to load every model. With a list, everything runs once for each of its values.
settings:
  # attn: [eager, sdpa]                 # default: the model's own
  dtype: auto                           # auto is the highest precision that fits and runs
  device: auto
  seed: 0

# Probes to run; by default all that are installed (`attncheck probes`).
# `attncheck explain NAME` lists the options of a probe.
# probes:
#   - future-token
#   - decode-paths
#   - document-leakage: {{policy: isolate}}
#   - ./my_probe.py:MyProbe

# Verdicts that fail the run beside `fail`: vacuous (the probe proved nothing), warn, noise, skip.
fail_on: [vacuous]

# Known failures do not fail the run until the last day; when they pass again, the run reports it.
# expected_failures:
#   - model: my-org/my-model
#     probe: decode-paths
#     case: "*2D mask*"
#     reason: fixed in the next release
#     link: https://github.com/my-org/my-model/issues/1
#     expires: 2027-12-31

# Reports, written while the suite runs: json, junit, sarif, markdown, html.
# reports:
#   junit: reports/attncheck.xml
#   html: reports/attncheck.html
"""


def starter(target: str) -> str:
    """The text of a new suite for one target."""
    return STARTER.format(schema=SCHEMA_FILE, file=FILE, target=target)
