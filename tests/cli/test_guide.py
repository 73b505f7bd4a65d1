"""README, the guide and the results of recipes: every block is run or, where that is too much, parsed to its end."""

import gzip
import json
import os
import re
import shlex
import shutil
import tomllib
from functools import partial
from pathlib import Path

import click
import pytest
from torch.distributed.run import get_args_parser

from nmtkit import config
from nmtkit.cli import COMMANDS, cli, guide
from nmtkit.cli.commands.guide import guide_command
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import suggest_names
from nmtkit.core.settings import key_paths
from nmtkit.core.user_module import OPTION
from nmtkit.decoding.rules import RULES
from nmtkit.decoding.scorers import LENGTH_PENALTIES
from nmtkit.experiment.checks import _MAY_CHANGE
from nmtkit.layers.attention import SCORES
from nmtkit.metrics import METRICS
from nmtkit.models.base import MODELS
from nmtkit.models.embeddings import EMBEDDINGS
from nmtkit.training.losses.objective import OBJECTIVES
from nmtkit.training.optimizers import OPTIMIZERS
from tests.cli.keyboard import typed
from tests.cli.untrained_runs import (
    CAPTIONER,
    LANGUAGE_MODEL,
    LINES,
    PARSER,
    SUMMARIZATION,
    TRANSFORMER,
    make_run,
)
from tests.support import shell as following
from tests.support.cases import daily
from tests.support.commands import (
    Command,
    as_text,
    backwards_links,
    refused,
    sentence_pairs,
    succeeded,
    write_lines,
)
from tests.support.registries import keep_members
from tests.tools import guide_pages as pages
from tests.tools.guide_pages import FENCE

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README": ROOT / "README.md", "recipes": ROOT / "recipes" / "README.md"}
# The page of published scores abbreviates its commands.
RESULTS = [
    path for path in sorted((ROOT / "recipes" / "results").glob("*.md")) if path.stem != "scores"
]
PAGES |= {f"results/{path.stem}": path for path in RESULTS}
PAGES |= {name: ROOT / "nmtkit" / "guide" / f"{name}.md" for name in guide.PAGES}
TEXT = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
BY_MAKE = {"tour": "make tour"}
"""Long pages that a target of make follows; here their commands are parsed to their ends."""

