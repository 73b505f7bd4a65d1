"""What users do wrong when they translate, align, explain, draw and score: one message each, and no file is touched."""

import gzip
import shlex
from pathlib import Path

import pytest
from commands import WORDS, Command, as_text, contents, refused, sentence_pairs
from untrained_runs import SUMMARIZATION, TRANSFORMER, make_run

LEAVE_OUT = "leave FILE and the options --format"
WHOLE_ONLY = "--grid and --layers are for --what attention only"

MISTAKES = {
    "translate -m RUN": {
        "t.src nosuch": "nosuch: there is no such file",
        "t.src .": ".: this is a folder",
        "t.src -": "standard input (-) cannot stand among files",
        "t.src -o .": "--output-dir . writes one output for each FILE",
        "t.src -o -": "results go to standard output without -o",
        "t.src -o out.zst": "compressed only with gzip",
        "t.src short -o t.src": "-o would overwrite a file",
        "short t.src -o link": "-o would overwrite a file",
        "short -o ./short": "-o would overwrite a file",
        "t.src --split-sentences --samples 2": "give --samples 1 without --n-best",
        "t.src --dictionary t.tgt": "--dictionary is for --replace-unknown",
        "--interactive --json": LEAVE_OUT,
        "--interactive --prefix": LEAVE_OUT,
        "--interactive t.src": LEAVE_OUT,
        "--interactive": "needs a terminal",
        "--interactive -o out": "needs a terminal",
        "--device cpu,cpu --workers 2": "leave one of them out",
        "--device cpu,gpu7": "no such device: 'gpu7'",
        "t.src --search ensemble_weights=[1,2]": "ensemble_weights are of several runs",
        "t.src -m RUN --search ensemble_weights=[1]": "2 models needs as many weights",
        "t.src -m RUN --search ensemble_weights=[1,x]": "(given: 'x')",
        "t.src -m RUN --layer 1": "No such option",
        "t.src -m RUN --samples 2 --beam-size 2": "beam_size is for beam search",
        "t.src -m RUN --search diversity_groups=2": "do not make a beam of 3",
    },
    "summarize": {
        "--lead 3 -m NEWS": "--lead copies sentences without a model",
        "--lead 3 --min-length 4": "--lead copies sentences without a model",
        "--lead 3 --search samples=x": "--lead copies sentences without a model",
        "-m NEWS --window 9 --search samples=x": "samples",
        "--lead 3 --shortlist t.src": "--lead copies sentences without a model",
        "-m NEWS --window 9 --max-source-tokens 4": "--window reads whole articles",
        "-m NEWS --window 9 --samples 2": "give --samples 1 without --n-best",
        "-m NEWS --format moses --json": "--format moses writes n-best lists: leave --json out",
        "-m NEWS --beam-size 2 --n-best 3": "n_best 3 is more than beam_size 2",
        "-m NEWS --stories none": "no such folder of .story files",
        "-m NEWS --stories . --article-field text": "leave one of them out",
    },
    "rescore -m RUN": {"--source t.src --target t.tgt --device cpu,cpu": "several are for commands that share"},
    "align -m RUN --source t.src --target t.tgt": {
        "-o t.tgt": "-o would overwrite a file",
        "--soft soft.txt": "'soft.txt' must end in .json or .npz",
        "--soft a.npz --shortlist a.npz": "--shortlist would overwrite a file",
        "--threshold 0.2 --symmetrize union": "does not go with --symmetrize",
        "--reverse-model nowhere": "nowhere",
        "--shortlist short/list": "cannot write it",
    },
    "evaluate RUN": {
        "": "give --source FILE and --ref FILE, or --test-set NAME alone",
        "--source t.src": "give --source FILE and --ref FILE",
        "--test-set wmt14/en-de --ref t.tgt": "or --test-set NAME alone",
        "--source t.src --ref short": "t.src has 12 lines, ",
        "--source t.src --ref t.tgt -o t.tgt": "-o would overwrite a file",
        "--source t.src --ref t.tgt -m other": "RUN and -m name the same thing",
        "--test-set wmt14/en-dx": "wmt14 has no language pair 'en-dx': did you mean 'en-de'?",
        "--test-set wtm14/en-de": "unknown test set 'wtm14/en-de'",
        "--test-set wmt14": "a name is a set and a language pair, such as wmt14/en-de: did you mean 'wmt14'?",
    },
    "explain -m RUN": {
        "ba -o a.png": "let the name end in .html",
        "ba -o a.html --json": "leave one of them out",
        "ba --steps none": "--steps",
        "''": "no letters",
        "< empty": "is empty",
    },
    "plot-attention": {
        # Before a model is looked for: there is none here.
        "--layers -o a.png ba": "-o FILE.html",
        "--layers --grid -o a.html ba": "leave --grid out",
        "--grid ba": "name it with -o FILE",
        "--what entropy --grid -o a.png ba": WHOLE_ONLY,
        "--what positions --layers -o a.html": WHOLE_ONLY,
        "--what positions -o a.png ba": "leave SOURCE out",
        "--what positions": "name it with -o FILE",
        "--layers --head 2 -o a.html ba": "this draws all of them",
        "--size 3 ba": "--size, --font and --colours are of a figure: give -o FILE",
        "--size wide ba": "'wide': give a width, or WIDTHxHEIGHT, from 0.5 to 100 inches",
        # Of a model that has no such thing.
        "-m RUN --layers -o a.html ba": "no layers of attention heads",
        "-m RUN --what positions -o a.png": "has no position vectors to draw; name a transformer",
        "-m HEADS --layer 3 ba": "alignment_layer 3",
        "-m HEADS --head 5 ba": "5",
    },
    "watch": {"": "RUN", "nothing": "not the folder of a run: there is no such folder", "RUN --every 0": "0"},
    "plot-training": {
        "": "RUN",
        "nothing": "not the folder of a run: there is no such folder",
        "RUN -o a.gif": "'.gif' is not a picture format",
    },
    "score": {
        "t.src": "Missing option '--ref'",
        "--ref t.src": "Missing argument 'HYP...'",
        "- - --ref t.src": "only one",
        "- --ref t.src < bad": "standard input, line 2: not valid UTF-8",
        "- --ref t.src < empty": "standard input: no lines",
        "t.src --ref short": "different line counts: t.src has 12 lines, short has 1",
        "t.src --ref empty": "empty: no lines; there is nothing to score",
        "t.src --ref bad": "bad, line 2: not valid UTF-8",
        "t.src --ref broken.gz": "broken.gz: broken gzip file",
        "t.src --ref none": "none: cannot read it: No such file or directory",
        "t.src --ref t.tgt --by-length --source short": "different line counts: t.src has 12 lines, short has 1",
        "t.src --ref t.tgt --source t.src": "--source is only read with --by-length",
        "t.src --ref t.tgt --metrics blue": "unknown metric 'blue': did you mean 'bleu'",
        "t.src --ref t.tgt --paired-ar": "--paired-ar compares several HYPs",
        "t.src t.src --ref t.tgt --paired-ar --paired-bs": "leave the other option out",
        "t.src --ref t.tgt --n-samples 9": "--n-samples are draws of a test, and none is made: give --paired-bs",
        "t.src --ref t.tgt --plot a.svg": "--plot draws --by-length",
        "t.src --ref t.tgt --by-length --plot a.gif": "not a picture format",
    },
    "score-summaries t.src": {
        "--ref short": "different line counts: t.src has 12 lines, short has 1",
        "--ref t.tgt --source short": "different line counts: t.src has 12 lines, short has 1",
        "--ref bad.jsonl": "bad.jsonl, line 2: not JSON",
        "--ref bad.jsonl --summary-field text": "no field 'text'; it has summary, unseen",
        "--ref t.tgt --terms bad.jsonl": "bad.jsonl, line 1: field 'unseen' is not a list",
        "--ref t.tgt --terms short.jsonl": "t.src has 12 lines, short.jsonl has 1",
        "--ref t.tgt --terms empty": "t.src has 12 lines, empty has 0",
        "--ref hole": "hole, line 12: the reference is empty",
        "--ref holes": "holes, line 1: the reference is empty",
    },
    "score-alignments": {
        "links --ref gold --hyp-base 1": "links, line 1: link '0-0' holds a word 0",
        "t.src --ref gold": "is not a link; write 3-4 (sure) or 3?4 (possible)",
        "links --ref gold --ref gold": "only one is taken here",
        "- - --ref gold": "only one of the HYPs",
        "short.links --ref gold --ref-base 1": "different line counts: gold has 3 lines, short.links has 1",
        "empty --ref gold": "empty: no lines",
        "no.links --ref no.links": "not defined: no link is predicted and no gold link is sure",
        "links --ref long.naacl": "long.naacl has a sentence pair 4, but links ends with pair 3",
    },
}


