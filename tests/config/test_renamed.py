"""Recipes and runs of earlier versions are read by their old keys."""

from pathlib import Path
from typing import Any

import pytest

from nmtkit import config
from nmtkit.config.loading import bundled
from nmtkit.core.errors import RecipeError
from nmtkit.decoding.settings import BeamConfig, MbrConfig, SamplingConfig, SearchConfig

EARLIER = Path(__file__).parent / "earlier"
"""Recipes as runs saved them before keys were renamed and removed: with every key of that time."""

RECIPE = "data: {train: {src: a, tgt: b}}\nmodel: {kind: rnnsearch}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "old.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def settings_of(recipe: config.Recipe) -> dict[str, Any]:
    """The settings of a recipe without the folder of its text, which the saved recipes lack."""
    settings = recipe.model_dump()
    del settings["data"]["folder"]
    return settings


@pytest.mark.parametrize("name", sorted(path.stem for path in EARLIER.glob("*.yaml")))
def test_a_run_of_an_earlier_version_has_the_recipe_that_it_was_trained_with(name: str) -> None:
    assert name in bundled()
    assert settings_of(config.load(EARLIER / f"{name}.yaml")) == settings_of(config.load(name))


@pytest.mark.parametrize("key", ["training: {max_updates: 1, higher_is_better: true}"])
def test_a_removed_key_with_a_harmless_value_is_dropped(key: str, tmp_path: Path) -> None:
    without = config.load(written(tmp_path, RECIPE + "training: {max_updates: 1}\n"))
    assert config.load(written(tmp_path, RECIPE + key)) == without
    stage = f"training: {{max_updates: 1}}\nstages: [{{name: first, {key}}}]\n"
    in_stage = config.load(written(tmp_path, RECIPE + stage)).by_stage()["first"]
    assert in_stage.training == without.training


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("training.permutation={predict_one_in: 6}", "training.objectives.permutation={}"),
        ("training.permutation.predict_one_in=6", "training.objectives.permutation={}"),
    ],
)
def test_a_moved_key_is_read_from_set_and_in_stages(old: str, new: str, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "task: language-modelling\ndata: {train: {tgt: a}}\nmodel: {kind: xlnet}\n"
        "training: {max_updates: 1, permutation: {}}\n"
        "stages: [{name: first, training: {permutation: {predict_one_in: 6}}}, {name: second}]\n",
    )
    assert config.load(path, [old]) == config.load(path, [new])
    first, second = config.load(path, [old]).by_stage().values()
    assert first.training.objectives.keys() == second.training.objectives.keys() == {"permutation"}
    again = written(tmp_path, config.load(path, [old]).to_yaml())
    assert config.load(again).training == config.load(path, [new]).training


EARLIER_SEARCH = (
    "beam_size: 4, stop: first_k, at_limit: behind, patience: 1.0, prefix_bias: 1.0, diversity_groups: 1, "
    "diversity_strength: 0.5, temperature: 0.8, top_k: 0, top_p: 1.0, epsilon: 0.0, seed: 1"
)
"""The keys of all kinds of searches together, as saved recipes had them."""


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (f"{EARLIER_SEARCH}, samples: 0, mbr: none", BeamConfig(beam_size=4)),
        (f"{EARLIER_SEARCH}, samples: 3, mbr: none", SamplingConfig(samples=3, temperature=0.8)),
        (
            f"{EARLIER_SEARCH}, samples: 3, mbr: bleu",
            MbrConfig(samples=3, temperature=0.8, metric="bleu"),
        ),
        ("alpha: 0.6", BeamConfig(alpha=0.6)),
        ("samples: 2, alpha: 0.6", SamplingConfig(samples=2, alpha=0.6)),
        ("diversity_groups: 1, diversity_strength: 3", BeamConfig()),
        ("diversity_groups: 5, diversity_strength: 0.5", BeamConfig(diversity_groups=5)),
        ("stop: exact", BeamConfig(stop="exact")),
    ],
)
def test_an_earlier_search_has_the_kind_that_its_keys_meant(
    search: str, expected: SearchConfig, tmp_path: Path
) -> None:
    recipe = RECIPE + "training: {max_updates: 1}\n"
    read = config.load(written(tmp_path, f"{recipe}search: {{{search}}}\n"))
    assert read.search == expected
    assert config.load(written(tmp_path, read.to_yaml())).search == expected


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("search.beam_size=3", BeamConfig(beam_size=3, alpha=0.6)),
        ("search.samples=3", SamplingConfig(samples=3, alpha=0.6)),
        ("search.mbr=bleu", MbrConfig(metric="bleu", alpha=0.6)),
        ("search={kind: mbr, samples: 3}", MbrConfig(samples=3, alpha=0.6)),
    ],
)
def test_another_kind_of_search_keeps_the_keys_that_all_kinds_have(
    override: str, expected: SearchConfig, tmp_path: Path
) -> None:
    path = written(
        tmp_path, RECIPE + "training: {max_updates: 1}\nsearch: {beam_size: 4, alpha: 0.6}\n"
    )
    assert config.load(path, [override]).search == expected


