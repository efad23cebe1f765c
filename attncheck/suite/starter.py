"""The commented suite that `attncheck init` writes."""

from __future__ import annotations

FILE = "attncheck.yaml"
SCHEMA_FILE = ".attncheck.schema.json"

STARTER = """\
# yaml-language-server: $schema={schema}
#
# An attncheck suite: which models to check, how to load them, and what to ask. Run it from anywhere below this folder:
#   attncheck run
# Check the file without loading a model:
#   attncheck validate {file}
# Every path is relative to this file; ${{NAME}} and ${{NAME:-default}} are environment variables.

# What to check: org/name[@revision], a folder, a .gguf file, builtin:NAME, or path/to/file.py:factory.
models:
  - {target}
  # - target: my-org/my-model
  #   tags: [slow]                      # attncheck run --tag slow, or --tag '!slow'
  #   settings: {{dtype: bfloat16}}       # in place of those below
  #   exclude: [{{attn: eager}}]          # combinations to leave out
  #   skip: [kv-repeat]                 # probes to leave out
  #   options:                          # options of probes for this model
  #     document-leakage: {{policy: isolate}}

# How to load every model. A list is an axis: everything runs for each of its values.
settings:
  # attn: [eager, sdpa]                 # default: the model's own
  dtype: auto                           # the highest precision that fits; float32, bfloat16 and float16 load as they are
  device: auto
  seed: 0

# What to ask; without this key all installed probes (`attncheck probes`). Options: `attncheck explain NAME`.
# probes:
#   - future-token
#   - decode-paths
#   - document-leakage: {{policy: isolate}}
#   - ./my_probe.py:MyProbe

# Verdicts that fail the run beside `fail`: vacuous (the probe proved nothing), warn, noise, skip.
fail_on: [vacuous]

# Failures that are known: they do not fail the run until the last day; when they pass again the run says so.
# expected_failures:
#   - model: my-org/my-model
#     probe: decode-paths
#     case: "*2D mask*"
#     reason: mended in the next release
#     link: https://github.com/my-org/my-model/issues/1
#     expires: 2027-12-31

# Reports to write while it runs: json, junit, sarif, markdown, html.
# reports:
#   junit: reports/attncheck.xml
#   html: reports/attncheck.html
"""


def starter(target: str) -> str:
    """The text of a new suite for one target."""
    return STARTER.format(schema=SCHEMA_FILE, file=FILE, target=target)