PARSED = {
    "downloads": (
        "nmtkit fetch libreoffice-",
        "nmtkit fetch tatoeba-",
        "nmtkit evaluate runs/mine --test-set ",
        "nmtkit train libreoffice-",
        "nmtkit train --source de/train.en ",
        "hf ",
    ),
    "needs a CUDA device": (
        "nmtkit translate -m runs/mine --device cuda",
        "nmtkit train mine.yaml --device cuda",
    ),
    "is for layers of a Transformer": (
        "nmtkit train mine.yaml --set training.activation_checkpointing=",
        "nmtkit train mine.yaml --set training.compile=",
    ),
    "trains or measures for minutes": (
        "nmtkit train demo",
        "nmtkit train --source train.en --target train.de --minutes 20",
        "nmtkit train --source train.de --target train.en --minutes 20",
        "nmtkit compare compare-rnn-encdec ",
        "nmtkit tune ",
        "nmtkit bench ",
    ),
    "is done by test_followed_pages.py, and there are such runs here": (
        "nmtkit train mine.yaml --set model.dropout=0.4 --run runs/baseline",
        "nmtkit train mine.yaml --set model.hidden_size=128 --run runs/try",
        "nmtkit compare small.yaml large.yaml --seeds ",
    ),
    "starts several processes": (
        "nmtkit translate -m runs/mine --workers 2 ",
        "torchrun ",
        "srun ",
        "sbatch ",
    ),
    "is for a run that is trained for minutes, or for its text": (
        "nmtkit align -m RUN ",
        "nmtkit score-alignments test.links ",
        "nmtkit translate -m RUN ",
        "nmtkit score search-30",
        "nmtkit translate -m runs/libreoffice-",
        "nmtkit train multi30k-",
        "nmtkit average -m runs/a ",
        "nmtkit average -m runs/b ",
        "nmtkit rerank -m runs/a ",
        "nmtkit score new.de --ref test.de --tokenize none",
        "nmtkit summarize -m runs/demo-news-",
        "nmtkit score-summaries lead.txt runs/",
        "nmtkit score-summaries lead.txt summaries.txt --ref test.jsonl",
        "nmtkit train inshorts-",
        "nmtkit caption data/",
        "nmtkit score captions.txt --ref references.txt",
        "nmtkit summarize -m RUN ",
    ),
    "is for a public model; tests/convert/huggingface does it": (
        "nmtkit translate -m runs/nllb",
        "nmtkit train --source train.en --target train.fr --init-from runs/nllb ",
        "nmtkit export runs/nllb-help ",
        "nmtkit summarize -m runs/bart ",
        "nmtkit summarize -m runs/bart-large-cnn ",
        "nmtkit summarize -m runs/flan-t5-summaries ",
        "nmtkit train --source articles.txt --target highlights.txt --init-from runs/bart-large-cnn ",
        "nmtkit generate -m runs/gpt2 ",
        "nmtkit perplexity -m runs/gpt2 ",
        "nmtkit train --source articles.txt --target summaries.txt --init-from runs/bart ",
        "nmtkit train --target train.en --init-from ",
    ),
    "tests/cli/test_user_module.py does it": (
        "nmtkit train mine.yaml --user-module ",
        "nmtkit translate -m runs/mine new.txt ",
        "nmtkit translate -m runs/theirs ",
    ),
    "tests/test_makefile.py, tests/generators or tests/convert does it": (
        "nmtkit import ",
        "nmtkit translate -m runs/mine --engine ctranslate2 ",
        "nmtkit evaluate -m runs/mine --precision int8 ",
        "nmtkit translate -m runs/mine --precision int8 ",
        "nmtkit evaluate runs/mine --source test.en --ref test.de --precision int8",
        "nmtkit export runs/mine mine-hf ",
        "nmtkit export runs/mine mine-ct2 ",
        "make ",
        "python data/generate.py ",
    ),
}
"""How commands of blocks begin that are parsed but not run here, by the reason."""
OTHERS = ("hf ", "make ", "python ", "pip ", "tensorboard ", "python3 ", "comet/")
"""How commands of other programs begin that are not parsed here."""
NOT_RUN = (*OTHERS, *(begin for begins in PARSED.values() for begin in begins))
RUN_ELSEWHERE = {
    '"""A bag-of-words translation model: the mean of the source embeddings."""': "tests/strangers trains it",
    '"""Text classification by mean word vectors (Joulin et al. 2017, equation 1)."""': "tests/strangers trains it",
    'text = translator.translate("The dog runs.", terms={"dog": "Rüde"})': "test_long_texts.py does it",
    '"""Uploads the log of runs/mine to Weights & Biases."""': "wandb is not among what the tests install",
    '"""Trains mine.yaml and logs it to Weights & Biases."""': "the same",
    '"""Trains mine.yaml and logs it to MLflow."""': "mlflow is not among what the tests install",
    '"""Searches learning rate and dropout by the validation score."""': "neither is optuna",
    '"""Scores found.jsonl, which `nmtkit translate --json test.en -o found.jsonl` wrote, with COMET."""': "nor COMET",
    "task: sorting": "a recipe for the classifier",
    "init_from: {encoder: runs/masked}": "the page's command begins from that run",
    "init_from: {tokenizer: runs/t5}": "the same",
    "init_from: runs/nllb": "tests/convert/huggingface fine-tunes such a run",
}
"""The first lines of blocks that are not run here, with the reason."""
SCHEMATIC = (
    "COMMAND",
    "TOPIC",
    "NAME",
    "KEY",
    "DIR",
    "FILE",
    "N-",
    "NEW",
    "RUN",
    "RECIPE",
    "CORPUS",
)
QUICKLY = "--device cpu --set training.max_updates=2 --set evaluation.max_sentences=2 --set search.max_length=4"
SMALL = "--set model.hidden_size=16 --set batch.batch_tokens=200"
"""What a training is given besides: two updates of a small model show that it is read and does what it says."""


def blocks(page: str, *kinds: str) -> list[str]:
    return pages.blocks(TEXT[page], *kinds)


