"""`translate --replace-unknown` on models that were trained on text full of names that they have no words for."""

import json
import random
from pathlib import Path

import pytest

from nmtkit import Translator
from nmtkit.core.errors import NmtkitError
from tests.support.commands import RECIPE, WORDS, Command, succeeded, write_pairs

pytestmark = pytest.mark.slow


def pairs_with_names(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences backwards in capitals, before the full stop; one or two words are names, each its own translation."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = draw.choices(WORDS, k=draw.randrange(3, 6))
        for _ in range(draw.choice((1, 1, 2))):
            words.insert(draw.randrange(len(words) + 1), "".join(["X", *draw.choices("qwyz", k=7)]))
        backwards = [word if word.startswith("X") else word.upper() for word in reversed(words)]
        pairs.append((" ".join(words) + ".", " ".join(backwards) + "."))
    return pairs


@pytest.fixture(scope="module")
def run(nmtkit: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose vocabulary has no name, trained for seconds."""
    folder = tmp_path_factory.mktemp("names")
    for name, count, seed in (("train", 1500, 1), ("valid", 20, 2), ("test", 20, 3)):
        write_pairs(folder, name, pairs_with_names(count, seed))
    recipe = RECIPE.replace("kind: word,", "kind: word, min_frequency: 5,").replace(
        "updates: 60", "updates: 90"
    )
    (folder / "names.yaml").write_text(recipe.replace("validate_every: 20", "validate_every: 90"))
    succeeded(nmtkit("train", folder / "names.yaml", "--run", folder / "run"))
    return folder / "run"


def test_unknown_words_are_replaced_by_their_source_words(run: Path) -> None:
    translator = Translator.load(str(run), device="cpu")
    given = pairs_with_names(150, 4)
    before = [results[0] for results in translator.search([source for source, _ in given])]
    assert not any(best.replaced for best in before)
    after = [
        results[0]
        for results in translator.replacing_unknown().search([source for source, _ in given])
    ]
    right = wrong = 0
    for (source, target), old, new in zip(given, before, after, strict=True):
        assert (new.tokens, new.score, new.attention) == (old.tokens, old.score, None)
        assert len(new.replaced) == old.text.count("<unk>")
        assert "<unk>" not in new.text
        names = [word.strip(".") for word in target.split() if word.startswith("X")]
        copied = [one.written for one in new.replaced]
        assert "." not in copied
        assert all(one.source_word in source for one in new.replaced)
        if len(copied) == len(names):  # else the model wrote too many or too few
            right += sum(one == other for one, other in zip(copied, names, strict=True))
            wrong += sum(one != other for one, other in zip(copied, names, strict=True))
    assert right + wrong > 80
    assert right > 0.9 * (right + wrong)


def test_translate_replaces_unknown_words_by_copies_or_a_dictionary(
    run: Path, console: Command, tmp_path: Path
) -> None:
    source = "ba ce Xqwyzqwy di."
    plain = console("translate", "-m", run, stdin=source + "\n")
    assert plain.out.count("<unk>") == 1, plain
    done = console("translate", "-m", run, "--replace-unknown", stdin=source + "\n")
    assert done.out == plain.out.replace("<unk>", "Xqwyzqwy")

    (tmp_path / "names.tsv").write_text("Xqwyzqwy\tYwqz\nother\tone\n")
    arguments = [
        "translate",
        "-m",
        run,
        "--replace-unknown",
        "--dictionary",
        tmp_path / "names.tsv",
        "--json",
    ]
    done = console(*arguments, stdin=source + "\n")
    best = json.loads(done.out)["best"]
    assert best["text"] == plain.out.replace("<unk>", "Ywqz").strip()
    (one,) = best["replaced"]
    assert (one["source_token"], one["source_word"], one["written"]) == (2, "Xqwyzqwy", "Ywqz")
    assert best["tokens"][one["token"]] == "▁<unk>"


def test_a_recipe_that_forbids_unknown_words_is_overruled(run: Path) -> None:
    forbidding = {"forbid_unknown": True}
    translator = Translator.load(str(run), device="cpu", search_settings=forbidding)
    source = "ba ce Xqwyzqwy di."
    assert "<unk>" not in translator.translate([source])[0]
    assert "Xqwyzqwy" in translator.replacing_unknown().translate([source])[0]
    assert "<unk>" not in translator.translate([source])[0]  # it stays as it was


def test_a_model_without_attention_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator.load(str(run), device="cpu")
    monkeypatch.setattr(translator.model, "has_attention", False)
    for use in (translator.replacing_unknown, lambda: translator.align(["ba"], ["BA"])):
        with pytest.raises(
            NmtkitError, match=r"has no attention over .*; use a model with attention"
        ):
            use()
