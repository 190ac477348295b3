"""Needles in English: the positions are those of the words, whatever the tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from antiphase.tasks.text.tokenizer import make_tokenizer
from antiphase.tasks.word_needles import CITIES, DEPTHS, HAYSTACK, WordNeedles

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def pairs():
    return make_tokenizer("bpe:400", HAYSTACK)


@pytest.fixture(scope="module")
def single():
    return make_tokenizer("bytes", [])


@pytest.mark.parametrize("kind", ["pairs", "single"])
@pytest.mark.parametrize("template", [None, TEMPLATE])
@settings(max_examples=30, deadline=None)
@given(i=st.integers(0, 10_000), needles=st.integers(1, 8))
def test_a_question_points_at_its_words(kind, template, pairs, single, i, needles):
    tokenizer = pairs if kind == "pairs" else single
    tokenizer.chat_template = template
    task = WordNeedles(tokenizer, length=900, needles=needles)
    q = task.question(i)
    tokenizer.chat_template = None
    assert len(q.ids) <= 900
    assert q.text.count("The special number for") == needles + 1
    answer = tokenizer.decode(q.ids[q.answer :]).strip()
    assert answer.isdigit()
    city = q.text.rsplit("The special number for ", 1)[1].split()[0]
    words = tokenizer.decode([q.ids[t] for t in q.relevant])
    assert city in words
    assert answer in words
    assert tokenizer.decode(q.ids[q.row + 1]).strip()[0] == answer[0]
    assert max(q.relevant) < q.row
    assert (template is None) == ("Question:" in q.text)


def test_depth_is_the_position_of_the_needle(single):
    task = WordNeedles(single, length=1500, needles=1)
    places = [task.question(i).relevant[0] for i in range(len(DEPTHS))]
    assert places == sorted(places)
    assert places[0] < 100
    assert places[-1] > 1100
    assert [task.question(i).depth for i in range(5)] == list(DEPTHS)


def test_the_same_index_gives_the_same_question(single):
    task = WordNeedles(single, length=900)
    assert task.question(3) == WordNeedles(single, length=900).question(3)
    assert task.question(3) != WordNeedles(single, length=900, seed=1).question(3)
    assert len({task.question(i).text for i in range(30)}) == 30


def test_an_appended_end_token_is_not_part_of_the_answer():
    ending = make_tokenizer("bytes", [])
    plain = WordNeedles(ending, length=900).question(0)
    ending.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", 0)]
    )
    assert ending("a")["input_ids"][-1] == 0
    assert WordNeedles(ending, length=900).question(0).ids == plain.ids


def test_a_failing_chat_template_raises(single):
    single.chat_template = "{{ raise_exception('no') }}"
    try:
        with pytest.raises(ValueError, match="the tokenizer's chat template does not work"):
            WordNeedles(single)
    finally:
        single.chat_template = None


def test_invalid_options_raise(single):
    with pytest.raises(ValueError, match="length: 100 tokens leave no room for a haystack"):
        WordNeedles(single, length=100)
    with pytest.raises(ValueError, match=f"needles: got 0, expected 1 to {len(CITIES)}"):
        WordNeedles(single, needles=0)
    with pytest.raises(ValueError, match="needs a fast tokenizer"):
        WordNeedles(object())
