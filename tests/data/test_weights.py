"""Several corpora with weights: how often each comes in an epoch, and in the sample of the tokenizer."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nmtkit.core.columns import Column
from nmtkit.data.batches.batch_stream import BatchConfig, BatchStream
from nmtkit.data.batches.store import Store
from nmtkit.data.text.blocks import Example
from nmtkit.data.text.checking import DataReport
from nmtkit.data.text.config import SplitFiles
from nmtkit.data.text.reading import read_pairs
from nmtkit.data.tokenizers import tokenizer_training
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizer_training import TokenizerSample, learn_from_samples
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import SPECIALS
from tests.support.learned_tokenizers import learn_tokenizers

Build = Callable[..., Store]
SIZES = (400, 200, 100)


def three_files() -> list[Example]:
    """Pairs of three files; the first word of a source says which."""
    pairs = []
    for file, size in enumerate(SIZES):
        pairs += [
            Example(f"{'abc'[file]} {number}", "x", len(pairs) + 1, file=file)
            for number in range(size)
        ]
    return pairs


@pytest.fixture(scope="module")
def words() -> Tokenizers:
    return learn_tokenizers(TokenizerConfig(kind="word", vocab_size=2000), three_files())


@pytest.fixture(scope="module")
def stored(words: Tokenizers, build: Build) -> Store:
    return build(three_files(), words)


def epoch_of(stream: BatchStream) -> Counter[tuple[int, ...]]:
    """How often each source comes in the next epoch, by its two ids."""
    epoch, counts = stream.epoch, Counter[tuple[int, ...]]()
    while stream.epoch == epoch:
        counts.update(tuple(row[:2]) for row in next(stream).inputs.ids.tolist())
    return counts


def by_file(counts: Counter[tuple[int, ...]], words: Tokenizers) -> list[int]:
    names = [words.src.encode(letter)[0] for letter in "abc"]
    return [sum(count for (name, _), count in counts.items() if name == own) for own in names]


def stream(stored: Store, weights: list[float]) -> BatchStream:
    return BatchStream(
        stored, BatchConfig(batch_tokens=60, sort_window=150), seed=1, weights=weights
    )


def test_the_store_knows_how_many_examples_each_file_has(stored: Store) -> None:
    assert stored.examples_per_file == list(SIZES)


def test_whole_weights_repeat_every_pair(stored: Store, words: Tokenizers) -> None:
    counts = epoch_of(stream(stored, [1.0, 3.0, 2.0]))
    assert by_file(counts, words) == [400, 600, 200]
    for letter, times in zip("abc", (1, 3, 2), strict=True):
        name = words.src.encode(letter)[0]
        assert {count for (own, _), count in counts.items() if own == name} == {times}


def test_fractions_are_drawn_anew_in_every_epoch(stored: Store, words: Tokenizers) -> None:
    running = stream(stored, [0.25, 1.5, 1.0])
    epochs = [epoch_of(running) for _ in range(30)]
    shares = [by_file(counts, words) for counts in epochs]
    for file, expected in enumerate((100, 300, 100)):
        assert sum(share[file] for share in shares) / len(shares) == pytest.approx(
            expected, rel=0.05
        )
    assert all(share[2] == 100 for share in shares)
    assert len({share[0] for share in shares}) > 5
    first = words.src.encode("a")[0]
    drawn = [{source for source in counts if source[0] == first} for counts in epochs]
    assert drawn[0] != drawn[1]
    assert len(set.union(*drawn)) > 390  # by and by all of them come
    second = words.src.encode("b")[0]
    assert {count for source, count in epochs[0].items() if source[0] == second} == {1, 2}


def test_weights_of_one_change_nothing(stored: Store) -> None:
    plain, weighted = stream(stored, []), stream(stored, [1.0, 1.0, 1.0])
    for _ in range(60):
        assert next(plain).inputs.ids.equal(next(weighted).inputs.ids)


def test_a_temperature_flattens_the_sizes_of_the_files(stored: Store, words: Tokenizers) -> None:
    """Shares of an epoch by n^(1/T), worked out: at T = 2 of 400, 200, 100 they are 20 : 14.142 : 10."""
    plain, flat = (SplitFiles(src=[*"abc"], temperature=heat) for heat in (1, 2))
    assert plain.epoch_weights(SIZES) == []
    weights = flat.epoch_weights(SIZES)
    assert [size * weight for size, weight in zip(SIZES, weights, strict=True)] == pytest.approx(
        [317.1573, 224.2641, 158.5786], abs=1e-3
    )
    running = stream(stored, weights)
    counts = [by_file(epoch_of(running), words) for _ in range(20)]
    for file, expected in enumerate((317.16, 224.26, 158.58)):
        assert sum(one[file] for one in counts) / 20 == pytest.approx(expected, rel=0.03)
    with pytest.raises(ValueError, match="`temperature` computes weights from file sizes"):
        SplitFiles(src=["a"], weights=[2], temperature=2)


def test_an_epoch_is_never_empty(words: Tokenizers, build: Build) -> None:
    running = stream(build(three_files()[:3], words), [0.001, 0.001, 0.001])
    assert [next(running).size for _ in range(20)] == [1] * 20
    assert running.epoch == 20


def test_every_example_knows_its_file(tmp_path: Path) -> None:
    for name in ("a.src", "a.tgt", "b.src", "b.tgt"):
        (tmp_path / name).write_text("one\ntwo\n")
    (tmp_path / "c").write_text('{"src": "a", "tgt": "b"}\n')
    for name in ("d", "e"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.story").write_text("text\n\n@highlight\n\nsummary\n")
    (tmp_path / "list").write_text("e\nd\n")
    given = [
        ({"src": ["a.src", "b.src"], "tgt": ["a.tgt", "b.tgt"]}, [0, 0, 1, 1]),
        ({"src": ["a.src", "b.src"]}, [0, 0, 1, 1]),
        ({"jsonl": ["c", "c"]}, [0, 1]),
        ({"stories": ["d", "e"]}, [0, 1]),
        ({"stories": ["d", "e"], "story_lists": ["list"]}, [1, 0]),
    ]
    for settings, expected in given:
        files = SplitFiles.model_validate(settings).resolved(str(tmp_path))
        assert [pair.file for pair in read_pairs(files)] == expected


# The sample of the tokenizer.


def sampled(most: int, weights: list[float]) -> Counter[str]:
    sample = TokenizerSample(most, weights)
    for pair in three_files():
        sample.add(pair)
    assert len(sample.examples) <= most
    assert sample.examples_seen == sum(SIZES)
    return Counter(pair.src[0] for pair in sample.examples)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([], {"a": 400, "b": 200, "c": 100}),
        ([1.0, 3.0, 2.0], {"a": 400, "b": 600, "c": 200}),
        ([1.0, 1.5, 1.0], {"a": 400, "b": 300, "c": 100}),
        # The smallest weight is one place for each pair: nothing is left out that there is room for.
        ([0.5, 0.25, 0.25], {"a": 800, "b": 200, "c": 100}),
    ],
)
def test_a_sample_has_the_files_in_proportion(weights: list[float], counts: dict[str, int]) -> None:
    assert sampled(10_000, weights) == counts


def test_a_sample_that_is_thinned_keeps_the_proportion() -> None:
    thinned = sampled(300, [1.0, 4.0, 2.0])
    assert 150 < sum(thinned.values()) <= 300
    assert thinned["b"] == pytest.approx(2 * thinned["a"], abs=2)
    assert thinned["c"] == pytest.approx(0.5 * thinned["a"], abs=2)


@pytest.mark.parametrize("max_size", [1, 7])
def test_an_extreme_weight_does_not_fill_the_memory(max_size: int) -> None:
    sample = TokenizerSample(max_size, [1e-9, 10_000.0])
    sample.add(Example("light", "x", 1, file=0))
    sample.add(Example("heavy", "x", 2, file=1))
    # The first multiple of the stride, 0, is always in the interval of the first pair.
    heavy = ["heavy"] * (len(sample.examples) - 1)
    assert [pair.src for pair in sample.examples] == ["light", *heavy]
    assert max_size / 2 < len(sample.examples) <= max_size


def test_a_sample_has_room_for_at_least_one_pair() -> None:
    with pytest.raises(AssertionError, match="at least one example"):
        TokenizerSample(0)


def test_a_pair_that_is_sampled_several_times_counts_as_used_once() -> None:
    sample = TokenizerSample(10_000, [1.0, 3.0, 2.0])
    for pair in three_files():
        sample.add(pair)
    report = DataReport()
    learn_from_samples(TokenizerConfig(kind="word"), [sample], report)
    assert len(sample.examples) > sum(SIZES)
    assert report.tokenizer["pairs_used"] == report.tokenizer["pairs"] == sum(SIZES)


def test_a_sample_of_documents_is_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_training, "MAX_SAMPLE_CHARACTERS", 3000)
    sample = TokenizerSample(1000)
    for line in range(1, 301):
        sample.add(Example("word " * 20, "x", line))
    assert [pair.line for pair in sample.examples[:3]] == [1, 17, 33]
    assert 1500 < sum(len(pair.src) + 1 for pair in sample.examples) <= 3000
    huge = TokenizerSample(1000)
    huge.add(Example("word " * 9000, "x", 1))
    assert len(huge.examples) == 1


def test_tokenizers_of_several_samples_know_all_words_and_labels() -> None:
    columns = (Column("src"), Column("labels", "label"))
    samples = [TokenizerSample(1000, columns=columns) for _ in range(2)]
    samples[0].add(Example("one", None, 1, labels="first"))
    samples[1].add(Example("two", None, 1, labels="second"))
    report = DataReport()
    tokenizers = learn_from_samples(TokenizerConfig(kind="word"), samples, report)
    assert tokenizers.src.vocabulary.tokens[len(SPECIALS) :] == ["▁one", "▁two"]
    assert tokenizers.labels is not None
    assert tokenizers.labels.tokens == ["first", "second"]
    assert report.tokenizer["pairs"] == report.tokenizer["pairs_used"] == 2
    assert [pair.src for pair in samples[0].examples] == ["one"]


def test_labels_of_another_type_are_left_out() -> None:
    samples = [
        TokenizerSample(1000, columns=(Column("src"), Column("labels", label_type)))
        for label_type in ("label", "labels")
    ]
    samples[0].add(Example("one", None, 1, labels="first"))
    samples[1].add(Example("two three", None, 1, labels="X Y"))
    tokenizers = learn_from_samples(TokenizerConfig(kind="word"), samples)
    assert tokenizers.labels is not None
    assert tokenizers.labels.tokens == ["first"]


def test_weights_reach_the_vocabulary() -> None:
    config = TokenizerConfig(kind="word", vocab_size=7)
    pairs = [Example("often often", "often", 1, file=0), Example("seldom", "seldom", 2, file=1)]
    report = DataReport()
    assert learn_tokenizers(config, pairs, report).src.vocabulary.tokens[4] == "▁often"
    assert learn_tokenizers(config, pairs, report, [1.0, 5.0]).src.vocabulary.tokens[4] == "▁seldom"
    assert report.tokenizer["pairs"] == 2
