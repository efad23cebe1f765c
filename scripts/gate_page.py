"""Write the gate of docs/ci.md: the sample repository, its workflow, and the comment on a pull request.

    python -m scripts.gate_page

The pull request changes the second layer in batches above one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_configs" / "gate"
PAGE = ROOT / "docs" / "ci.md"
BEGIN, END = "<!-- made by scripts/gate_page.py -->", "<!-- end of scripts/gate_page.py -->"
BEFORE = "        return output, weights\n"
CHANGE = """        if len(hidden_states) > 1 and self.layer_idx == 1:  # a faster path for batches
            output = output - output[:, :1] * 0.1
"""


def attncheck(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """One command in the sample repository."""
    return subprocess.run(
        [sys.executable, "-m", "attncheck", *arguments, "--no-progress"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def gate_command() -> list[str]:
    """The command of the workflow, without the program."""
    (found,) = re.findall(r"run: attncheck (gate .*)", (SAMPLE / "workflow.yml").read_text())
    return str(found).split()


def made(folder: Path) -> tuple[int, int, str, str]:
    """Exit codes of the gate before and with the change, what it prints then, and the comment."""
    shutil.copy(SAMPLE / "model.py", folder)
    attncheck("record", "model.py:build", "-o", "golden.safetensors", folder=folder)
    healthy = attncheck(*gate_command(), folder=folder).returncode
    text = (folder / "model.py").read_text()
    (folder / "model.py").write_text(text.replace(BEFORE, CHANGE + BEFORE))
    changed = attncheck(*gate_command(), folder=folder)
    return healthy, changed.returncode, changed.stdout, (folder / "comment.md").read_text()


def section(comment: str) -> str:
    """The part of the page between the two marks."""
    workflow, change = (SAMPLE / "workflow.yml").read_text(), CHANGE.rstrip()
    return f"""{BEGIN}

```
my-model/
  model.py                        build() returns the model: small, with fixed weights
  golden.safetensors              attncheck record model.py:build -o golden.safetensors
  .github/workflows/gate.yml      below
```

```yaml
{workflow}```

A pull request that adds

```python
{change}
```

to the attention of `model.py` gets this comment (exit code 1):

{comment.strip()}

{END}"""


def main() -> None:
    """Make the sample repository, run the workflow's commands, and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        *_, comment = made(Path(folder))
    page = PAGE.read_text()
    start, stop = page.index(BEGIN), page.index(END) + len(END)
    PAGE.write_text(page[:start] + section(comment) + page[stop:])


if __name__ == "__main__":
    main()
