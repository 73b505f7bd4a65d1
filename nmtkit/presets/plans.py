"""How long each preset is trained, and why its model has its size."""

from nmtkit.presets.proposal import PresetPlan

PLANS = {
    "preset-tiny": PresetPlan(
        "it is large enough for 20,000 simple pairs (recipe compare-transformer)", (22, 520_000), (1, 60)
    ),
    "preset-small": PresetPlan(
        "with 29,000 pairs it reached 38 BLEU (recipe multi30k-en-de-transformer)", (22, 520_000), (3, 60), 5
    ),
    # 100,000 updates with the 4.5 million pairs of WMT14, as in the paper
    "preset-base": PresetPlan(
        "these are the sizes of the base model in Vaswani et al. 2017, table 3 (not trained by us)",
        (19, 130_000_000),
        (10, 60),
        1.5,
    ),
    "preset-summaries-tiny": PresetPlan(
        "it is large enough for 10,000 made-up news (recipe demo-news-pointer-generator)", (7, 1_000_000), (1, 20)
    ),
    "preset-summaries-small": PresetPlan(
        "it learned from 3,392 news what is told of the recipe inshorts-pointer-generator", (7, 1_000_000), (5, 20), 1.5
    ),
    # 230,000 updates with the 287,000 articles of CNN/DailyMail, as in the paper
    "preset-summaries-base": PresetPlan(
        "these are the sizes of See et al. 2017, section 5 (not trained by us)", (13, 115_000_000), (8, 20), 1.5
    ),
    "preset-lm-tiny": PresetPlan("with 194,000 words it reached perplexity 77 a token", (20, 300_000), (1, 60)),
    "preset-lm-small": PresetPlan("it is the shape of GPT, between tiny and base: a guess", (20, 300_000), (3, 60), 3),
    "preset-lm-base": PresetPlan(
        "these are the sizes of GPT-2 small (not trained by us)", (10, 100_000_000), (1, 40), 0.5
    ),
    "preset-classes-tiny": PresetPlan(
        "trained for a minute on 1,622 news of five kinds, it was right for 98 % of others", (20, 1_000_000), (5, 60)
    ),
    "preset-classes-small": PresetPlan(
        "these are the sizes of Yang et al. 2016, section 3.3", (10, 1_000_000), (3, 30), 1.5
    ),
    "preset-classes-base": PresetPlan(
        "it is twice as wide as that of Yang et al. 2016: a guess", (5, 100_000_000), (1, 20)
    ),
}
"""By the recipe of the preset."""
