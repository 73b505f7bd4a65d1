"""Alignments of training pairs: from Pharaoh files over the store into batches."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch

from nmtkit.config import load as load_recipe
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.data.batches.batch import collate
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.checking import PairChecker
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs, require_link_base
from nmtkit.data.tokenizers.tokenizer import SentencePieceTokenizer, TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.data.tokenizers.words import cut_words, share_table, token_links, token_spans
from tests.data.stored import checker, write_store
from tests.support.learned_tokenizers import learn_tokenizers

TEXTS = {
    "a.en": "the dog sees\nAnna\n\n",
    "a.de": "den Hund sieht er\nAnna\n\n",
    "a.align": "0-0 1-1 2-2\n0-0\n\n",
}


def write(folder: Path, texts: Mapping[str, str]) -> SplitFiles:
    """The files, and the settings that name them."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    kinds = {
        "en": "src",
        "de": "tgt",
        "align": "alignment",
        "en-words": "src_words",
        "de-words": "tgt_words",
    }
    named = {kinds[name.split(".")[1]]: str(folder / name) for name in texts}
    return SplitFiles.model_validate(named)


def learned(kind: str = "bpe", **settings: object) -> Tokenizers:
    lines = [
        "the dog sees Anna the dogs see Otto's dog",
        "den Hund sieht er Anna Hunde sehen Ottos Hund l'homme.",
    ]
    config = TokenizerConfig.model_validate({"kind": kind, "vocab_size": 60, **settings})
    return learn_tokenizers(config, [Example(line, line, 1) for line in lines])


def stored(
    folder: Path, examples: list[Example], tokenizers: Tokenizers, check: PairChecker | None = None
) -> Store:
    """The store of a training set, with its text."""
    write_store(folder, "train", examples, tokenizers, check or checker(), keep_text=True)
    return Store.open(folder, "train")


# Reading.


def test_links_come_with_their_pairs(tmp_path: Path) -> None:
    files = write(tmp_path, TEXTS)
    pairs = list(read_pairs(files))
    assert [pair.links for pair in pairs] == [
        frozenset({(0, 0), (1, 1), (2, 2)}),
        frozenset({(0, 0)}),
        frozenset(),
    ]
    assert [(pair.src, pair.line) for pair in pairs] == [("the dog sees", 1), ("Anna", 2), ("", 3)]
    assert files.paths()[-1].endswith(".align")
    assert not any(name.endswith(".align") for name in files.texts())


def test_possible_links_count_and_several_files_follow_one_another(tmp_path: Path) -> None:
    one = write(tmp_path, {"a.en": "x y\n", "a.de": "u v\n", "a.align": "0-0 1?1\n"})
    two = write(tmp_path, {"b.en": "z\n", "b.de": "w\n", "b.align": "0p0"})
    both = {kind: getattr(one, kind) + getattr(two, kind) for kind in ("src", "tgt", "alignment")}
    assert [(pair.line, pair.links) for pair in read_pairs(SplitFiles.model_validate(both))] == [
        (1, frozenset({(0, 0), (1, 1)})),
        (2, frozenset({(0, 0)})),
    ]
    unlinked = SplitFiles(src=one.src, tgt=one.tgt)
    assert [pair.links for pair in read_pairs(unlinked)] == [None]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"a.align": "0-0\n0-0\n"},
            r"a\.en has 3 lines, but .*a\.align has 2: line n of one file must belong to",
        ),
        ({"a.align": "0-0\n0-0\n\n\n\n"}, r"a\.en has 3 lines, but .*a\.align has 5"),
        (
            {"a.align": "0-0\n0-0 1-0\n\n"},
            r"a\.align, line 2: a link refers to source word 1 \(counted from 0\), but the number of source words is 1",
        ),
        (
            {"a.align": "0-0\n0-1\n\n"},
            r"a\.align, line 2: a link refers to target word 1 \(counted from 0\), but the .* is 1.*tgt_words",
        ),
        (
            {"a.align": "0-0 1-4\n\n\n"},
            r"a\.align, line 1: a link refers to target word 4 \(counted from 0\), but the number of target words is 4",
        ),
        (
            {"a.align": "0-0\n0_0\n\n"},
            r"a\.align, line 2: '0_0' is not a link; expected, for example, 3-4",
        ),
        (
            {"a.align": "0-0\n\n0-0\n"},
            r"a\.align, line 3: a link refers to source word 0 \(counted from 0\), but the number of source words is 0",
        ),
        (
            {"a.de": "den Hund sieht er\nAnna\n"},
            r"a\.en has 3 lines, but .*a\.de has 2: .* the translation of",
        ),
        ({"a.en-words": "the dog sees\nAnna\n"}, r"a\.en has 3 lines, but .*a\.en-words has 2"),
    ],
)
def test_a_faulty_alignment_is_one_clear_error(
    tmp_path: Path, change: dict[str, str], fault: str
) -> None:
    with pytest.raises(DataError, match=fault) as caught:
        list(read_pairs(write(tmp_path, {**TEXTS, **change})))
    assert len(str(caught.value).splitlines()) == 1


