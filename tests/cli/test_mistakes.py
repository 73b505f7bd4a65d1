"""What users do wrong, by command: each mistake ends in one message and exit code 2, and no file is changed."""

import gzip
import shutil
from pathlib import Path

import pytest

from tests.cli.untrained_runs import SUMMARIZATION, TRANSFORMER, make_run
from tests.support.command_cases import refusals, words_of
from tests.support.commands import WORDS, Command, as_text, contents, refused, sentence_pairs

TEXT = "--source train.src --target train.tgt"
LEAVE_OUT = "remove FILE, --format"

MISTAKES = {
    "train tiny.yaml --run run": {
        "--set model.kind=rnnserch": "rnnserch: `model.kind`: unknown name 'rnnserch'; did you mean 'rnnsearch'?",
        "--set training.label_smoothing=2": "`training.label_smoothing`: Input should be less than 1",
        "--set training": "KEY=VALUE",
        "--set training.max_updates=": "training would never end",
        "--set training.threads=true": "`training.threads`: must be auto or a number from 1 to 1,024 (given: ",
        "--set 'data.train.weights=[1, 2]'": "src and weights must have the same number of entries, but have 1 and 2",
        "--set data.valid=": "`data.valid` is missing",
        "--run empty/run": "cannot be written",
        "--device cuda:99": "no such device: 'cuda:99'; this machine has: ",
    },
    "train": {
        "": "there is nothing to train on; give a recipe (`nmtkit recipe ls` lists them)",
        "open.yaml": "open.yaml, line 2: not valid YAML",
        "circle.yaml": "circle",
        "extends.yaml": "there is no file 'nowhere.yaml'",
        "demo --source train.src": "demo is a recipe, but --source can be used only without one",
        "demo --source a --target b": "recipe instead: --set 'data.train={src: FILE, tgt: FILE}'",
        "demo --preset tiny": "set keys of the recipe instead (`nmtkit recipe explain` lists them)",
        "demo --minutes 20": "set keys of the recipe instead: --set training.max_minutes=N (see",
        "--preset tiny": "--preset: the training text is missing; give it with --source FILE --target FILE",
        "--source train.src": "1 --source and 0 --target were given; give one --target for each --source",
        f"{TEXT} --valid valid.tgt": "valid.tgt: give a source file and a target file",
        "--source train.src --target valid.tgt": "train.src has 300 lines, but ",
        "--source bad --target bad": "bad, line 2: not valid UTF-8",
        "--source empty --target empty": "too few to hold some out",
        f"{TEXT} --valid empty empty": "these files are empty",
        f"{TEXT} --set training.lrr=1": "did you mean 'lr'",
        f"{TEXT} --general half half": "--general: only for fine-tuning",
    },
    f"train {TEXT} --init-from": {
        "RUN --preset tiny": "remove --preset and --task",
        "RUN --general half": "half: give a source file and a target file",
        "RUN --set model.hidden_size=16": "`model.hidden_size` is 16, but 48",
        "nowhere": "nowhere: there is no such run",
    },
    "check": {
        "": "RECIPE|FILES",
        "nowhere train.tgt": "file not found: nowhere",
        "nowhere.yaml": "there is no file 'nowhere.yaml'",
        "demmo": "the closest names are demo, ",
        "train.src train.tgt valid.src": "3 files",
        "train.src train.tgt --valid": "'--valid' requires an argument",
        "train.src train.tgt --set data.max_length=5": "--set and --run apply only to a recipe",
        "train.src train.tgt --fix .": "will not be overwritten",
        "train.src train.tgt --html no/such/folder.html": "no/such/folder.html",
        "tiny.yaml --valid valid.src valid.tgt": "for a recipe, set its keys",
        "tiny.yaml --set data.train.src=gone": "gone",
    },
    "fetch": {
        "": "`nmtkit fetch --list`",
        "xsumm": "did you mean 'xsum'?",
        "tatoeba-en-de --catalogue none.yaml": "No such file",
        "tatoeba-en-de --to empty --yes": "is not a fetched corpus",
    },
    "bench decode -m RUN": {
        "--source empty": "all lines are empty",
        "--ref half": "--ref requires --source",
        "-m RUN": "this option takes only one value",
        "--source - < short.jsonl": "standard input: each line is a JSON object",
    },
    "bench": {
        "decode --source t.src --ref t.tgt -o t.tgt": "-o would overwrite a file",
        "train t.src -o t.src": "-o would overwrite a file",
    },
    "average": {"-o t.src t.src t.tgt": "-o would overwrite a file"},
    "average -m RUN": {
        "--model RUN": "this option takes only one value",
        "--recent 9": "3 were kept",
        ".": "to average a run's checkpoints, use -m",
    },
    "translate": {
        "": "no finished run",
        "-m nothing": "nothing: there is no such run",
        "-m .": "no recipe.yaml",
    },
    "translate -m RUN": {
        "t.src nosuch": "nosuch: there is no such file",
        "t.src .": ".: this is a folder",
        "t.src -": "standard input (-) cannot be combined with files",
        "t.src -o .": "use --output-dir",
        "t.src -o -": "results go to standard output by default",
        "t.src -o out.zst": "compressed only with gzip",
        "t.src short -o t.src": "-o would overwrite a file",
        "short t.src -o link": "-o would overwrite a file",
        "short -o ./short": "-o would overwrite a file",
        "t.src --split-sentences --samples 2": "use --samples 1 without --n-best",
        "t.src --dictionary t.tgt": "--dictionary requires --replace-unknown",
        "--interactive --json": LEAVE_OUT,
        "--interactive --prefix": LEAVE_OUT,
        "--interactive t.src": LEAVE_OUT,
        "--interactive": "requires a terminal",
        "--interactive -o out": "requires a terminal",
        "--device cpu,cpu --workers 2": "remove one of these options",
        "--device cpu,gpu7": "no such device: 'gpu7'",
        "t.src --search ensemble_weights=[1,2]": "`ensemble_weights` apply only to more than one run",
        "t.src -m RUN --search ensemble_weights=[1]": "2 models needs 2 weights",
        "t.src -m RUN --search ensemble_weights=[1,x]": "(given: 'x')",
        "t.src -m RUN --layer 1": "No such option",
        "t.src -m RUN --samples 2 --beam-size 2": "beam_size has no effect when sampling",
        "t.src -m RUN --search diversity_groups=2": "a beam of 3 cannot be divided into 2 groups",
        "--device gpu": "no such device: 'gpu'",
        "--checkpoint average": "'average'",
        "--n-best 5 --beam-size 2": "n_best is 5, but beam_size is only 2",
        "--search max_length_ratio=nan": "`max_length_ratio`",
        "--search stopp=exact": "did you mean 'stop'",
        "--search stop": "expected KEY=VALUE",
        "--engine quick": "'quick' is not one of",
    },
    "summarize": {
        "--lead 3 -m NEWS": "--lead copies sentences without a model",
        "--lead 3 --min-length 4": "--lead copies sentences without a model",
        "--lead 3 --search samples=x": "--lead copies sentences without a model",
        "-m NEWS --window 9 --search samples=x": "samples",
        "--lead 3 --shortlist t.src": "--lead copies sentences without a model",
        "-m NEWS --window 9 --max-source-tokens 4": "--window reads whole articles",
        "-m NEWS --window 9 --samples 2": "use --samples 1 without --n-best",
        "-m NEWS --format moses --json": "--format moses determines the whole output format; remove --json",
        "-m NEWS --beam-size 2 --n-best 3": "n_best is 3, but beam_size is only 2",
        "-m NEWS --stories none": "no such folder; specify a folder of .story files",
        "-m NEWS --stories . --per-file": "remove FILE and --per-file",
        "--lead 1 --checkpoint best": "--lead copies sentences without a model",
        "--lead 1 --lm runs/lm": "--lead copies sentences without a model",
        "--lead 1 --precision int8": "--lead copies sentences without a model",
        "--lead 1 --device cuda": "--lead copies sentences without a model",
        "--lead 1 --engine nmtkit": "--lead copies sentences without a model",
    },
    "rescore -m RUN": {
        "--source t.src --target t.tgt --device cpu,cpu": "this command uses a single device",
        "--source half --target t.tgt": "half has 2 lines",
        "--source half --target whole": "pair 2",
        "--target t.src": "is not a language model; use a run with a language model",
    },
    "perplexity -m RUN": {"t.src": "is not a language model; use a run with a language model"},
    "generate -m RUN": {"t.src": "was trained for translation; use `nmtkit translate`"},
    "align -m RUN --source t.src --target t.tgt": {
        "-o t.tgt": "-o would overwrite a file",
        "--soft soft.txt": "'soft.txt' must end in .json or .npz",
        "--soft a.npz --shortlist a.npz": "--shortlist would overwrite a file",
        "--threshold 0.2 --symmetrize union": "cannot be combined with --symmetrize",
        "--reverse-model nowhere": "nowhere",
        "--shortlist short/list": "cannot be written",
        "--search beam_size=3": "align does not search; remove --search beam_size",
        "--shortlist t.tgt": "--shortlist would overwrite a file",
    },
    "align": {
        "--source a --target b -o new.json --soft ./new.json": "-o would overwrite a file",
        "-m RUN --source one.json --target t.tgt --soft one.json": "--soft would overwrite a file",
    },
    "evaluate": {"--source - --ref -": "can be read only once; use it for one file"},
    "evaluate RUN": {
        "": "specify either --source FILE and --ref FILE, or --test-set NAME, but not both",
        "--source t.src": "specify either --source FILE and --ref FILE",
        "--test-set wmt14/en-de --ref t.tgt": "or --test-set NAME, but not both",
        "--source t.src --ref short": "t.src has 12 lines, ",
        "--source t.src --ref t.tgt -o t.tgt": "-o would overwrite a file",
        "--source t.src --ref t.tgt -m other": "RUN and -m both specify the run",
        "--test-set wmt14/en-dx": "wmt14 has no language pair 'en-dx': did you mean 'en-de'?",
        "--test-set wtm14/en-de": "unknown test set 'wtm14/en-de'",
        "--test-set wmt14": "wmt14 needs a language pair, for example wmt14/",
    },
    "explain -m RUN": {
        "ba -o a.png": "use a name that ends in .html",
        "ba -o a.html --json": "use only one of them",
        "ba --steps none": "--steps",
        "''": "contains no text that the tokenizer can encode",
        "< empty": "is empty",
        "ba --json --steps 2": "--steps applies only to output in the terminal",
        "ba -o a.html --steps 2": "--steps applies only to output in the terminal",
    },
    "plot-attention": {
        # Before a model is looked for: there is none here.
        "--what layers -o a.png ba": "-o FILE.html",
        "--what grid ba": "draws a figure; add -o FILE",
        "--what positions -o a.png ba": "remove SOURCE",
        "--what positions": "draws a figure; add -o FILE",
        "--what layers --head 2 -o a.html ba": "--what layers draws all layers and heads",
        "--style size=3 ba": "--style applies only to figures in files; add -o FILE",
        "--style size=wide ba": "size=wide is invalid; give WIDTH or WIDTHxHEIGHT, each from 0.5 to 100 inches",
        "--style font_size=2 ba": "font_size=2 is invalid; give a size from 3 to 72 points",
        "--style colour=red ba": "'colour=red' is invalid; expected KEY=VALUE, where KEY is one of size, font",
        # Of a model that has no such thing.
        "-m RUN --what layers -o a.html ba": "no multi-head attention layers",
        "-m RUN --what positions -o a.png": "has no position embeddings to draw; use a transformer",
        "-m HEADS --layer 3 ba": "there is no decoder layer 3; choose a number from 1 to 2",
        "-m HEADS --head 5 ba": "5",
        # Of a source or a target.
        "-m RUN 'ba ce' ' '": "target line 1 is empty",
        "-m RUN < half": "standard input, line 2",
        "-m RUN caf\udce9": "argument 4 is not UTF-8",
        "-m HEADS ba --subwords --what layers -o a.html": "--subwords does not apply to --what layers",
    },
    "watch": {"": "RUN", "nothing": "nothing: there is no such run; "},
    "plot-training": {
        "": "RUN",
        "nothing": "nothing: there is no such run; ",
        "RUN -o a.gif": "the suffix '.gif' does not select a supported image format",
        "RUN --title ''": "--title and --style apply only to figures of curves",
        "RUN --style size=3 --what report -o a.html": "--title and --style apply only to figures of curves",
    },
    "score": {
        "t.src": "Missing option '--ref'",
        "--ref t.src": "Missing argument 'HYP...'",
        "- - --ref t.src": "only one",
        "- --ref t.src < bad": "standard input, line 2: not valid UTF-8",
        "- --ref t.src < empty": "standard input is empty",
        "t.src --ref short": "different line counts: t.src has 12 lines, but short has 1",
        "t.src --ref empty": "empty is empty, so there is nothing to score",
        "t.src --ref bad": "bad, line 2: not valid UTF-8",
        "t.src --ref broken.gz": "broken.gz: broken gzip file",
        "t.src --ref none": "none: cannot be read: No such file or directory",
        "t.src --ref t.tgt --by-length --source short": "different line counts: t.src has 12 lines, but short has 1",
        "t.src --ref t.tgt --source t.src": "--source is used only with --by-length",
        "t.src --ref t.tgt --metrics blue": "unknown metric 'blue': did you mean 'bleu'",
        "t.src --ref t.tgt --paired-ar": "--paired-ar requires at least two HYPs",
        "t.src t.src --ref t.tgt --paired-ar --paired-bs": "remove --paired-bs or",
        "t.src --ref t.tgt --n-samples 9": "--n-samples requires a significance test; add --paired-bs",
        "t.src --ref t.tgt --plot a.svg": "--plot draws the table of --by-length",
        "t.src --ref t.tgt --by-length --plot a.gif": "does not select a supported image format",
        "- --ref -": "can be read only once; use it for one file",
        "t.src --ref t.tgt --format csv --json": "--json conflicts with --format csv",
        "t.src --ref t.tgt --format latex --by-length": "--format latex has no table by length",
        "t.src --ref t.tgt --known-by RUN": "add --source SRC",
    },
    "score-summaries": {"- --ref b --source -": "can be read only once; use it for one file"},
    "score-summaries t.src": {
        "--ref short": "different line counts: t.src has 12 lines, but short has 1",
        "--ref t.tgt --source short": "different line counts: t.src has 12 lines, but short has 1",
        "--ref bad.jsonl": "bad.jsonl, line 2: not valid JSON",
        "--ref bad.jsonl#text": "no field 'text', only summary, unseen",
        "--ref t.tgt --terms bad.jsonl": "bad.jsonl, line 1: the field 'unseen' is not a list",
        "--ref t.tgt --terms short.jsonl": "t.src has 12 lines, but short.jsonl has 1",
        "--ref t.tgt --terms empty": "t.src has 12 lines, but empty has 0",
        "--ref hole": "hole, line 12: the reference is empty",
        "--ref holes": "holes, line 1: the reference is empty",
    },
    "score-alignments": {
        "links --ref gold --hyp-base 1": "links, line 1: link '0-0' refers to word 0",
        "t.src --ref gold": "is not a link; expected, for example, 3-4 (sure) or 3?4 (possible)",
        "links --ref gold --ref gold": "this option takes only one value",
        "- - --ref gold": "only one HYP can be standard input",
        "short.links --ref gold --ref-base 1": "different line counts: gold has 3 lines, but short.links has 1",
        "empty --ref gold": "empty is empty",
        "no.links --ref no.links": "undefined, because there are no predicted links and no sure gold links",
        "links --ref long.naacl": "long.naacl has links for sentence pair 4, but links ends with pair 3",
        "- --ref -": "can be read only once; use it for one file",
    },
}