@pytest.fixture(scope="module")
def runs(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folders of runs by their names in the table."""
    folder = tmp_path_factory.mktemp("runs")
    heads, news = make_run(folder, "heads", TRANSFORMER, [" ".join(WORDS)]), make_run(folder, "news", SUMMARIZATION)
    return {"RUN": str(trained), "HEADS": str(heads), "NEWS": str(news)}


@pytest.fixture
def files(tmp_path: Path) -> None:
    """The files of the table; `link` leads to one of them."""
    source, target = (as_text(side) for side in zip(*sentence_pairs(12, 21), strict=True))
    texts = {"t.src": source, "t.tgt": target, "short": "ba\n", "empty": ""}
    texts |= {"hole": target.rpartition("\n")[0].rpartition("\n")[0] + "\n<t> </t>\n", "holes": "  \n" * 12}
    texts |= {"bad.jsonl": '{"summary": "a", "unseen": "Rome"}\n{\n', "short.jsonl": '{"unseen": ["Rome"]}\n'}
    texts |= {"gold": "1-1 2-2 2p3\n\n1-2 2?1\n", "links": "0-0 1-1\n\n0-1\n", "short.links": "0-0\n"}
    texts |= {"no.links": "\n\n", "long.naacl": "4 1 1\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bad").write_bytes(b"ba\n\xff\n")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(source.encode() * 1000, mtime=0)[:-12])
    (tmp_path / "link").symlink_to("t.src")


@pytest.mark.parametrize(
    ("line", "message"),
    [(f"{command} {more}", message) for command, rows in MISTAKES.items() for more, message in rows.items()],
)
@pytest.mark.usefixtures("files")
def test_a_mistake(console: Command, runs: dict[str, str], tmp_path: Path, line: str, message: str) -> None:
    words, _, given = line.partition("< ")
    before = contents(tmp_path)
    arguments = [runs.get(word, word) for word in shlex.split(words)]
    done = refused(console(*arguments, stdin=(tmp_path / given).read_bytes() if given else b""), message)
    assert done.err.splitlines()[-1].startswith("nmtkit: error: ")
    assert contents(tmp_path) == before


def test_a_recipe_to_show_that_is_not_utf_8(console: Command) -> None:
    Path("mine.yaml").write_bytes("description: caf\u00e9\n".encode("latin-1"))
    refused(console("recipe", "show", "mine.yaml"), "mine.yaml: not UTF-8")
    Path("mine.yaml").write_text("# A recipe\n\nname: mine\ndescription: caf\u00e9\n", encoding="utf-8")
    assert console("recipe", "show", "mine.yaml").out == "# A recipe\n\ndescription: caf\u00e9\n"


def test_recipes_without_a_test_set_are_not_trained_to_be_compared(console: Command, corpus: Path) -> None:
    """Once trained they could not be given one: then it would be another recipe."""
    for test in ("data.test=null", "data.test.tgt=[]"):
        refused(
            console("compare", corpus / "tiny.yaml", "--set", test),
            "tiny: the recipe names no test set with targets to compare on; add data.test",
        )
    assert not Path("runs").exists()