def lines_of(page: str) -> list[str]:
    return [line for block in blocks(page, *pages.SHELL) for line in pages.commands(block)]


def inline(page: str) -> list[str]:
    """The commands of nmtkit that stand within sentences and tables."""
    commands = re.findall(r"`((?:torchrun [^`]*)?nmtkit [^`]+)`", FENCE.sub("", TEXT[page]))
    return [" ".join(one.split()) for one in commands]


def write_texts(folder: Path) -> None:
    """Parallel text under the names that the pages use, with its gold alignment: the target is the source backwards."""
    for name, count, seed in (
        ("train", 1500, 1),
        ("valid", 6, 2),
        ("test", 6, 3),
        ("new", 3, 4),
        ("domain", 80, 5),
    ):
        sources, targets = zip(*sentence_pairs(count, seed), strict=True)
        for kind in (
            name,
            *(("domain-valid", "domain-test", "general") if name == "domain" else ()),
        ):
            write_lines(folder / f"{kind}.en", sources)
            write_lines(folder / f"{kind}.de", targets)
        write_lines(folder / f"{name}.align", backwards_links(sources))
    for name, copies in (
        ("new.de", ["reference.de", "mono.de"]),
        ("test.de", ["output.de", "baseline.de", "test.fr"]),
        ("test.align", ["gold.align"]),
        ("new.en", ["input.txt", "new.txt"]),
        ("train.en", ["text.en"]),
    ):
        for copy in copies:
            shutil.copy(folder / name, folder / copy)
    pairs = sentence_pairs(6, 3)  # as in test.de
    write_lines(folder / "pairs.tsv", [f"{source}\t{target}" for source, target in pairs])
    write_lines(
        folder / "pairs.csv",
        ["English,German", *(f"{source},{target}" for source, target in pairs)],
    )
    units = [
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="de"><seg>{target}</seg></tuv></tu>'
        for source, target in pairs
    ]
    write_lines(folder / "memory.tmx", ['<tmx version="1.4"><body>', *units, "</body></tmx>"])
    write_lines(folder / "names.tsv", ["ba\tBO"])
    write_lines(folder / "terms.tsv", ["ba\tBA"])
    write_lines(folder / "vectors.txt", ["ba 0.1 0.2 0.3 0.4", "ce 0.4 0.3 0.2 0.1"])
    for name in ("train", "valid", "test"):
        tree = "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)) (. .))"
        write_lines(folder / f"{name}.mrg", [tree] * 3)
    write_lines(folder / "sentences.txt", LINES[:2])
    stories = sentence_pairs(40, 6)
    write_lines(folder / "articles.txt", [source for source, _ in stories])
    for name, (source, _) in zip(("a1.txt", "a2.txt"), stories, strict=False):
        write_lines(folder / name, ["Title", "", source])
    write_lines(folder / "highlights.txt", [source[:8] for source, _ in stories])
    write_lines(folder / "summaries.txt", [source[:5] for source, _ in stories])
    write_lines(folder / "article.txt", LINES[:1])
    texts = [
        f"{one}. {other}."
        for (one, _), (other, _) in zip(stories, sentence_pairs(40, 7), strict=True)
    ]
    write_lines(folder / "texts.txt", texts)
    write_lines(folder / "labels.txt", ["long" if len(text) > 20 else "short" for text in texts])
    news = [{"article": said, "summary": f"{said[:12]}.", "unseen": ["dog"]} for said in LINES]
    for name in ("news", "news-valid", "news-test"):
        write_lines(folder / f"{name}.jsonl", [json.dumps(one) for one in news])
    with gzip.open(folder / "test.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(as_text([json.dumps(news[0])] * len(stories)))


@pytest.fixture(scope="module")
def prepared(corpus: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files and runs under the names that README and the guide use."""
    folder = tmp_path_factory.mktemp("guide")
    write_texts(folder)
    own = f"extends: {corpus / 'tiny.yaml'}\n"
    for name in (
        "mine",
        "small",
        "large",
        "reverse",
        "baseline",
        "try",
        "domain-run",
        "demo",
        "train-en-de",
        "opus-mt-en-de",
    ):
        (folder / f"{name}.yaml").write_text(f"{own}name: {name}\n", encoding="utf-8")
        run = shutil.copytree(trained, folder / "runs" / name)
        recipe_text = (run / "recipe.yaml").read_text(encoding="utf-8")
        (run / "recipe.yaml").write_text(
            recipe_text.replace("name: tiny\n", f"name: {name}\n"), encoding="utf-8"
        )
    shutil.move(folder / "runs" / "domain-run", folder / "runs" / "domain")
    (folder / "tuned.yaml").write_text(blocks("decoding", "yaml")[0], encoding="utf-8")
    # for so little text
    small = "tokenizer: {vocab_size: 60}\nmodel: {hidden_size: 16, feed_forward_size: 16}\n"
    domain, words = blocks("domain", "yaml")
    (folder / "domain.yaml").write_text(domain + small, encoding="utf-8")
    # The vectors have four elements.
    words = words.replace("hidden_size: 300", "hidden_size: 4")
    (folder / "words.yaml").write_text(words, encoding="utf-8")
    tiny = (
        blocks("multilingual", "yaml")[0]
        .replace("vocab_size: 8000", "vocab_size: 60")
        .replace("tie: all", "heads: 2")
    )
    named = dict(zip(blocks("pretraining", "yaml"), ("masked", "spans"), strict=False))
    named |= {text: "from-bert" for text in blocks("pretraining", "yaml") if "runs/masked" in text}
    named |= {text: "t5" for text in blocks("pretraining", "yaml") if "stages:" in text}
    for text, name in named.items():
        few = text.replace("vocab_size: 8000, sentinels: 100", "vocab_size: 84, sentinels: 20")
        few = few.replace("vocab_size: 8000", "vocab_size: 60") + "batch: {batch_tokens: 500}\n"
        (folder / f"{name}.yaml").write_text(few, encoding="utf-8")
    (folder / "both-ways.yaml").write_text(tiny, encoding="utf-8")
    (folder / "with-back.yaml").write_text(
        blocks("little-text", "yaml")[0] + small, encoding="utf-8"
    )
    chosen = blocks("first", "yaml")[0].replace("multi30k-en-de-transformer", "preset-tiny") + small
    (folder / "runs" / "train-en-de" / "chosen.yaml").write_text(chosen, encoding="utf-8")
    for name in ("opus-mt-en-de", "nllb", "bart", "bart-large-cnn", "flan-t5", "gpt2"):
        (folder / name).mkdir()
    (folder / "data").symlink_to(ROOT / "data")
    make_run(folder, "news", SUMMARIZATION)
    make_run(folder, "transformer", TRANSFORMER)
    make_run(folder, "language", LANGUAGE_MODEL)
    make_run(folder, "parser", PARSER, [*LINES, "(S (NP XX )NP XX )S"])
    make_run(folder, "pictures", CAPTIONER, features=96)
    # `make_run` writes recipes, too; the pages have their own recipes of the same names.
    (folder / "parser.yaml").write_text(blocks("parsing", "yaml")[0], encoding="utf-8")
    (folder / "news.yaml").write_text(blocks("summarizer", "yaml")[0], encoding="utf-8")
    shutil.copy(ROOT / "data" / "demo-scenes" / "valid.images.npz", folder / "test.npz")
    write_lines(folder / "test.words", LINES[:2])
    write_lines(folder / "test.trees", ["(S XX )S"] * 2)
    for name in ("news", "transformer", "language", "parser", "pictures"):
        # the newest run is one that translates
        os.utime(folder / "runs" / name / "result.json", (1, 1))
    kept = sorted((trained / "checkpoints").glob("weights-*.safetensors"))
    for name, file in zip("ab", kept, strict=False):
        shutil.copy(file, folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(prepared, tmp_path / "work", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NMTKIT_MODEL", raising=False)
    return folder


def as_tested(words: list[str], number: int) -> list[str]:
    """A training with limits, in a folder of its own unless it goes on; a question is answered."""
    if words[:2] in (["runs", "mv"], ["runs", "rm"]):
        return [*words, "--yes"]
    if words[0] == "preprocess" and "--run" not in words:
        return [*words, "--run", f"runs/{number}"]  # that of the page's recipe has been trained
    if words[0] != "train" or "--resume" in words:
        return words
    own = [] if "--run" in words else ["--run", f"runs/{number}"]
    if "--init-from" in words:
        return [*words, *own, *QUICKLY.split()]  # the model is that of the run
    small = SMALL if {"--source", "--target", "chosen.yaml"} & {*words} else "--set data.test=null"
    return [*words, *own, *QUICKLY.split(), *small.split()]


def parse(line: str) -> None:
    """Parses a command to its end: every option and argument is accepted, every file that must exist does."""
    words = shlex.split(re.split(" [<>] ", line)[0])
    if words[0] == "torchrun":
        launched = get_args_parser().parse_args(words[1:])
        assert (launched.module, launched.training_script) == (True, "nmtkit")
        words = ["nmtkit", *launched.training_script_args]
    elif words[0] == "sbatch":
        words = shlex.split(words[words.index("--wrap") + 1])
    if words[0] == "srun":
        words = words[words.index("nmtkit") :]
    assert words[0] == "nmtkit", line
    command: click.Command = cli
    context = click.Context(cli, info_name="nmtkit")
    words = words[1:]
    if OPTION in words:  # the group takes it, before or after the command
        place = words.index(OPTION)
        del words[place : place + 2]
    while isinstance(command, click.Group) and words:
        subcommand = command.get_command(context, words[0])
        assert subcommand is not None, f"no command {words[0]!r} in: {line}"
        command, words = subcommand, words[1:]
        if not words:
            return  # a command that is only named
    context = command.make_context(command.name, words)
    name, changes = context.params.get("name"), context.params.get("overrides", ())
    if name is not None and "overrides" in context.params and command.name != "fetch":
        config.load(name, changes)


@pytest.mark.parametrize("page", daily((page for page in PAGES if page not in BY_MAKE), 2))
def test_the_commands_of_a_page_do_what_they_say(page: str, console: Command, place: Path) -> None:
    for number, line in enumerate(lines_of(page)):
        if not line.startswith(NOT_RUN):
            done = succeeded(
                following.run_in_process(line, console, partial(as_tested, number=number))
            )
            assert "Traceback" not in done.err, (line, done)
        elif not line.startswith(OTHERS):
            parse(line)


@pytest.mark.parametrize("page", BY_MAKE)
def test_the_commands_of_a_long_page_can_be_given(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty folder: a file that a command reads is one that those before it write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    for step in pages.steps(TEXT[page]):
        if not isinstance(step, str):
            write_lines(step[0], [step[1]])
            continue
        for words in following.parts(following.words_of(step), "|"):
            assert words[0] in ("nmtkit", "python", "ln", *following.PROGRAMS), step
            assert "<" not in words or Path(words[words.index("<") + 1]).exists(), step
            end = min((words.index(sign) for sign in "<>" if sign in words), default=len(words))
            if words[0] == "nmtkit":
                parse(shlex.join(words[:end]))
        for file in re.findall(r"(?:>|-o) (\S+)", step):
            write_lines(file, ["a b"])
        for run in re.findall(r"--run (\S+)|train ([\w-]+)\.yaml$", step):
            write_lines(f"{run[0] or f'runs/{run[1]}'}/recipe.yaml", ["extends: demo"])


def test_what_is_not_run_stands_somewhere() -> None:
    lines = [line for page in PAGES for line in lines_of(page)]
    assert [begin for begin in NOT_RUN if not any(line.startswith(begin) for line in lines)] == []
    there = {
        text.partition("\n")[0]
        for page in PAGES
        for kind in ("python", "yaml")
        for text in blocks(page, kind)
    }
    assert set(RUN_ELSEWHERE) <= there


@pytest.mark.parametrize("page", PAGES)
def test_blocks_and_commands_within_sentences(page: str, place: Path) -> None:
    """There are no blocks but commands, Python and recipes; what stands in a sentence can be given."""
    fences = FENCE.findall(TEXT[page])
    assert {kind for kind, _ in fences} <= {"", "sh", "bash", "python", "yaml"}
    assert len(re.findall(r"^\s*(?:```|~~~)", TEXT[page], re.MULTILINE)) == 2 * len(fences)
    for line in inline(page):
        if not any(word in line for word in SCHEMATIC):
            parse(line)


@pytest.mark.parametrize("page", PAGES)
def test_python_and_recipes_of_a_page(
    page: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a page registers its own
    keep_members(monkeypatch, EMBEDDINGS, LENGTH_PENALTIES, METRICS, MODELS, OBJECTIVES)
    keep_members(monkeypatch, OPTIMIZERS, RULES, SCORES, TASKS)
    names: dict[str, object] = {"__name__": page, "display": print}  # a notebook has `display`
    for text in blocks(page, "python"):
        if text.partition("\n")[0] not in RUN_ELSEWHERE:
            exec(compile(text, page, "exec"), names)
    for step in pages.steps(TEXT[page]) if page in BY_MAKE else ():
        if not isinstance(step, str):
            write_lines(step[0], [step[1]])  # others extend it
    for text in blocks(page, "yaml"):
        if text.partition("\n")[0] not in RUN_ELSEWHERE:
            (place / "shown.yaml").write_text(text, encoding="utf-8")
            assert config.load("shown.yaml").data.train


NOT_KEYS = {"tokenizer.json", "batch.loss_mask"}
"""A file of Hugging Face's, and an attribute in Python."""


def test_keys_of_recipes_are_keys() -> None:
    known = {".".join(map(str, path)) for path in key_paths(config.Recipe)}
    groups = "|".join(sorted({key.partition(".")[0] for key in known if "." in key}))
    for page, text in TEXT.items():
        for key in re.findall(rf"`((?:{groups})\.[a-z_.]+)[`=:]", text):
            if key not in NOT_KEYS:
                assert key in known, f"{page}: {key}: {suggest_names(key, known, 5)}"


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_what_a_resumed_training_may_change_is_named_in_full() -> None:
    named = TEXT["second"].split("these keys of `training`:")[1].split(".")[0]
    assert {*re.findall(r"`(\w+)`", named)} == {*_MAY_CHANGE, "accumulate"}


def test_no_page_denies_that_operations_are_counted() -> None:
    assert [page for page, text in TEXT.items() if "no such count" in text] == []
    assert "counts its operations" in TEXT["tour"]


def test_the_tour_takes_as_long_wherever_it_is_said() -> None:
    others = [(ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "Makefile")]
    said = [re.findall(r"\d+ to \d+ minutes", text) for text in (TEXT["tour"], *others)]
    assert said == 3 * [["25 to 45 minutes"]]


def test_readme_names_every_command() -> None:
    names = [*COMMANDS, "caption", "classify", "generate"]
    assert [name for name in names if f"`{name}`" not in TEXT["README"]] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for address in re.findall(r"\]\((?!https://)([^)]+)\)", FENCE.sub("", TEXT[page])):
        file, _, anchor = address.partition("#")
        target = (PAGES[page].parent / file) if file else PAGES[page]
        assert target.exists(), address
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), address
        if page in guide.PAGES:
            assert file.removesuffix(".md") in guide.PAGES, (
                "a page that is installed knows no file beside the guide"
            )


def test_every_page_is_a_topic_and_is_installed() -> None:
    assert {path.stem for path in (ROOT / "nmtkit" / "guide").iterdir()} == set(guide.PAGES)
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    assert "nmtkit.guide" in built["packages"]
    assert "*.md" in built["package-data"]["*"]
    assert all(f"nmtkit/guide/{name}.md" in TEXT["README"] for name in guide.PAGES)


def test_the_readme_has_the_pages_in_the_groups_and_order_of_the_guide() -> None:
    groups = {
        group: re.findall(r"nmtkit/guide/([a-z-]+)\.md", pages)
        for group, pages in re.findall(
            r"^\* \*\*(.+?)\*\*: (.+(?:\n  .+)*)", TEXT["README"], re.MULTILINE
        )
    }
    assert {group: groups.get(group) for group in guide.GROUPS} == guide.GROUPS


def test_the_guide_is_printed(console: Command) -> None:
    listed = succeeded(console("guide"))
    assert all(f"\n  {topic} " in listed.out for topic in guide.TOPICS)
    assert console("guide", "second").out == TEXT["second"]
    refused(console("guide", "secnd"), "did you mean 'second'")


def test_the_tour_begins_with_a_picture_and_needs_no_file_for_it() -> None:
    first, second = list(pages.steps(TEXT["tour"]))[:2]
    assert first == "nmtkit train demo"
    assert isinstance(second, str)
    assert second.startswith("nmtkit plot-attention -m runs/demo ")
    assert second.endswith(".html")


def test_recipes_and_texts_of_a_page_are_saved(
    console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tour is followed in any folder: all that it reads, and does not make, is there."""
    monkeypatch.chdir(tmp_path)
    succeeded(console("guide", "tour", "--save", "lesson"))
    recipes = [step for step in pages.steps(TEXT["tour"]) if not isinstance(step, str)]
    assert len(recipes) > 10
    for name, content in recipes:
        assert Path("lesson", name).read_text(encoding="utf-8") == content
    monkeypatch.chdir("lesson")
    bundled = [
        path
        for path in re.findall(r"[\w./-]+", "\n".join(lines_of("tour")))
        if path.startswith("data/")
    ]
    assert len(bundled) > 5
    for name in {"short.yaml", "articles.yaml", "kinds.yaml", "pretrain.yaml", "both.yaml"}:
        loaded = config.load(name)
        bundled += [path for path in loaded.data.train.paths() if "/lesson/data/" in path]
    for path in bundled:
        assert Path(path).is_file(), path
    original = ROOT / "data" / "demo-en-fr" / "train.en.gz"
    assert Path("data", "demo-en-fr", "train.en.gz").read_bytes() == original.read_bytes()


def test_saving_a_page_overwrites_nothing(
    console: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    succeeded(console("guide", "first", "--save", "."))
    succeeded(console("guide", "first", "--save", "."))  # the same files
    Path("mine.yaml").write_text("name: changed\n", encoding="utf-8")
    refused(console("guide", "first", "--save", "."), "mine.yaml already exists")
    assert Path("mine.yaml").read_text(encoding="utf-8") == "name: changed\n"
    refused(console("guide", "gpu", "--save", "new"), "has no recipes to save")
    refused(console("guide", "--save", "new"), "--save requires a TOPIC")
    assert not Path("new").exists()


def test_at_a_terminal_a_page_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    for topic in guide.PAGES:
        guide_command.main([topic], standalone_mode=False)
        shown = capsys.readouterr().out
        assert "```" not in shown
        assert "\n#" not in shown
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        joined = " ".join(re.sub(r"\\\n", " ", plain).split())
        for line in lines_of(topic):
            command = " ".join(line.partition("  # ")[0].split())
            assert command in joined, "it can be copied"
    guide_command.main(["cluster"], standalone_mode=False)
    with pytest.raises(NmtkitError, match="no topic 'nothing'"):
        guide.page("nothing")


def test_the_reference_has_all_commands_and_all_keys() -> None:
    text = guide.page(guide.REFERENCE)
    assert all(f"\n### nmtkit {name}\n" in text for name in COMMANDS)
    assert "`-o, --output FILE`" in text
    keys = {".".join(map(str, path)) for path in key_paths(config.Recipe)}
    assert len(keys) > 100
    leaves = [key for key in sorted(keys) if not any(other.startswith(f"{key}.") for other in keys)]
    assert [key for key in leaves if f"`{key}`" not in text] == []
    assert "  - `transformer`: " in text
    assert "One of: pre, post." in text
    (window,) = (
        line for line in text.splitlines() if line.startswith("- `model.window` (pointer_sentinel)")
    )
    assert "One of" not in window  # which are a luong's
    assert "One of: src" not in text  # a key of `tokenizer.columns` is none of its values


@pytest.mark.skipif(shutil.which("less") is None, reason="there is no pager `less`")
def test_a_pager_shows_colours_instead_of_their_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGER", "LESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    code, shown = typed([b"q"], "guide", "data")
    assert code == 0
    assert "\x1b[36m" in shown
    assert "ESC" not in shown
