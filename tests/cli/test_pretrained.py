"""A training that begins with word vectors that were learned elsewhere."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from nmtkit import config
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.settings import parse
from nmtkit.experiment.checks import require_embeddings
from nmtkit.experiment.plan import plan
from nmtkit.experiment.stages import train_stages
from nmtkit.training.events import Stopped
from tests.support.begun_runs import begin_run
from tests.support.cases import daily
from tests.support.commands import lines_in
from tests.support.gradients import training_settings

SIZE = 12
MODEL = {
    "rnnsearch": {"embedding_size": SIZE, "hidden_size": 8, "maxout_size": SIZE},
    "transformer": {"hidden_size": SIZE, "heads": 2, "feed_forward_size": 16},
}


@pytest.fixture(scope="module")
def words(small_corpus: Path) -> list[str]:
    """The twenty source words of the made-up language."""
    return sorted(set((small_corpus / "train.src").read_text(encoding="utf-8").split()))


def vectors_of(words: Sequence[str]) -> str:
    draw = random.Random(5)
    return "".join(
        word + "".join(f" {draw.gauss(0, 3):.3f}" for _ in range(SIZE)) + "\n" for word in words
    )


def vectors_in(path: Path) -> Tensor:
    return torch.tensor([[float(number) for number in line.split()[1:]] for line in lines_in(path)])


def settings_of(corpus: Path, kind: str, tie: str, *more: str) -> config.Recipe:
    model = [f"model.{key}={value}" for key, value in {**MODEL[kind], "tie": tie}.items()]
    shorter = ["training.max_updates=3", "evaluation.max_sentences=2"]
    return config.load(corpus / "tiny.yaml", [f"model.kind={kind}", *model, *shorter, *more])


def trained_by(
    settings: config.Recipe, folder: Path, resume: bool = False
) -> tuple[list[str], dict[str, Tensor]]:
    """What was said of the vectors, and the last weights."""
    said: list[str] = []
    run = begin_run(settings, str(folder), resume=resume)
    events = list(train_stages(run, torch.device("cpu"), said.append, resume))
    assert isinstance(events[-1], Stopped)
    saved = safetensors.torch.load_file(folder / "checkpoints" / "last.safetensors")
    of_vectors = [text for text in said if "weights are trained" not in text]
    return of_vectors, {
        name.removeprefix("weights/"): saved[name] for name in saved if name.startswith("weights/")
    }


def rows_of(run: Path, words: Sequence[str]) -> list[int]:
    tokens = lines_in(run / "vocabulary" / "joint.vocab")
    return [tokens.index("▁" + word) for word in words]


@pytest.mark.parametrize("kind", daily(MODEL))
def test_frozen_vectors_stay_while_other_weights_are_trained(
    small_corpus: Path, words: list[str], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(vectors_of([*words[:15], "other", "words"]), encoding="utf-8")
    given = vectors_in(path)
    fixed = f"pretrained_embeddings.src={path}"
    settings = settings_of(small_corpus, kind, "none", fixed, "training.freeze=[src_embedding]")
    said, frozen = trained_by(settings, tmp_path / "frozen")
    (message,) = said
    begin = (
        f"{path} contains 17 vectors; 15 of the 44 tokens (34.1%) in src_embedding.weight "
        "are initialized with them, scaled by "
    )
    assert begin in message
    factor = float(message.partition(begin)[2].partition(";")[0])
    assert message.endswith(
        "the others are initialized at random; all these embeddings stay frozen"
    )
    rows = rows_of(tmp_path / "frozen", words[:15])
    torch.testing.assert_close(
        frozen["src_embedding.weight"][rows], given[:15] * factor, rtol=1e-2, atol=0
    )

    _, free = trained_by(settings_of(small_corpus, kind, "none", fixed), tmp_path / "free")
    moved = (free["src_embedding.weight"][rows] - frozen["src_embedding.weight"][rows]).abs()
    assert 0 < moved.max() < 0.1  # three updates went from there

    # And --resume goes on without the file.
    path.unlink()
    longer = settings_of(
        small_corpus,
        kind,
        "none",
        fixed,
        "training.freeze=[src_embedding]",
        "training.max_updates=5",
    )
    said, later = trained_by(longer, tmp_path / "frozen", resume=True)
    assert said == []
    assert torch.equal(later["src_embedding.weight"], frozen["src_embedding.weight"])
    unmoved = [name for name in later if torch.equal(later[name], frozen[name])]
    assert "src_embedding.weight" in unmoved
    assert "tgt_embedding.weight" not in unmoved


def test_two_files_fill_one_matrix(small_corpus: Path, words: list[str], tmp_path: Path) -> None:
    """With everything tied: each side's words, the target's vector where both files know a word, and the output."""
    capitals = [word.upper() for word in words]
    for name, known in (("src", words[:10]), ("tgt", [*capitals[:5], words[9]])):
        (tmp_path / name).write_text(vectors_of(known), encoding="utf-8")
    files = [f"pretrained_embeddings.{side}={tmp_path / side}" for side in ("src", "tgt")]
    settings = settings_of(
        small_corpus, "transformer", "all", *files, "training.freeze=[tgt_embedding]"
    )
    said, weights = trained_by(settings, tmp_path / "run")
    assert [" ".join(text.split()[1:]) for text in said] == [
        f"contains {count} vectors; {count} of the 44 tokens ({share}) in tgt_embedding.weight "
        f"and src_embedding.weight and output.weight are initialized with them, scaled by {text.split('scaled by ')[1]}"
        for text, count, share in zip(said, (10, 6), ("22.7%", "13.6%"), strict=True)
    ]
    (embedding,) = (tensor for tensor in weights.values() if tensor.shape == (44, SIZE))
    given = vectors_in(tmp_path / "tgt")
    rows = rows_of(tmp_path / "run", [*capitals[:5], words[9]])
    torch.testing.assert_close(torch.cosine_similarity(embedding[rows], given), torch.ones(6))
    torch.testing.assert_close(
        embedding[rows] / given, (embedding[rows] / given).mean().expand(6, SIZE)
    )


@pytest.fixture
def mine(small_corpus: Path, words: list[str], tmp_path: Path) -> Path:
    """A recipe with a file of three vectors beside it."""
    (tmp_path / "words.vec").write_text(f"3 {SIZE}\n" + vectors_of(words[:3]), encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"extends: {small_corpus / 'tiny.yaml'}\npretrained_embeddings: {{src: words.vec}}\n"
        f"model: {{embedding_size: {SIZE}, hidden_size: 8, maxout_size: 8}}\n"
        "data: {test: null}\nevaluation: {max_sentences: 1}\ntraining: {max_updates: 1}\n"
    )
    return path


@pytest.mark.parametrize(
    ("kind", "side", "way"),
    [
        ("rnn_lm", "src", ""),
        ("bert", "src", "masked_words"),
        ("bert", "tgt", "masked_words"),
        ("elmo", "tgt", "both_directions"),
        ("xlnet", "tgt", "permutation"),
    ],
)
def test_a_side_without_word_vectors_is_refused_before_anything_is_begun(
    kind: str, side: str, way: str
) -> None:
    training = training_settings(max_updates=1, best_metric="loss", **({way: {}} if way else {}))
    texts = {split: {"tgt": ["text"]} for split in ("train", "valid")}
    given = {
        "data": texts,
        "tokenizer": {"specials": ["<mask>"]},
        "model": {"kind": kind},
        "training": training,
    }
    vectors = {"pretrained_embeddings": {side: "vectors"}}
    settings = parse(
        config.Recipe, {"name": "one", "task": "language-modelling", **given, **vectors}, "one"
    )
    takes = "no word vectors" if way else "word vectors only for tgt"
    with pytest.raises(
        RecipeError,
        match=f"_embeddings.{side}`: {kind} models for language-modelling accept {takes}; remove",
    ):
        require_embeddings(settings)


def test_what_does_not_fit_is_refused_before_anything_is_begun(mine: Path) -> None:
    message = rf"line 1: the vectors have {SIZE} elements, but the model's embeddings have 20; set model\.KEY to {SIZE}"
    for kind, key in (("rnnsearch", "embedding_size"), ("transformer", "hidden_size")):
        settings = config.load(mine, [f"model.kind={kind}", f"model.{key}=20"])
        with pytest.raises(DataError, match=message.replace("KEY", key)):
            plan(settings, torch.device("cpu"), need_files=False)
        with pytest.raises(DataError, match=message.replace("KEY", key)):
            trained_by(settings, mine.parent / "run")
    (mine.parent / "words.vec").unlink()
    settings = config.load(mine)
    rows = plan(settings, torch.device("cpu"), need_files=False).rows
    assert any(what.endswith("words.vec (missing)") for _, what in rows)
    with pytest.raises(DataError, match=r"words\.vec: cannot be read: No such file"):
        trained_by(settings, mine.parent / "run")
    assert not (mine.parent / "run").exists()