def test_links_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"src": "a b", "tgt": "c d", "al": "0-1 1-0"}\n{"src": "a", "tgt": "b", "al": ""}\n'
    )
    columns = {
        kind: f"{path}#{key}" for kind, key in (("src", "src"), ("tgt", "tgt"), ("alignment", "al"))
    }
    files = SplitFiles.model_validate(columns)
    assert [pair.links for pair in read_pairs(files)] == [frozenset({(0, 1), (1, 0)}), frozenset()]
    assert [pair.links for pair in read_pairs(SplitFiles.model_validate({"jsonl": str(path)}))] == [
        None,
        None,
    ]
    for line, fault in (
        ('{"src": "a", "tgt": "b"}', r"line 1: there is no field 'al'"),
        ('{"src": "a", "tgt": "b", "al": [[0, 0]]}', r"line 1: field 'al'"),
        (
            '{"src": "a", "tgt": "b", "al": "0-1"}',
            r"line 1: a link refers to target word 1 \(counted from 0\), but the number of target words is 1",
        ),
    ):
        path.write_text(line + "\n")
        with pytest.raises(DataError, match=fault):
            list(read_pairs(files))


def from_1(count: int = 30) -> dict[str, str]:
    """Links of words counted from 1 that never reach the last word: each by itself could be right."""
    return {
        "a.en": "a b c d\n" * count,
        "a.de": "u v w x\n" * count,
        "a.align": "1-1 2-2 3-3\n" * count,
    }


def test_what_links_count_words_from_can_be_said(tmp_path: Path) -> None:
    files = write(tmp_path, from_1())
    from_one = files.model_copy(update={"alignment_base": 1})
    assert next(read_pairs(from_one)).links == {(0, 0), (1, 1), (2, 2)}
    for text, settings, fault in (
        (
            "4-4\n" * 29 + "5-1\n",
            from_one,
            r"line 30: a link refers to source word 5 \(counted from 1\), but the number of source words is 4;",
        ),
        (
            "4-4\n" * 30,
            files,
            r"line 1: a link refers to source word 4 .*; if words are counted from 1, set alignment_base: 1",
        ),
        (
            "0-1\n" * 30,
            from_one,
            r"line 1: link '0-1' refers to word 0, .*in a recipe, set alignment_base: 0",
        ),
    ):
        (tmp_path / "a.align").write_text(text)
        with pytest.raises(DataError, match=fault):
            list(read_pairs(settings))


@pytest.mark.parametrize("base", [0, 1])
def test_words_that_seem_to_be_counted_from_1_are_refused_until_it_is_said(
    tmp_path: Path, base: int
) -> None:
    files = write(tmp_path, from_1())
    with pytest.raises(
        DataError,
        match=r"a\.align: .*no link refers to the first word of a sentence\. .* alignment_base: 1.*_base: 0$",
    ):
        require_link_base(files)
    require_link_base(files.model_copy(update={"alignment_base": base}))
    (tmp_path / "a.align").write_text("0-0 1-1\n" * 30)
    require_link_base(files)
    require_link_base(SplitFiles(src=files.src, tgt=files.tgt))


def test_each_file_is_asked_by_itself(tmp_path: Path) -> None:
    one, two = (tmp_path / name for name in "12")
    for folder in (one, two):
        folder.mkdir()
    right, wrong = write(one, {**from_1(), "a.align": "0-0 1-1 2-2\n" * 30}), write(two, from_1(20))
    both = {
        kind: getattr(right, kind) + getattr(wrong, kind) for kind in ("src", "tgt", "alignment")
    }
    with pytest.raises(DataError, match=r"2/a\.align: "):
        require_link_base(SplitFiles.model_validate(both))
    path = tmp_path / "a.jsonl"
    path.write_text('{"src": "a b c", "tgt": "u v w", "al": "1-1 2-2"}\n' * 30)
    with pytest.raises(DataError, match=r"a\.jsonl#al: "):
        require_link_base(
            SplitFiles(src=[f"{path}#src"], tgt=[f"{path}#tgt"], alignment=[f"{path}#al"])
        )
    require_link_base(SplitFiles(jsonl=[str(path)]))