@pytest.mark.parametrize(
    ("search", "remedy"),
    [
        ("patience: 2", "raise `search.beam_size`"),
        ("stop: joeynmt", "valid names: exact, first_k"),
        ("diversity_strength: 3", "`search.diversity_strength: 3` .* always 0.5"),
        ("prefix_bias: 0.5", "a prefix is always forced"),
        ("samples: 0, mbr: chrf", "`search.samples`"),
        ("kind: sampling, beam_size: 3", "unknown key `search.beam_size`"),
    ],
)
def test_a_search_that_is_gone_is_refused_with_its_remedy(
    search: str, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=remedy):
        config.load(
            written(tmp_path, f"{RECIPE}training: {{max_updates: 1}}\nsearch: {{{search}}}\n")
        )


@pytest.mark.parametrize(
    "loss", ["coverage_weight: 0.5", "reinforce: {gamma: 0.9}", "guided_alignment: null"]
)
def test_a_loss_that_was_a_key_of_training_is_an_objective(loss: str, tmp_path: Path) -> None:
    data = RECIPE.replace("tgt: b", "tgt: b, alignment: c")
    earlier = written(tmp_path, f"{data}training: {{max_updates: 1, {loss}, masked_words: null}}\n")
    read = config.load(earlier)
    now = written(tmp_path, f"{data}training: {{max_updates: 1, objectives: {{{loss}}}}}\n")
    assert read.training == config.load(now).training
    assert read.training.objectives.keys() == set() if "null" in loss else {loss.partition(":")[0]}


@pytest.mark.parametrize(
    "split", ["{jsonl: d.jsonl, labels_field: kind, src_field: text, tgt_field: ''}", "[SPLIT]"]
)
def test_json_lines_with_labels_name_each_column_with_its_file(split: str, tmp_path: Path) -> None:
    split = split.replace(
        "SPLIT", "{jsonl: [d.jsonl], labels_field: kind, src_field: text, tgt_field: ''}"
    )
    recipe = f"task: classification\ndata: {{train: {split}, valid: {split}}}\nmodel: {{kind: word_mean}}\n"
    data = config.load(written(tmp_path, recipe + "training: {max_updates: 1}\n")).data
    assert [Path(path).name for path in (*data.train.src, *data.train.labels)] == [
        "d.jsonl#text",
        "d.jsonl#kind",
    ]
    assert (data.train.jsonl, data.train.columns) == ([], ("src", "labels"))


REMOVED = [
    ("training: {max_updates: 1, momentum: 0.9}", "use `training.optimizer: adam`"),
    ("training: {max_updates: 1, momentum: 0.0}", ""),
    ("training: {max_updates: 1, hard_attention: {soft_share: 0.25}}", "the value is always 0.5"),
    (
        "training: {max_updates: 1, schedule: {kind: plateau, factor: 0.1}}",
        "the rate is always halved",
    ),
    ("training: {max_updates: 1, schedule: {kind: plateau, factor: 0.5}}", ""),
    ("training: {max_updates: 1}\nevaluation: {batch_tokens: 100}", ""),
    ("training: {max_updates: 1}\ntokenizer: {train_lines: 200000}", ""),
    ("training: {max_updates: 1}\ntokenizer: {train_lines: 100}", "the value is always 200,000"),
    (
        "training: {max_updates: 1}\npretrained_embeddings: {src: a, rescale: false}",
        "vectors are always scaled",
    ),
    (
        "training: {max_updates: 1}\npretrained_embeddings: {src: a, freeze: true}",
        r"use `training.freeze: \[src_embedding\]`",
    ),
    ("training: {max_updates: 1}\npretrained_embeddings: {src: a, freeze: false}", ""),
    (
        "training: {max_updates: 1}\nstages: [{name: one, evaluation: {max_sentences: 4}}]",
        "a stage cannot change it, so move it to the recipe's `evaluation`",
    ),
    ("training: {max_updates: 1}\nstages: [{name: one, evaluation: {}}]", ""),
    (
        "training: {max_updates: 1}\nsearch: {word_reward: 0.5}",
        "use a different `search.length_penalty`",
    ),
    (
        "training: {max_updates: 1}\nsearch: {diversity_groups: 5, diversity_strength: 3}",
        "the value is always 0.5",
    ),
    (
        "training: {max_updates: 1}\nsearch: {word_reward: 0.0, no_repeat_except: '', diversity_strength: 0.5}",
        "",
    ),
]


