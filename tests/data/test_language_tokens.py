"""Languages of imported models: their tokens in the ids of a text, worked out by hand."""

from typing import Any

import pytest
import torch

from nmtkit.core.errors import RecipeError
from nmtkit.data.tokenizers.embedding_rows import copy_first_input, tie_shared_rows
from nmtkit.data.tokenizers.huggingface_tokenizer import LANGUAGE, HuggingFaceTokenizer
from nmtkit.data.tokenizers.languages import (
    chosen_languages,
    find_language,
    in_direction,
    language_names,
    sides_without_language,
)
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, SPECIALS, Vocabulary

EN, FR = 4, 5
THE, DOG = 6, 7
END_ROW = 2


def imported(affixes: dict[str, Any]) -> Tokenizers:
    """Tokenizers with two languages and two words; BOS and EOS share a row, as in NLLB."""
    library = pytest.importorskip("tokenizers")
    names = [*SPECIALS, "eng_Latn", "fra_Latn", "▁the", "▁dog"]
    model = library.models.WordLevel(
        {name: row for row, name in enumerate(names)}, unk_token="<unk>"
    )
    cut = library.Tokenizer(model)
    cut.pre_tokenizer, cut.decoder = (
        library.pre_tokenizers.Metaspace(),
        library.decoders.Metaspace(),
    )
    rows = [1, 3, END_ROW, END_ROW, 4, 5, 6, 7]
    content = HuggingFaceTokenizer.pack(cut.to_str(), rows, False)
    settings = {"kind": "huggingface", "specials": names[4:6], "affixes": affixes}
    config = TokenizerConfig.model_validate(settings)
    vocabulary = Vocabulary(names, names[4:6])
    sides = {
        side: HuggingFaceTokenizer(config, content, vocabulary, side) for side in ("src", "tgt")
    }
    return Tokenizers(config, sides)


FORMS = {
    "NLLB, M2M100 and mBART-50": (
        {"src": {"before": [LANGUAGE]}, "tgt": {"before": [LANGUAGE]}},
        [EN, THE, DOG],
        [FR, THE, DOG],
    ),
    "mBART-25": (
        {"src": {"after": ["</s>", LANGUAGE]}, "tgt": {"start": [LANGUAGE]}},
        [THE, DOG, EOS, EN],
        [THE, DOG],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_languages_stand_where_the_model_has_them(form: str) -> None:
    affixes, source, target = FORMS[form]
    opened = imported(affixes)
    assert sides_without_language(opened.config) == ["src", "tgt"]
    with pytest.raises(
        RecipeError, match="specify the source language, for example --from eng_Latn"
    ):
        opened.src.encode("the dog")
    with pytest.raises(RecipeError, match="specify the target language, for example --to fra_Latn"):
        opened.tgt.encode("the dog")
    chosen = in_direction(opened, "eng_Latn", "fra_Latn")
    assert chosen.src.encode("the dog") == source
    assert chosen.tgt.encode("the dog") == target
    assert chosen_languages(chosen.config) == {"src": "eng_Latn", "tgt": "fra_Latn"}
    turned = in_direction(chosen, "fra_Latn", "eng_Latn")
    swap = {EN: FR, FR: EN}
    assert turned.src.encode("the dog") == [swap.get(number, number) for number in source]
    assert turned.tgt.encode("the dog") == [swap.get(number, number) for number in target]


def test_the_first_input_of_mbart_25_is_the_language() -> None:
    chosen = in_direction(imported(FORMS["mBART-25"][0]), "eng_Latn", "fra_Latn")
    assert chosen.src.shared_rows() == [[BOS, FR]]
    embedding = torch.nn.Embedding(8, 3)
    copy_first_input(embedding, chosen)
    assert torch.equal(embedding.weight[BOS], embedding.weight[FR])


def test_tokens_that_share_a_row_get_the_sum_of_their_gradients() -> None:
    weight = torch.nn.Parameter(torch.zeros(8, 2))
    tie_shared_rows(weight, imported(FORMS["NLLB, M2M100 and mBART-50"][0]).tgt)
    (weight * torch.arange(16.0).view(8, 2)).sum().backward()
    assert weight.grad is not None
    assert weight.grad[BOS].tolist() == weight.grad[EOS].tolist() == [4.0 + 6.0, 5.0 + 7.0]
    assert weight.grad[THE].tolist() == [12.0, 13.0]


NLLB = ["eng_Latn", "fra_Latn", "zho_Hans", "zho_Hant", "est_Latn", "spa_Latn"]
MBART = ["en_XX", "fr_XX", "de_DE"]
M2M100 = ["__en__", "__fr__", "__zh__"]


@pytest.mark.parametrize(
    ("given", "names", "found"),
    [
        ("eng_Latn", NLLB, "eng_Latn"),
        ("fra", NLLB, "fra_Latn"),
        ("de", MBART, "de_DE"),
        ("fr", M2M100, "__fr__"),
        ("__fr__", M2M100, "__fr__"),
    ],
)
def test_a_language_is_found_by_a_short_name(given: str, names: list[str], found: str) -> None:
    assert find_language(given, names) == found


@pytest.mark.parametrize(
    ("given", "names", "hint"),
    [
        ("en", NLLB, "unknown language 'en': did you mean eng_Latn?"),
        ("es", NLLB, "did you mean spa_Latn?"),
        ("zh", NLLB, "did you mean zho_Hans or zho_Hant?"),
        ("zho", NLLB, "did you mean zho_Hans or zho_Hant?"),
        ("eng", M2M100, "did you mean __en__?"),
        ("eng_Latin", NLLB, "did you mean eng_Latn?"),
        ("xx", NLLB, r"unknown language 'xx' \(the model has 6 languages; --to list prints them\)"),
        ("list", MBART, "3 languages: de_DE, en_XX, fr_XX"),
    ],
)
def test_an_unknown_language_is_told_the_nearest(given: str, names: list[str], hint: str) -> None:
    with pytest.raises(RecipeError, match=hint.replace("?", r"\?")):
        find_language(given, names)


def test_only_tokens_of_languages_are_languages() -> None:
    names = [
        "<mask>",
        "[CLS]",
        "<extra_id_0>",
        "FOO",
        "eng_Latn",
        "en_XX",
        "__de__",
        "madeupword1",
        "__NEWLINE__",
    ]
    assert language_names(names) == ["eng_Latn", "en_XX", "__de__"]
