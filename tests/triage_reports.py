"""The bench of triage: reports as people filed them, acted out, and the answer that was right.

The table in docs/triage.md is made of these by `python -m scripts.triage_reports`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

ACTED, STRANGERS, ISSUES = (
    f"tests/triage/{name}" for name in ("reported_models.py", "strangers.py", "issues")
)
PROMPTS = (
    "one cat sat on two mat and ran over three hill",
    "two dog ran",
    "six cat saw four moon",
)
BATCH = " ".join(f'--prompt "{prompt}"' for prompt in PROMPTS)
FAULT, ROUNDING, DESIGN, NOTHING = (
    "CONFIRMED",
    "EXPECTED NUMERICS",
    "EXPECTED BEHAVIOUR",
    "NOT REPRODUCED",
)


@final
@dataclass(frozen=True)
class Report:
    """What they saw, the command, the right answer and words that must be in it.

    A `slow` one is left out of `make test`.
    """

    saw: str
    command: str
    answer: str
    words: str
    slow: bool = False

    @property
    def healthy(self) -> bool:
        """Whether the model has no fault."""
        return self.answer != FAULT


def acted(name: str) -> str:
    """A model of reported_models.py."""
    return f"{ACTED}:{name}"


def stranger(name: str) -> str:
    """A model of strangers.py."""
    return f"{STRANGERS}:{name}"


def issue(name: str) -> str:
    """The option that reads an issue."""
    return f"--from {ISSUES}/{name}.md"


FIRST = (
    Report(
        "generate with and without a cache gives other scores from the second token on "
        "(transformers 36536)",
        "builtin:gqa --symptom cache --dtype bfloat16",
        ROUNDING,
        "in bfloat16",
    ),
    Report(
        "the cache changes logits by 0.02 in float16 (transformers 25420, 26869)",
        "builtin:mha --symptom cache --dtype float16 --difference 0.02",
        ROUNDING,
        "in float16",
    ),
    Report(
        "the same prompt gets another answer when the batch grows (vllm 5898)",
        "builtin:moe --symptom batch --dtype bfloat16",
        ROUNDING,
        "top-1 flips",
    ),
    Report(
        "two engines write different greedy text at temperature 0 (vllm 1069, 1128)",
        f"{acted('near_ties')} --dtype bfloat16 --generate 24",
        ROUNDING,
        "nearer than rounding moves them",
    ),
    Report(
        "the same, and it was the settings",
        f"{acted('sampling')} --generate 8",
        DESIGN,
        "sampling is on",
    ),
    Report(
        "accuracy gone after an upgrade (transformers 38277)",
        f"{acted('scaled_twice')} --symptom upgrade",
        FAULT,
        "softmax-scale in model.layers.0.self_attn",
    ),
    Report(
        "wrong answers in a batch (transformers 32848)",
        f"{acted('cap_dropped_with_padding')} --symptom batch",
        FAULT,
        "softcap-missing in model.layers.0.self_attn",
    ),
    Report(
        "tuned with packing, quality dropped (trl 1230)",
        "builtin:gqa --symptom packing",
        DESIGN,
        "restarted positions, no mask, default cache",
    ),
    Report(
        "the same, in a family that ought to isolate",
        "config:opt --symptom packing",
        FAULT,
        "document-leak in model.decoder.layers.0.self_attn",
    ),
    Report(
        "their own conversion is gibberish, the original is fine (TinyLlama 24, llama.cpp 2376)",
        f"{acted('converted')} --against {acted('original')}",
        FAULT,
        "interleaved for 4 heads and taken apart for 8",
    ),
    Report(
        "the loss starts at 10 with `use_cache=False` (transformers 45242)",
        f"{acted('shared_keys_need_a_cache')} --symptom training",
        FAULT,
        "right with use_cache=True",
    ),
    Report(
        "garbage without a cache, fine with one (torchtune 959)",
        acted("mask_made_with_the_cache"),
        FAULT,
        "causal-mask-missing in model.layers.0.self_attn",
    ),
    Report(
        'every answer is "!!!!" (vllm 14126)',
        f"{acted('overflows')} --dtype float16",
        FAULT,
        "overflow in model.layers.1.mlp.down_proj",
    ),
    Report(
        "the saved prompt cache gives gibberish (mlx-examples 977)",
        f"{acted('empty_tail_saved')} --symptom cache",
        FAULT,
        "a prefix continued in two ways",
    ),
    Report(
        "wrong with a static cache only",
        "config:gpt_neo --cache static --symptom cache",
        FAULT,
        "on a static cache",
    ),
    Report(
        "trained with labels=input_ids, the model copies its input (transformers 10480)",
        "config:bart --symptom training",
        DESIGN,
        "labels of one row",
    ),
    Report(
        "more accumulation steps, higher loss (transformers 47688)",
        f"{acted('loss_of_each_step')} --symptom training",
        FAULT,
        "loss-not-accumulated",
    ),
    Report(
        "the tuned model never stops (trl 976)",
        f"{acted('pad_is_eos')} --symptom training",
        DESIGN,
        "padding is the end of text",
    ),
    Report(
        "good beside its base, bad merged (unsloth 522, peft 1035)",
        f"{acted('merged_into_quantised')} --against {acted('with_adapter')}",
        FAULT,
        "in every direction",
    ),
    Report(
        "padded batches answer worse",
        f"{acted('positions_lost_in_the_batch')} --symptom padding",
        FAULT,
        "position-ids-ignored",
    ),
    Report(
        "fine until the text is long",
        f"{acted('window_forgotten')} --symptom long",
        FAULT,
        "window-ignored in model.layers.0.self_attn",
    ),
    Report(
        "nonsense in every sequence but the longest",
        f'{acted("with_words")} --prompt "one cat sat on two mat" --prompt "two dog ran" '
        "--generate 4",
        DESIGN,
        "padding on the right of a prompt",
    ),
    Report(
        "the chat model rambles",
        f'{acted("chat")} --prompt "one cat sat on two mat"',
        DESIGN,
        "the chat template is missing",
    ),
    Report("nothing is wrong", acted("healthy"), NOTHING, "a fault would have shown"),
)
LENGTHS = (
    Report(
        "garbage for some prompt lengths, fine for others",
        f"{stranger('wrong_every_32')} --symptom long",
        FAULT,
        "lengths of 32 k + 1",
    ),
    Report(
        "the same said of a healthy model",
        "builtin:gqa --symptom long",
        NOTHING,
        "a fault would have shown",
    ),
    Report(
        "the start of a long prompt is forgotten",
        f"{stranger('forgets_beyond_1066')} {issue('long_prompt')}",
        FAULT,
        "lengths beyond 1066",
        slow=True,
    ),
    Report(
        "the same issue about a healthy model",
        f"{stranger('roomy')} {issue('long_prompt')}",
        NOTHING,
        "one sequence of the prompts",
        slow=True,
    ),
    Report(
        "fine until the window is full, said of a healthy model",
        "builtin:window --symptom long",
        NOTHING,
        "a fault would have shown",
    ),
    Report(
        "text degrades late in an answer",
        f"{stranger('step_off_by_one_in_long_answers')} {BATCH} --generate 40",
        FAULT,
        "position-offset",
        slow=True,
    ),
)
CACHES = (
    Report(
        "other answers with a quantised cache",
        "builtin:gqa --cache quantised",
        DESIGN,
        "a quantised cache rounds what it stores",
    ),
    Report(
        "much worse answers with a quantised cache",
        f"{stranger('outlier_channels')} --cache quantized",
        DESIGN,
        "outlier channels",
    ),
    Report(
        "the same, and the cache was not the reason",
        f"{stranger('restarts_on_a_cache')} --cache quantised",
        FAULT,
        "position-restart",
    ),
    Report(
        "generate() with a static cache writes other text",
        "config:gpt_neo --cache static --generate 8",
        FAULT,
        "on a static cache",
    ),
    Report(
        "the same said of a healthy model",
        "builtin:gqa --cache static --generate 8",
        NOTHING,
        "generate() of 8 tokens",
    ),
    Report(
        "cached answers are a little off",
        f"{stranger('half_cache')} --symptom cache",
        FAULT,
        "cache-low-precision",
    ),
    Report(
        "beam search returns nonsense, greedy text is fine",
        f"{stranger('beams_not_reordered')} --beams 3 --generate 6",
        FAULT,
        "rows turned round",
    ),
    Report(
        "the same issue about a healthy model",
        f"{stranger('rotary')} {issue('beams')}",
        NOTHING,
        "3 beams",
    ),
    Report(
        "worse on a cache, and worse without one",
        f"{stranger('two_faults')} --symptom cache",
        FAULT,
        "and another fault: measured: position-restart",
    ),
)
BATCHES = (
    Report(
        "left-padded logits are off, one at a time they are right",
        f"{stranger('absolute')} {BATCH}",
        DESIGN,
        "position_ids",
    ),
    Report(
        "the same through generate()",
        f"{stranger('absolute')} {BATCH} --generate 8",
        NOTHING,
        "11, 3, 5 tokens, up to 8 of padding",
    ),
    Report(
        "the same with rotary positions",
        f"{stranger('rotary')} {BATCH}",
        NOTHING,
        "left-padded",
    ),
    Report(
        "only the first row of a batch is right",
        f"{stranger('mask_of_the_first_row')} {BATCH} --generate 8",
        FAULT,
        "padding-visible",
    ),
    Report(
        "a tokenizer without a padding token, wrong in a batch",
        f"{stranger('without_pad_token_and_padding_seen')} {BATCH} --generate 4",
        FAULT,
        "padding-visible",
    ),
    Report(
        "the same said of a healthy model",
        f"{stranger('without_pad_token')} {BATCH} --generate 8 --padding-side left",
        NOTHING,
        "left-padded",
    ),
    Report(
        "batched text differs in bfloat16",
        f"{stranger('near_ties_with_words')} {issue('left_padded_batch')}",
        ROUNDING,
        "top-1 flips",
    ),
    Report(
        "the same, and the mask of the first row was used for all",
        f"{stranger('mask_of_the_first_row')} {issue('left_padded_batch')}",
        FAULT,
        "padding-visible",
    ),
    Report(
        "the chat template is used, and the batch is padded on the right",
        f"{stranger('chat_template')} {BATCH} --chat --generate 4",
        DESIGN,
        "padding on the right of a prompt",
    ),
    Report(
        "a padded batch is wrong for some lengths",
        f"{stranger('wrong_in_eights_when_padded')} --symptom padding",
        FAULT,
        "softmax-scale",
    ),
)
SETTINGS = (
    Report(
        "every run gives another answer",
        f"{stranger('rotary')} {issue('sampled')}",
        DESIGN,
        "sampling is on",
    ),
    Report(
        "flex_attention gives garbage",
        f"{stranger('wrong_flex')} {issue('flex')}",
        FAULT,
        "softmax-scale",
    ),
    Report(
        "the same issue about a healthy model",
        f"{stranger('rotary')} {issue('flex')}",
        NOTHING,
        "attention flex_attention",
        slow=True,
    ),
    Report(
        "accuracy halved after an upgrade, said of a healthy model in bfloat16",
        "builtin:gqa --symptom upgrade --dtype bfloat16",
        NOTHING,
        "in bfloat16",
    ),
    Report(
        "a difference of 0.02 in float16",
        f"builtin:mha {issue('difference')} --symptom cache",
        ROUNDING,
        "in float16",
    ),
    *(
        Report(
            f"something is wrong ({symptom}), said of a healthy model",
            f"builtin:gqa --symptom {symptom}",
            NOTHING,
            "the best token stays the same",
        )
        for symptom in ("batch", "cache", "implementation")
    ),
)
REPORTS = (*FIRST, *LENGTHS, *CACHES, *BATCHES, *SETTINGS)


def table(reports: tuple[Report, ...]) -> str:
    """The reports as a table of Markdown."""
    rows = ["| they saw | command | answer |", "|---|---|---|"]
    for each in reports:
        command = re.sub(r"\s+", " ", each.command)
        rows.append(
            f"| {each.saw} | `attncheck triage {command}` | {each.answer}: `{each.words}` |"
        )
    return "\n".join(rows) + "\n"
