"""What the code of an issue compares."""

from __future__ import annotations

import pytest

from attncheck.triage.issue import read_issue


def block(code: str) -> str:
    return f"Something is off\n```python\n{code}\n```\n"


def test_a_model_called_in_training_mode_is_so_although_eval_follows() -> None:
    code = "model.train()\nprint(model(**x, labels=y).loss)\nmodel.eval()\nprint(model(**x).loss)"
    assert read_issue(block(code)).training_mode
    assert not read_issue(block(f"{code}\nloss.backward()")).training_mode  # it trains, then reads
    assert not read_issue(block("model.eval()\nprint(model(**x).loss)")).training_mode


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("e = model.get_input_embeddings()(ids)\nmodel(inputs_embeds=e)", "module"),
        (
            "e = F.embedding(ids, model.get_input_embeddings().weight)\nmodel(inputs_embeds=e)",
            "table",
        ),
        ("model(inputs_embeds=model.model.embed_tokens.weight[ids])", "table"),
        ("e = F.embedding(ids, w.weight)\nmodel(ids)", ""),
    ],
)
def test_how_embeddings_are_passed_in_the_place_of_ids(code: str, how: str) -> None:
    assert read_issue(block(code)).embeds == how


def test_a_generation_config_counts_where_it_is_passed() -> None:
    made = "cfg = GenerationConfig(do_sample=True, max_new_tokens=5)\n"
    assert read_issue(block(f"{made}model.generate(**x, generation_config=cfg)")).sampled
    assert read_issue(block(made)).sampled  # how it is used is not shown
    unused = read_issue(block(f"{made}model.generate(**x, max_new_tokens=7)"))
    assert (unused.sampled, unused.generate) == (False, 7)


def test_settings_of_sampling_that_change_nothing() -> None:
    code = block("model.generate(**x, temperature=0.2, top_p=0.9)")
    found = read_issue(f"The temperature has no effect, the text is the same.\n{code}")
    assert (found.warped, found.unvaried) == ((("temperature", 0.2), ("top_p", 0.9)), True)
    assert not read_issue(f"Garbage for padded prompts.\n{code}").unvaried


def test_losses_of_prompts_called_alone_and_together() -> None:
    alone = "for text in ['one two', 'three']:\n    x = tok(text)\n    print(model(**x).loss)\n"
    both = f"{alone}x = tok(['one two', 'three'], padding=True)\nprint(model(**x).loss)"
    found = read_issue(block(both))
    assert (found.losses, found.both_ways) == (True, True)
    assert not read_issue(block(alone)).both_ways


def test_padded_ids_that_are_the_labels() -> None:
    call = "x = tok('one two', padding='max_length', max_length=9)\nmodel(**x, labels={})"
    assert read_issue(block(call.format("x.input_ids"))).padding_labelled
    assert read_issue(block(call.format("x['input_ids']"))).padding_labelled
    assert not read_issue(block(call.format("x.input_ids.masked_fill(m, -100)"))).padding_labelled
    alone = "x = tok('one')\nmodel(**x, labels=x.input_ids)\nx = tok(both, padding=True)"
    assert not read_issue(block(alone)).padding_labelled


def test_a_compiled_model_is_run_compiled() -> None:
    found = read_issue(block("m = torch.compile(model)\nprint(m(ids).logits)"))
    assert found.compiled
    assert ("--compile", "torch.compile") in found.lines()