@pytest.mark.parametrize(("settings", "remedy"), REMOVED)
def test_a_removed_key_is_refused_only_if_it_asks_for_something(
    settings: str, remedy: str, tmp_path: Path
) -> None:
    path = written(tmp_path, f"{RECIPE}{settings}\n")
    if not remedy:
        config.load(path)
        return
    with pytest.raises(RecipeError, match=remedy):
        config.load(path)


@pytest.mark.parametrize(
    ("settings", "remedy"), [case for case in REMOVED if "hard_attention" not in case[0]]
)
def test_a_trained_run_is_read_however_it_was_trained(
    settings: str, remedy: str, tmp_path: Path
) -> None:
    path = written(tmp_path, f"{RECIPE}{settings}\n")
    if "search:" in settings and remedy:  # it still says how the model searches
        with pytest.raises(RecipeError, match=remedy):
            config.load(path, trained=True)
        return
    config.load(path, trained=True)


def test_fine_tuning_reads_a_run_however_it_was_trained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    earlier = "training: {max_updates: 1, momentum: 0.9}\ntokenizer: {train_lines: 100}\n"
    (run / "recipe.yaml").write_text(RECIPE + earlier, encoding="utf-8")
    path = written(
        tmp_path, "data: {train: {src: a, tgt: b}}\ninit_from: run\ntraining: {max_updates: 1}\n"
    )
    assert config.load(path).model.kind == "rnnsearch"


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("kind: rnnsearch, residual: true", "use `model.kind: gnmt`"),
        ("kind: rnnsearch, residual: false", ""),
        ("kind: convs2s, kernel_size: 5", "the value is always 3"),
        (
            "kind: intra_attention, intra_decoder: false, layers: 1",
            "use `model.kind: pointer_generator`",
        ),
        ("kind: intra_attention, intra_decoder: true, layers: 1", ""),
        (
            "kind: t5, positions: relative, max_positions: 1024, scale_embeddings: false, embedding_norm: false",
            "",
        ),
        ("kind: transformer, experts: {noise: true}", ""),
        ("kind: rnnsearch, bridge: tanh", ""),
        ("kind: rnnsearch, bridge: zero", "an rnnsearch always projects the encoder's state"),
        ("kind: rnn_encdec, bridge: tanh", ""),
        ("kind: rnn_encdec, bridge: copy, feed_context: false", ""),
        ("kind: rnn_encdec, bridge: null", ""),
        ("kind: rnn_encdec, bridge: copy", "it follows from `feed_context`"),
        ("kind: rnn_encdec, bridge: tanh, feed_context: false", "it follows from `feed_context`"),
        ("kind: luong, bridge: zero", ""),
        ("kind: intra_attention, copying: true", ""),
        ("kind: intra_attention, copying: false", "use `model.kind: pointer_generator`"),
    ],
)
def test_a_removed_key_of_a_model_is_refused_only_if_it_asks_for_something(
    model: str, remedy: str, tmp_path: Path
) -> None:
    path = written(
        tmp_path, RECIPE.replace("kind: rnnsearch", model) + "training: {max_updates: 1}\n"
    )
    if not remedy:
        config.load(path)
        return
    with pytest.raises(RecipeError, match=remedy):
        config.load(path)


def test_elmo_is_a_kind_of_source_embedding(tmp_path: Path) -> None:
    origin = "init_from: {src_embedding: x, tokenizer: x}\ntokenizer: {kind: whitespace}\ntraining: {max_updates: 1}\n"
    path = written(tmp_path, RECIPE.replace("rnnsearch", "rnnsearch, elmo: {layers: 3}") + origin)
    assert config.load(path).model.src_embedding.model_dump() == {
        "kind": "elmo",
        "hidden_size": 256,
        "layers": 3,
        "dropout": 0.1,
    }


@pytest.mark.parametrize(
    ("old", "rules"),
    [
        ("brackets: true", ["brackets"]),
        ("brackets: false", []),
        ("rule: brackets", ["brackets"]),
        ("rule: null", []),
    ],
)
def test_brackets_are_a_rule_of_the_search(old: str, rules: list[str], tmp_path: Path) -> None:
    search = f"search: {{{old}, max_length_ratio: 3.0}}\ntraining: {{max_updates: 1}}\n"
    assert config.load(written(tmp_path, RECIPE + search)).search.rules == rules
    parser = f"task: parsing\n{RECIPE}{search}"
    assert config.load(written(tmp_path, parser)).search.rules == rules
