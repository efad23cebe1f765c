"""Calls that do something else than their authors mean: what the text of a report shows, and what
the model or the tokenizer shows, each with its evidence.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy

from attncheck.core.errors import first_line
from attncheck.model.embeddings import token_table
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.kept_state import model_untouched
from attncheck.model.padding import Padded, pad_id
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.triage.answer import Question, Remark
from attncheck.triage.issue import USUAL_LENGTH
from attncheck.triage.material import Material, templated, text_of
from attncheck.triage.routes import symptom_of


def misused(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Every such call that this report shows."""
    yield from _training_mode(subject, question, material)
    yield from _table_alone(subject, question, material)
    if not material.whole:
        return
    yield from _padding_labelled(subject, question, material)
    yield from _mean_of_tokens(subject, question, material)
    yield from _one_cache(subject, question, material)
    yield from _pooled(subject, question, material)
    yield from _out_of_reach(subject, question, material)
    if not question.prompts:
        return
    yield from _left_out(subject, question)
    yield from _start_twice(subject, material)
    yield from _template_twice(subject, question)
    yield from _unopened(subject, question)
    yield from _truncated(subject, question)
    yield from _length(question, material)


def _training_mode(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Dropout that is active because nobody called `eval()`."""
    if not (subject.loaded.was_training or question.issue.training_mode):
        return
    row = material.rows[0]
    with model_untouched(subject.model), torch.no_grad(), subject.numerics():
        subject.model.train()
        one_BTV, two_BTV = (subject.passes.call((row,)).logits_BTV for _ in range(2))
    if torch.equal(one_BTV, two_BTV):
        return
    yield Remark(
        title="the model is in training mode",
        words=f"{'It comes' if subject.loaded.was_training else 'The code calls it'} in training "
        "mode, where dropout is active: two equal forwards differ by "
        f"{max_abs_diff(one_BTV, two_BTV):.2g}, and not at all after model.eval(), in which "
        "everything here was checked. Call model.eval() first.",
        decides=True,
    )


def _table_alone(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Embeddings taken from the weight of a module that does more than look them up."""
    if question.issue.embeds != "table":
        return
    table = token_table(subject.model)
    ids_BT = subject.passes.ids(material.rows[:1])
    with torch.no_grad(), subject.numerics():
        whole_BTW = table(ids_BT)
        bare_BTW = torch.nn.functional.embedding(ids_BT, table.weight)
    if torch.equal(whole_BTW, bare_BTW):
        return
    factor = float((whole_BTW * bare_BTW).sum() / bare_BTW.square().sum())
    exact = max_abs_diff(whole_BTW, factor * bare_BTW) < 1e-3 * float(whole_BTW.abs().max())
    more = f"multiplies them by {factor:.6g}" if exact else "computes more than these rows"
    yield Remark(
        title="the embedding module does more than look up rows",
        words=f"The code takes rows of the weight of {type(table).__name__}, which {more}. Call "
        "the module: model.get_input_embeddings()(ids).",
        decides=True,
    )


def _padding_labelled(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Labels that hold the padding, which is then predicted like text."""
    rows = material.rows[: -1 if material.filled else None]
    longest = material.length
    if not question.issue.padding_labelled or longest == min(map(len, rows)):
        return
    pad = pad_id(subject) if material.pad is None else material.pad
    padded = Padded(rows=rows, length=longest, pad=pad, inputs=subject.inputs)
    tokens, mask = padded.tokens("right"), padded.mask("right")
    logits_BTV = subject.logits(ForwardSpec(tokens, mask=mask))[:, :-1]
    ids_BT = subject.passes.ids(tokens)[:, 1:].to(logits_BTV.device)
    real_BT = torch.tensor(mask.rows, device=logits_BTV.device)[:, 1:].bool()
    every_BT = cross_entropy(logits_BTV.transpose(1, 2), ids_BT, reduction="none")
    yield Remark(
        title="the labels hold the padding",
        words="The ids are passed as labels with their padding, and an attention_mask takes no "
        f"position out of a loss: it is {float(every_BT.mean()):.4g} with the padding among the "
        f"targets and {float(every_BT[real_BT].mean()):.4g} without. Set the labels of padding "
        "to -100.",
        decides=True,
    )


def _mean_of_tokens(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Losses of sequences of unequal lengths, averaged over sequences and over tokens."""
    if not (question.issue.losses and question.issue.both_ways and material.unequal):
        return
    sums, counts = [], []
    for row in material.rows:
        logits_TV = subject.logits(ForwardSpec((row,)))[0, :-1]
        later_T = subject.passes.ids((row,))[0, 1:].to(logits_TV.device)
        sums.append(float(cross_entropy(logits_TV, later_T, reduction="sum")))
        counts.append(len(row) - 1)
    of_rows = sum(each / count for each, count in zip(sums, counts, strict=True)) / len(sums)
    yield Remark(
        title="the loss of a batch is a mean over its tokens",
        words=f"The sequences have {min(counts)} to {max(counts)} targets: the mean of their own "
        f"losses is {of_rows:.4g}, the mean over all tokens, which the model computes for the "
        f"batch, {sum(sums) / sum(counts):.4g}. Weigh each loss by its number of targets.",
        decides=True,
    )


def _one_cache(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Prompts that share one cache, which still holds the prompts before."""
    if not question.issue.reused_cache or len(material.rows) < 2:
        return
    first, second = material.rows[:2]
    both_BTV = subject.logits(ForwardSpec(((*first, *second),)))[:, len(first) :]
    apart = max_abs_diff(both_BTV, subject.logits(ForwardSpec((second,))))
    yield Remark(
        title="one cache for all prompts",
        words="The cache is made once, before the loop, and still holds the first prompt when the "
        f"second one is read: it continues the first, which moves its logits by {apart:.2g}. Make "
        "a new cache for each prompt, or crop it to what they share.",
        decides=apart > 0,
    )


def _out_of_reach(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """A prompt whose beginning no window of any layer carries to its end."""
    window, row = subject.facts.window, max(material.rows, key=len)
    if not window or len(row) <= window or symptom_of(question) not in ("", "long"):
        return
    other = subject.inputs.other(row, 0, 1)
    ends = [subject.logits(ForwardSpec((each,)))[:, -1] for each in (row, other)]
    if not torch.equal(*ends):
        return
    yield Remark(
        title="the prompt is longer than its windows reach",
        words=f"Each layer reads {window} tokens back at most, as the config says, and all layers "
        f"together do not reach from the last of {len(row)} tokens to the first: another first "
        "token does not move the last logits at all. Shorten the prompt, or use a model with "
        "layers that read everything.",
        late=True,
    )


def _pooled(subject: Subject, question: Question, material: Material) -> Iterator[Remark]:
    """Outputs of a padded batch that are averaged over padding, or taken from it."""
    how = "" if question.singly else question.issue.pooled
    side = question.pattern.padding or getattr(subject.tokenizer, "padding_side", "")
    if not (material.unequal and (how == "mean" or (how == "last" and side == "right"))):
        return
    longest, shortest = material.length, min(map(len, material.rows))
    what, instead = {
        "mean": ("averages", "Weigh positions by the attention_mask before the mean"),
        "last": (
            "takes the last of",
            "Take the last real token (attention_mask.sum(-1) - 1), or pad on the left",
        ),
    }[how]
    yield Remark(
        title="padding is among the positions that are read",
        words=f"The code {what} all {longest} positions of each sequence, and the shortest has "
        f"{shortest} tokens: what stands at its padding depends on the batch and means nothing. "
        f"{instead}.",
        decides=True,
    )


def _left_out(subject: Subject, question: Question) -> Iterator[Remark]:
    """A turn of the conversation that the chat template does not write."""
    for turns in question.issue.turns if question.chat else ():
        try:
            text = templated(subject, turns, question)
        except Exception as error:  # templates raise what they like for roles that they refuse
            title, why = "the chat template refuses this conversation", first_line(error)
            yield Remark(title=title, words=f"It raises: {why}.", decides=True)
            return
        lost = dict.fromkeys(role for role, words in turns if words.strip() not in text)
        if lost:
            roles = " and ".join(lost)
            yield Remark(
                title=f"the chat template leaves out the {roles} turn",
                words=f"The tokenizer's chat template does not write what the {roles} says: the "
                f"model gets {text[:120]!r}. Use a template that writes it, or put the text into "
                "the user's turn.",
                decides=True,
            )
            return


def _start_twice(subject: Subject, material: Material) -> Iterator[Remark]:
    """A text that begins with the start token, given to a tokenizer that adds it."""
    start = getattr(subject.tokenizer, "bos_token_id", None)
    row = next((row for row in material.rows if len(row) > 2 and row[:2] == (start, start)), None)
    if row is None:
        return
    twice_BV, once_BV = (subject.logits(ForwardSpec((each,)))[:, -1] for each in (row, row[1:]))
    yield Remark(
        title="the start token is there twice",
        words=f"The text already begins with {subject.tokenizer.bos_token} and the tokenizer adds "
        "it again, which moves the logits of the last token by "
        f"{max_abs_diff(twice_BV, once_BV):.2g} against one start token. Tokenize with "
        "add_special_tokens=False, or with apply_chat_template(…, tokenize=True).",
        decides=True,
    )


def _template_twice(subject: Subject, question: Question) -> Iterator[Remark]:
    """A prompt that holds the template's own tokens, put through the template."""
    if not question.chat:
        return
    found = [mark for mark in _marks(subject) if any(mark in each for each in question.prompts)]
    if found:
        yield Remark(
            title="the chat template is applied twice",
            words=f"The prompt already holds the template's own tokens ({', '.join(found[:3])}) "
            "and goes through apply_chat_template again. Pass the bare text.",
            decides=True,
        )


def _marks(subject: Subject) -> list[str]:
    """The special tokens that the chat template writes around what is said."""
    said = "attncheck"
    question = Question(prompts=(said,), chat=True)
    around = text_of(subject, said, question).replace(said, "")
    known = subject.tokenizer.get_added_vocab()
    return [token for token in known if token in around]


def _unopened(subject: Subject, question: Question) -> Iterator[Remark]:
    """A chat that ends after the user, so that the model goes on in the user's place."""
    prompt = question.prompts[0]
    if not (question.chat and question.issue.unopened):
        return
    if text_of(subject, prompt, question) != text_of(subject, prompt, Question(chat=True)):
        yield Remark(
            title="the assistant's turn is not opened",
            words="apply_chat_template is called without add_generation_prompt=True: the text ends "
            "after the user, and the model continues as it likes.",
            late=not symptom_of(question),  # it makes no two calls of one text differ
        )


def _truncated(subject: Subject, question: Question) -> Iterator[Remark]:
    """Prompts that the tokenizer cuts."""
    limit = question.issue.truncated
    if not limit:
        return
    texts = (text_of(subject, prompt, question) for prompt in question.prompts)
    longest = max(len(subject.tokenizer(text)["input_ids"]) for text in texts)
    if longest > limit:
        yield Remark(
            title="the tokenizer cuts the prompt",
            words=f"The longest prompt has {longest} tokens and truncation=True keeps {limit}: "
            "the model never reads the others. Raise max_length.",
            decides=True,
        )


def _length(question: Question, material: Material) -> Iterator[Remark]:
    """Answers that end because of the length that was passed, or because none was."""
    issue, prompt = question.issue, material.length
    left = issue.max_length - prompt
    if issue.max_length and (issue.short or left < 2):
        yield Remark(
            title="max_length counts the prompt",
            words=f"max_length={issue.max_length} is the length of prompt and answer: with "
            f"{prompt} tokens of prompt {max(0, left)} are left. Pass max_new_tokens.",
            decides=True,
        )
    elif issue.default_length and issue.short:
        yield Remark(
            title="no length was passed to generate()",
            words=f"generate() then stops after {USUAL_LENGTH} tokens unless the model's "
            "generation config says otherwise. Pass max_new_tokens.",
            decides=True,
        )