# From words to tokens.


def test_a_link_between_words_joins_all_their_tokens() -> None:
    src = [(0, 2), (2, 3)]  # words of 2 and 1 tokens
    tgt = [(0, 1), (1, 4)]  # of 1 and 3
    assert token_links([(0, 1)], src, tgt) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert token_links([(1, 0), (0, 0)], src, tgt) == [(0, 0), (1, 0), (2, 0)]
    assert token_links([], src, tgt) == []
    # A token of two words has the links of both, once.
    assert token_links([(0, 0), (1, 1)], [(0, 2), (1, 2)], [(0, 1), (0, 1)]) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("kind", ["bpe", "char", "word"])
def test_spans_are_where_shares_are(kind: str) -> None:
    tokenizers = learned(kind)
    lines = ["Otto's dog sees l'homme .", "the  dogs", "", "Otto's \u2103 l'homme"]
    given = ["Otto 's dog sees l' homme .", None, None, "Otto ' s \u2103 l' homme"]
    spans = token_spans(tokenizers.src, lines, given, ["x"] * 4)
    for line, other, ranges in zip(lines, given, spans, strict=True):
        (whole,) = cut_words(tokenizers.src, [line], [other], ["x"])
        shared = share_table(whole.shares)
        belongs = np.zeros(shared.shape, dtype=bool)
        for word, (first, end) in enumerate(ranges):
            belongs[word, first:end] = True
        assert np.array_equal(belongs, shared > 0)


def links_of(store: Store, number: int) -> list[list[int]]:
    return store.ids("alignment", number).reshape(-1, 2).tolist()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_the_store_holds_links_between_tokens(tmp_path: Path, kind: str) -> None:
    """Each link joins tokens of the two words, told apart by the marks at the words' beginnings."""
    tokenizers = learned(kind, vocab_size=32 if kind == "unigram" else 60)
    src, tgt = "the dogs see Otto", "den Hund  sieht\tOtto"
    links = frozenset({(0, 0), (1, 1), (3, 3), (3, 2)})
    store = stored(
        tmp_path, [Example(src, tgt, 1, links), Example("the", "er", 2, frozenset())], tokenizers
    )

    def words(text: str) -> list[int]:
        starts = [piece.startswith("▁") for piece in tokenizers.src.tokens(text)]
        return (np.cumsum(starts) - 1).tolist()

    of_src, of_tgt = words(src), words(tgt)
    expected = {
        (s, t) for s, i in enumerate(of_src) for t, j in enumerate(of_tgt) if (i, j) in links
    }
    assert {(s, t) for s, t in links_of(store, 0)} == expected
    assert len(links_of(store, 0)) == len(expected)
    assert links_of(store, 1) == []
    store.check()


def test_words_can_be_given(tmp_path: Path) -> None:
    tokenizers = learned("char", joint=False)
    pair = Example(
        "Otto's.", "l'homme .", 7, frozenset({(1, 0), (2, 2)}), "Otto 's .", "l' homme ."
    )
    store = stored(tmp_path, [pair], tokenizers)
    src, tgt = tokenizers.src.tokens(pair.src), tokenizers.tgt.tokens(pair.tgt or "")
    assert (src, tgt) == (
        ["▁", "O", "t", "t", "o", "'", "s", "."],
        ["▁", "l", "'", "h", "o", "m", "m", "e", "▁", "."],
    )
    links = {(s, t) for s, t in links_of(store, 0)}
    assert links == {(s, t) for s in (5, 6) for t in (0, 1, 2)} | {(7, 8), (7, 9)}
    with pytest.raises(DataError, match="src_words, line 7"):
        stored(tmp_path, [replace(pair, src_words="Otto s .")], tokenizers)


