"""What is read out of an issue's text, by plain rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.triage.issue import Issue, read_issue

ISSUES = Path(__file__).parent / "issues"


def read(name: str) -> Issue:
    return read_issue((ISSUES / f"{name}.md").read_text(encoding="utf-8"))


def test_a_batch_in_a_code_block_is_read_whole() -> None:
    found = read("left_padded_batch")
    assert found.prompts == (
        "one cat sat on two mat and ran over three hill",
        "two dog ran",
        "six cat saw four moon",
    )
    assert (found.dtype, found.attn, found.padding) == ("bfloat16", "sdpa", "left")
    assert (found.generate, found.sampled, found.cache) == (24, False, "")
    assert dict(found.versions)["transformers"] == "4.57.1"


def test_prompts_of_a_shell_and_arguments_of_generate_are_read() -> None:
    found = read("sampled")
    assert found.prompts == ("one cat sat on two mat",)
    assert (found.sampled, found.generate) == (True, 8)
    assert dict(found.versions) == {"transformers": "4.56.0", "torch": "2.8.0"}


def test_a_repeated_prompt_is_computed_and_prose_names_the_dtype() -> None:
    found = read("long_prompt")
    assert len(found.prompts[0].split()) == 1100
    assert (found.dtype, found.generate) == ("float32", 0)


def test_of_two_implementations_the_one_that_is_loaded_counts() -> None:
    found = read("flex")
    assert (found.attn, found.dtype) == ("flex_attention", "float32")


def test_beams_and_a_stated_difference_are_read() -> None:
    assert (read("beams").beams, read("beams").generate) == (3, 6)
    assert (read("difference").difference, read("difference").dtype) == (0.02, "float16")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("```python\nmodel.half()\n```", "dtype", "float16"),
        ("```\ncache = StaticCache(config=c)\n```", "cache", "static"),
        ('```\nm.generate(x, cache_implementation="quantized")\n```', "cache", "quantised"),
        ("```\nmodel.generate(x, use_cache=False)\n```", "cache", "off"),
        ('```\ntok.padding_side = "right"\n```', "padding", "right"),
        ("works with eager, fails with sdpa", "attn", ""),
        ("fails with a static cache", "cache", "static"),
        (
            '```\nm = [{"role": "user", "content": "hi there"}]\n'
            "x = tok.apply_chat_template(m)\n```",
            "chat",
            True,
        ),
        ("```\nthis is no python at all:\nmodel.half()\n```", "dtype", "float16"),
    ],
)
def test_single_settings(text: str, name: str, value: object) -> None:
    assert getattr(read_issue(text), name) == value


def test_a_conversation_gives_what_the_user_says() -> None:
    text = (
        '```\nmessages = [{"role": "system", "content": "be brief"},\n'
        '            {"role": "user", "content": "hi there"}]\n```'
    )
    assert read_issue(text).prompts == ("hi there",)


def test_an_issue_without_anything_says_nothing_and_what_was_read_names_its_option() -> None:
    assert read_issue("It does not work.") == Issue()
    assert Issue().lines() == ()
    assert ("--padding-side", "left") in read("left_padded_batch").lines()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('my code:\n    tok("once upon a time")\n', "prompts", ("once upon a time",)),
        ('I type prompt "once upon a time" and', "prompts", ("once upon a time",)),
        ("```python\nmodel.half()\nit ends here", "dtype", "float16"),
        ("```\nm.generate(a, use_cache=True)\nm.generate(a, use_cache=False)\n```", "cache", ""),
        ("```\nprint((a - b).abs().max())  # tensor(0.0312)\n```", "difference", 0.0312),
        ("```\n(a - b).abs().max()\n# 3.3e-06\n```", "difference", 3.3e-06),
        ("```\n(a - b).abs().max()\n```\ntransformers 4.46.1", "difference", 0.0),
        ("```\nm.generate(a, max_length=40)\n```", "max_length", 40),
        ("```\nm.generate(a)\n```", "default_length", True),
        ("```\nm.generate(a, max_new_tokens=4)\n```", "default_length", False),
        ("```\ntok(a, truncation=True, max_length=16)\n```", "truncated", 16),
        ("```\nt = tok.apply_chat_template(m, tokenize=False)\n```", "retokenized", True),
        ("```\nt = tok.apply_chat_template(m)\n```", "retokenized", False),
        ("```\nt = tok.apply_chat_template(m)\n```", "unopened", True),
        ("```\nmodel.train()\n```", "training_mode", True),
        ("```\ntrainer.train()\n```", "training_mode", False),
        ("```\nm.generate(e.input_ids)\n```", "unmasked", True),
        ("```\nmodel(e.input_ids, e.attention_mask)\n```", "unmasked", False),
        ("```\nm.generate(**e)\n```", "unmasked", False),
        ("```\nm.generate(x, attention_mask=torch.ones_like(x))\n```", "mask_of_ones", True),
        ("```\nm.generate(x, attention_mask=e.mask)\n```", "mask_of_ones", False),
        ("vLLM gives another text", "engine", True),
        ("All logits are NaN", "lost", True),
        ("In banana", "lost", False),
        ("The answer stops after a few words", "short", True),
        ("The shorter prompts are wrong", "short", False),
        ("The tuned model never stops", "endless", True),
        ("I pack two documents into a row", "symptom", "packing"),
        ("The loss is higher with gradient accumulation", "symptom", "training"),
        ("eager and sdpa give other logits", "symptom", "implementation"),
        ("past_key_values change the logits", "symptom", "cache"),
        ("Padded prompts are wrong", "symptom", "padding"),
        ("Nonsense after 500 tokens", "symptom", "long"),
        ("It writes nonsense", "symptom", ""),
        ("4-bit is nonsense, fp16 is fine", "dtype", "auto"),
        ('```\nwho = "dog"\ntok(f"once a {who} ran")\n```', "prompts", ("once a dog ran",)),
        ('```\ntok(f"once a {unknown} ran")\n```', "prompts", ()),
        ("```\nk = dict(num_beams=4)\nm.generate(x, num_beams=2)\n```", "beams", 2),
        ('```\nk = {"num_beams": 4}\nm.generate(x, **k)\n```', "beams", 4),
        (
            '```\nc = []\nc.append({"role": "user", "content": "hi"})\ntok(c)\n```',
            "prompts",
            ("hi",),
        ),
        ("```\nx = torch.tensor([[5, 6, 7]])\n```", "ids", ((5, 6, 7),)),
        ("```\nmodel(torch.LongTensor([5, 6, 7]))\n```", "ids", ((5, 6, 7),)),
        ("```\nmask = torch.tensor([[5, 6, 7]])\n```", "ids", ()),
        ("```\nx = torch.tensor([[0, 1, 1]])\n```", "ids", ()),
        ("```\nx = torch.randint(0, 100, (4, 30))\n```", "shape", (4, 30)),
        ("```\nx = torch.randint(100, size=(1, 30))\n```", "shape", (1, 30)),
        (
            "```\nm.generate(x, repetition_penalty=1.2)\n```",
            "changing",
            (("repetition_penalty", 1.2),),
        ),
        ("```\nm.generate(x, repetition_penalty=1.0)\n```", "changing", ()),
        ("```\nc = BitsAndBytesConfig(load_in_4bit=True)\n```", "quantised", "4-bit"),
        ("```\nm = torch.compile(m)\n```", "compiled", True),
        (
            "```\nm.generate(x, prompt_lookup_num_tokens=3)\n```",
            "assisted",
            "prompt_lookup_num_tokens",
        ),
        ('```\np = pipeline("text-generation")\np("once upon a time")\n```', "piped", True),
        ('```\np = pipeline("text-generation")\np("a b", do_sample=False)\n```', "piped", False),
        ('```\np = pipeline("text-generation")\np("once upon")\n```', "prompts", ("once upon",)),
        ('```\nfor p in ["a b", "c d"]:\n    tok(p)\n```', "prompts", ("a b", "c d")),
        ('```\nfor p in ["a b", "c d"]:\n    tok(p)\n```', "singly", True),
        ('```\ntok(["a b", "c d"])\n```', "singly", False),
        ('```\nx = [f(p) for p in ["a b", "c d"]]\ntok(x, padding=True)\n```', "singly", False),
        ('```\nfor p in ["a b", "c d"]:\n    tok(p)\ntok(unknown)\n```', "singly", False),
        ("```\nprint(out.hidden_states[-1].mean(dim=1))\n```", "pooled", "mean"),
        ("```\nprint(model(**x).logits[:, -1])\n```", "pooled", "last"),
        ("```\nprint(model(**x).logits[0, -1])\n```", "pooled", ""),
    ],
)
def test_what_people_write_in_other_words_is_read(text: str, name: str, value: object) -> None:
    assert getattr(read_issue(text), name) == value


def test_a_conversation_keeps_its_turns() -> None:
    code = (
        'm = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},\n'
        '     {"role": "assistant", "content": "yes"},\n'
        '     {"role": "user", "content": [{"type": "text", "text": "and now"}]}]\n'
        "tok.apply_chat_template(m)"
    )
    found = read_issue(f"```\n{code}\n```")
    assert found.prompts == ("and now",)
    assert [role for role, _ in found.conversation("and now")] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert found.conversation("another") == (("user", "another"),)


REUSED = "cache = DynamicCache()\nfor text in texts:\n    {}\n    model(ids, past_key_values={})\n"


@pytest.mark.parametrize(
    ("code", "reused"),
    [
        (REUSED.format("ids = tok(text)", "cache"), True),
        (REUSED.format("cache = DynamicCache(); ids = tok(text)", "cache"), False),
        (REUSED.format("chat.append(text)", "cache"), False),
        (REUSED.format("ids += tok(text)", "cache"), False),
        (REUSED.format("cache.crop(5); ids = tok(text)", "cache"), False),
        (REUSED.format("ids = tok(text)", "DynamicCache()"), False),
        (REUSED.format("ids = tok(text)", "copy.deepcopy(cache)"), False),
    ],
)
def test_a_cache_made_before_a_loop_over_texts_is_seen(code: str, reused: bool) -> None:
    assert read_issue(f"```python\n{code}```").reused_cache is reused


def test_of_two_implementations_that_are_loaded_neither_is_taken() -> None:
    code = 'a = load(p, attn_implementation="sdpa")\nb = load(p, attn_implementation="eager")'
    found = read_issue(f"```\n{code}\n```")
    assert (found.attn, found.symptom) == ("", "implementation")


def test_a_release_behind_brackets_is_read() -> None:
    found = read_issue("- PyTorch version (accelerator?): 2.13.0+cpu (NA)")
    assert found.versions == (("pytorch", "2.13.0+cpu"),)
