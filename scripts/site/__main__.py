"""Build the site: python -m scripts.site [OUT] (by default build/site/html)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from attncheck.core import registry
from attncheck.faults import registry as faults
from scripts.site.links import dead_links
from scripts.site.pages import ROOT, write_pages

HOME = ROOT / "build" / "site"


def main(out: Path) -> int:
    """Write the sources, build the site and check its links; the exit code."""
    write_pages(HOME / "src", HOME / "pictures")
    config = HOME / "mkdocs.yml"
    config.write_text(yaml.safe_dump(_config(out), sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(config)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    code = subprocess.run(command, check=False, env=quiet).returncode
    dead = dead_links(out) if code == 0 else []
    print(*dead, sep="\n", end="\n" if dead else "")
    print(f"{len(list(out.rglob('*.html')))} pages in {out}, {len(dead)} dead links")
    return code or bool(dead)


def _config(out: Path) -> dict[str, Any]:
    probes = [f"probes/{name}.md" for name in registry.documented()]
    every = [f"faults/{name}.md" for name in faults.names()]
    return {
        "site_name": "attncheck",
        "site_description": "Finds attention bugs in Hugging Face models.",
        "docs_dir": str(HOME / "src"),
        "site_dir": str(out),
        "use_directory_urls": False,
        "exclude_docs": "tests/findings/generated/",
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.indexes", "navigation.top", "toc.follow", "content.code.copy"],
            "palette": [
                {
                    "media": "(prefers-color-scheme: light)",
                    "scheme": "default",
                    "primary": "indigo",
                },
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "indigo"},
            ],
        },
        "plugins": ["search"],
        "extra_css": ["report.css"],
        "extra": {"generator": False},
        "markdown_extensions": [
            "tables",
            "admonition",
            "attr_list",
            "md_in_html",
            "pymdownx.superfences",
        ],
        "validation": {
            "links": {"anchors": "warn", "not_found": "warn", "unrecognized_links": "warn"},
            "omitted_files": "ignore",
        },
        "nav": [
            {"attncheck": "README.md"},
            {"Five minutes": "docs/start.md"},
            {"Verdicts": "docs/verdicts.md"},
            {"Triage, compare, mask": "docs/triage.md"},
            {"In CI": "docs/ci.md"},
            {"Many and large models": "docs/scale.md"},
            {"Probes": ["probes/index.md", *probes]},
            {"Faults": ["faults/index.md", *every]},
            {"Findings": ["docs/findings.md", "upstream/README.md"]},
            {
                "How we know": [
                    "docs/how-we-know.md",
                    "docs/coverage.md",
                    "docs/skips.md",
                    "docs/cost.md",
                ]
            },
            {"Writing probes": "CONTRIBUTING.md"},
            {"Architecture": "ARCHITECTURE.md"},
            {"Changes": "CHANGELOG.md"},
        ],
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else HOME / "html").absolute()))