def test_a_line_that_is_cut_otherwise_than_its_words_has_no_links(tmp_path: Path) -> None:
    """In models of older runs without normalization a no-break space is a letter."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the dog sees Anna", "den Hund sieht er"]),
        model_writer=model,
        model_type="char",
        vocab_size=60,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    config = TokenizerConfig(kind="char", normalization="none")
    older = SentencePieceTokenizer(config, model.getvalue())
    tokenizers = Tokenizers(config, {"src": older, "tgt": older})
    pair = Example("the dog\u00a0 sees", "den Hund", 3, frozenset({(2, 1)}))
    stored(tmp_path / "none", [replace(pair, links=frozenset())], tokenizers)
    for wrong, side in (
        (pair, "src"),
        (replace(pair, src="the dog sees", tgt="den\u00a0 Hund"), "tgt"),
    ):
        with pytest.raises(
            DataError,
            match=f"train, {side}, line 3: the tokenizer does not split the line into the words",
        ):
            stored(tmp_path / side, [wrong], tokenizers)


def test_links_of_tokens_that_are_cut_off_are_left_out(tmp_path: Path) -> None:
    pair = Example(
        "the dog sees Anna", "den Hund sieht er", 1, frozenset({(0, 0), (1, 3), (3, 1), (2, 1)})
    )
    check = checker(max_length=3, max_tgt_length=2, over_long="truncate")
    store = stored(tmp_path, [pair], learned("word"), check)
    assert links_of(store, 0) == [[0, 0], [2, 1]]


def test_dropped_pairs_take_their_links_with_them(tmp_path: Path) -> None:
    pairs = [
        Example("the dog", "", 1, frozenset()),
        Example("the dog sees Anna", "den Hund", 2, frozenset({(1, 1)})),
        Example("dog", "Hund", 3, frozenset({(0, 0)})),
    ]
    check = checker(max_length=3)
    store = stored(tmp_path, pairs, learned("word"), check)
    assert len(store) == 1
    assert links_of(store, 0) == [[0, 0]]
    assert check.report.splits["train"].links == 1
    assert "1.0 alignment links per pair" in check.report.one_line_summary()


# Batches.


def test_a_batch_has_a_table_of_links() -> None:
    batch = collate([[5, 6, 7], [8]], [[9], [10, 11]], alignment=[[0, 0, 2, 0], []])
    assert batch.alignment.shape == (2, 3, 4)
    assert batch.alignment.nonzero().tolist() == [[0, 0, 0], [0, 0, 2]]
    assert batch.targets.ids[0, 0] == 9  # row t belongs to the token that is predicted there
    assert batch.select(torch.tensor([1, 0, 0])).alignment.nonzero()[:, 0].tolist() == [1, 1, 2, 2]
    assert collate([[5]], [[6]]).alignment is None


def test_the_stream_gives_each_pair_its_own_links(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    words = ["the", "dog", "sees", "Anna", "dogs", "see"]
    examples = []
    for line in range(1, 60):
        src, tgt = (draw.choice(words, draw.integers(1, 6)).tolist() for _ in range(2))
        # Link what is alike: then the ids of a batch say which links it must have.
        links = frozenset(
            (i, j) for i, one in enumerate(src) for j, other in enumerate(tgt) if one == other
        )
        examples.append(Example(" ".join(src), " ".join(tgt), line, links))
    stream = BatchStream(
        stored(tmp_path, examples, learned("word")), BatchConfig(batch_tokens=40), seed=1
    )
    count = 0
    while stream.epoch == 0:
        batch = next(stream)
        alike = batch.targets.ids[:, :, None] == batch.inputs.ids[:, None, :]
        words_only = (batch.targets.ids > 3)[:, :, None]  # EOS and padding are no words
        assert torch.equal(batch.alignment, alike & words_only)
        count += batch.size
    assert count == 59


# Recipes.

TEXT = """\
data:
  train: {src: a.src, tgt: a.tgt}
  valid: {src: b.src, tgt: b.tgt}
model: {kind: transformer}
training: {max_updates: 10}
"""


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (
            ["training.objectives.guided_alignment.weight=0.1"],
            "`source` is file, but `data.train.alignment` is not set; set it to files in Pharaoh format",
        ),
        (
            ["training.objectives.guided_alignment.source=model"],
            "`model.alignment_heads` must be the number of a head",
        ),
        (
            ["training.objectives.guided_alignment.source=model", "model.kind=rnnsearch"],
            "the model must be a transformer",
        ),
        (
            [
                "training.objectives.guided_alignment.source=model",
                "model.alignment_heads=1",
                "model.copying=learned",
            ],
            "the alignment comes from an additional attention layer; set `model.copying` to head or none",
        ),
        (
            [
                "data.train.alignment=x",
                "model.kind=rnn_encdec",
                "training.objectives.guided_alignment.weight=1",
            ],
            "the attention of output words, which rnn_encdec does not have; remove the key",
        ),
        (["data.train.alignment=x", "tokenizer.sampling=0.1"], "set `tokenizer.sampling` to 0"),
        (
            ["model.kind=pointer_generator", "tokenizer.sampling=0.1"],
            "set `tokenizer.sampling` to 0",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(
    tmp_path: Path, overrides: list[str], fault: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(TEXT)
    with pytest.raises(RecipeError, match=fault):
        load_recipe(path, overrides)