@pytest.fixture(scope="module")
def runs(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folders of runs by their names in the table."""
    folder = tmp_path_factory.mktemp("runs")
    heads = make_run(folder, "heads", TRANSFORMER, [" ".join(WORDS)])
    news = make_run(folder, "news", SUMMARIZATION)
    return {"RUN": str(trained), "HEADS": str(heads), "NEWS": str(news)}


@pytest.fixture
def files(small_corpus: Path, tmp_path: Path) -> None:
    """The files of the table: a small corpus with its recipe, and what is written here; `link` leads to one of them."""
    shutil.copytree(small_corpus, tmp_path, dirs_exist_ok=True)
    source, target = (as_text(side) for side in zip(*sentence_pairs(12, 21), strict=True))
    all_but_last = target.splitlines()[:-1]
    texts = {
        "t.src": source,
        "t.tgt": target,
        "one.json": source,
        "short": "ba\n",
        "half": "ba\n\n",
        "whole": "BA\nCE\n",
        "empty": "",
        "hole": as_text([*all_but_last, "<t> </t>"]),
        "holes": "  \n" * 12,
        "bad.jsonl": '{"summary": "a", "unseen": "Rome"}\n{\n',
        "short.jsonl": '{"unseen": ["Rome"]}\n',
        "gold": "1-1 2-2 2p3\n\n1-2 2?1\n",
        "links": "0-0 1-1\n\n0-1\n",
        "short.links": "0-0\n",
        "no.links": "\n\n",
        "long.naacl": "4 1 1\n",
        "open.yaml": "data: [1\n",
        "circle.yaml": "extends: circle.yaml\n",
        "extends.yaml": "extends: nowhere.yaml\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bad").write_bytes(b"ba\n\xff\n")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(source.encode() * 1000, mtime=0)[:-12])
    (tmp_path / "link").symlink_to("t.src")


@pytest.mark.parametrize(("line", "message"), refusals(MISTAKES))
@pytest.mark.usefixtures("files")
def test_a_mistake_is_one_message_and_changes_no_file(
    console: Command, runs: dict[str, str], tmp_path: Path, line: str, message: str
) -> None:
    line, _, input_file = line.partition("< ")
    stdin = (tmp_path / input_file).read_bytes() if input_file else b""
    before = contents(tmp_path)
    refused(console(*words_of(line, runs), stdin=stdin), message)
    assert contents(tmp_path) == before


def test_recipe_show_refuses_a_file_that_is_not_utf_8(console: Command) -> None:
    Path("mine.yaml").write_bytes("description: caf\u00e9\n".encode("latin-1"))
    refused(console("recipe", "show", "mine.yaml"), "mine.yaml: not UTF-8")
    Path("mine.yaml").write_text(
        "# A recipe\n\nname: mine\ndescription: caf\u00e9\n", encoding="utf-8"
    )
    assert console("recipe", "show", "mine.yaml").out == "# A recipe\n\ndescription: caf\u00e9\n"


@pytest.mark.parametrize("test_set", ["data.test=null", "data.test.tgt=[]"])
def test_compare_refuses_a_recipe_without_a_test_set(
    console: Command, corpus: Path, test_set: str
) -> None:
    """Once it is trained, a test set would make it another recipe."""
    done = console("compare", corpus / "tiny.yaml", "--set", test_set)
    refused(
        done, "recipe tiny: there is no test set with targets for a comparison; add `data.test`"
    )
    assert not Path("runs").exists()
