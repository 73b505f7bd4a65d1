"""The files of every corpus of the catalogue that has an address, small, as their publishers lay them out.

What stands here is written down by hand from the publishers' layouts, not made from the catalogue, so that a wrong
member's name in the catalogue is found.
"""

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tests.datasets.corpus_files import Content, as_bytes

Lines = list[str]


@dataclass(frozen=True)
class Layout:
    """The files of a corpus, and the pairs that should come out of them."""

    files: Mapping[str, Content | Mapping[str, Content]]
    """What a file or the members of an archive hold, by the end of the file's address."""
    read: Mapping[str, int]
    """Pairs of each split that the corpus gives; "" where it gives none."""


def lines(language: str, what: str, count: int) -> Lines:
    """Sentences of which number n says so in every language."""
    return [f"In {language} this is {what} number {number} ." for number in range(count)]


def sides(name: str, pair: str, what: str, count: int = 5) -> dict[str, Lines]:
    """The same for two languages, in files that end in them."""
    return {f"{name}.{language}": lines(language, what, count) for language in pair.split("-")}


def splits(form: str, pair: str, counts: Mapping[str, int]) -> dict[str, Lines]:
    """The splits of a corpus in two languages, by names with {split} and {side}."""
    return {
        form.format(split=split, side=language): lines(language, split, count)
        for split, count in counts.items()
        for language in pair.split("-")
    }


GIVEN = {"train": 9, "valid": 4, "test": 3}


def sgm(name: str, kind: str, language: str, count: int = 4) -> dict[str, Lines]:
    """A set of the Workshop on Machine Translation, three segments a document."""
    out = [f'<{kind}set setid="newstest" srclang="any" trglang="any">']
    for number, line in enumerate(lines(language, name, count)):
        if number % 3 == 0:
            out += ["</p>", "</doc>"] if number else []
            out += [f'<doc sysid="ref" docid="paper.{number}" genre="news" origlang="en">', "<p>"]
        out.append(f'<seg id="{number % 3 + 1}">{line}</seg>')
    return {f"dev/{name}-{kind}.{language}.sgm": [*out, "</p>", "</doc>", f"</{kind}set>"]}


def iwslt14() -> Layout:
    members: dict[str, Lines] = {"de-en/README": ["Talks."]}
    for language in ("de", "en"):
        tags = members[f"de-en/train.tags.de-en.{language}"] = []
        for talk in range(100):
            tags += [
                f"<url>http://www.example.org/{talk}</url>",
                f"<talkid>{talk}</talkid>",
                "<reviewer></reviewer>",
            ]
            tags += [f" {line}" for line in lines(language, f"talk {talk} sentence", 3)]
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            xml = [
                '<?xml version="1.0" encoding="UTF-8"?>',
                "<mteval>",
                f'<refset setid="iwslt" srclang="{language}">',
            ]
            xml += ['<doc docid="535" genre="lectures">', "<talkid>535</talkid>"]
            xml += [
                f'<seg id="{n}"> {line} </seg>'
                for n, line in enumerate(lines(language, name, 4), start=1)
            ]
            members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = [
                *xml,
                "</doc>",
                "</refset>",
                "</mteval>",
            ]
    return Layout({"de-en.tgz": members}, {"": 300, "test": 20})


def wmt_dev() -> dict[str, Lines]:
    """The archive of all development and test sets up to 2019, as far as it matters here."""
    members: dict[str, Lines] = {}
    for year in range(2009, 2014):
        members |= sides(f"dev/newstest{year}", "cs-de-en-fr", f"news of {year}", 4)
    # in 2014 either language is there as a source and as a reference
    for other in ("cs", "de", "fr"):
        for language in (other, "en"):
            for kind in ("src", "ref"):
                members |= sgm(f"newstest2014-{other}en", kind, language, 5)
    directed = {
        "newstest2015": ("cs", "de"),
        "newsdev2016": ("ro",),
        "newstest2016": ("cs", "de", "ro"),
    }
    for name, others in directed.items():
        for other in others:
            for src, tgt in ((other, "en"), ("en", other)):
                members |= sgm(f"{name}-{src}{tgt}", "src", src) | sgm(
                    f"{name}-{src}{tgt}", "ref", tgt
                )
    return members


def wmt14(other: str) -> Layout:
    pair = f"{other}-en"
    files: dict[str, Content | Mapping[str, Content]] = {
        "training-parallel-europarl-v7.tgz": sides(
            f"training/europarl-v7.{pair}", pair, "parliament"
        ),
        "training-parallel-commoncrawl.tgz": {
            **sides(f"commoncrawl.{pair}", pair, "crawl"),
            f"commoncrawl.{pair}.annotation": ["http://www.example.org/"] * 5,
        },
        "training-parallel-nc-v9.tgz": sides(
            f"training/news-commentary-v9.{pair}", pair, "commentary"
        ),
    }
    if other == "fr":
        files["training-parallel-un.tgz"] = sides("un/undoc.2000.fr-en", pair, "united")
        giga = sides("giga-fren.release2.fixed", pair, "giga")
        files["training-giga-fren.tar"] = {
            f"{name}.gz": gzip.compress(as_bytes(text)) for name, text in giga.items()
        }
    return Layout({**files, "dev.tgz": wmt_dev()}, {"train": 5 * len(files), "valid": 4, "test": 5})


def wmt16(other: str, prefixes: Mapping[str, str]) -> Layout:
    """The two texts of an archive begin with the same prefix."""
    pair = f"{other}-en"
    files = {
        name: sides(prefix, pair, prefix.replace("/", " ")) for name, prefix in prefixes.items()
    }
    return Layout({**files, "dev.tgz": wmt_dev()}, {"train": 5 * len(files), "valid": 4, "test": 4})


STORY = (
    "Article {0} begins .\n\nIt ends , says number {0} .\n\n@highlight\n\nThe point of number {0}\n"
)
PAGE = (
    "[SN]URL[SN]\nhttp://x.example.org/{0}\n\n[SN]TITLE[SN]\nTitle {0}\n\n[SN]FIRST-SENTENCE[SN]\n"
    "Point of number {0} .\n\n[SN]RESTBODY[SN]\nShare this with\nThe text of number {0} .\nIts end .\n"
)


def address(name: object) -> str:
    """The address of the page that a story was taken from."""
    return f"http://web.example.org/web/2015/http://www.example.org/{name}.html"


def stem(name: object) -> str:
    """The name of the story's file."""
    return hashlib.sha1(address(name).encode()).hexdigest()


def cnn_dailymail() -> Layout:
    files: dict[str, Lines] = {}
    members: dict[str, dict[str, str]] = {"cnn_stories.tgz": {}, "dailymail_stories.tgz": {}}
    for split, numbers in {"train": range(6), "val": range(6, 8), "test": range(8, 11)}.items():
        files[f"all_{split}.txt"] = [address(number) for number in numbers]
        for number in numbers:
            publisher = "cnn" if number % 2 else "dailymail"
            story = f"{publisher}/stories/{stem(number)}.story"
            members[f"{publisher}_stories.tgz"][story] = STORY.format(number)
    return Layout({**files, **members}, {"train": 6, "valid": 2, "test": 3})


def xsum() -> Layout:
    ids = {
        "train": ["100", "101", "102", "103"],
        "validation": ["200", "201"],
        "test": ["300", "301", "302"],
    }
    files = {
        "XSUM-EMNLP18-Summary-Data-Original.tar.gz": {
            f"bbc-summary-data/{one}.summary": PAGE.format(one)
            for some in ids.values()
            for one in some
        },
        "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json": json.dumps(ids),
    }
    return Layout(files, {"train": 4, "valid": 2, "test": 3})


def tatoeba(code: str, language: str) -> Layout:
    text = [
        f"{en}\t{other}\tCC-BY 2.0 (France) Attribution: tatoeba.org #{number} (a) & #{number + 9} (b)"
        for number, (en, other) in enumerate(
            zip(lines("en", "", 600), lines(language, "", 600), strict=True)
        )
    ]
    return Layout({f"{code}-eng.zip": {"_about.txt": "** Info **", f"{code}.txt": text}}, {"": 600})


def multi30k(pair: str, test: str) -> Layout:
    return Layout({**splits("{split}.{side}.gz", pair, {"train": 9, "val": 4, test: 3})}, GIVEN)


def opus100(pair: str) -> Layout:
    form = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{{split}}.{{side}}"
    members = splits(form, pair, {"train": 9, "dev": 4, "test": 3})
    return Layout({f"opus-100-corpus-{pair}-v1.0.tar.gz": members}, GIVEN)


def opus(corpus: str, pair: str) -> Layout:
    texts = sides(f"{corpus}.{pair}", pair, "line", 600)
    return Layout(
        {f"{pair}.txt.zip": {"README": "A corpus.", "LICENSE": "Free.", **texts}}, {"": 600}
    )


IWSLT15 = Layout(
    {**splits("{split}.{side}", "en-vi", {"train": 9, "tst2012": 4, "tst2013": 3})}, GIVEN
)
GERMAN_2016 = {
    "training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
    "training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
    "training-parallel-nc-v11.tgz": "training-parallel-nc-v11/news-commentary-v11.de-en",
}
ROMANIAN_2016 = {
    "training-parallel-ep-v8.tgz": "training-parallel-ep-v8/europarl-v8.ro-en",
    "en-ro.txt.zip": "SETIMES.en-ro",
}
SETS_2016 = Layout({"dev.tgz": wmt_dev()}, {"train": 25, "valid": 4, "test": 4})
GIGAWORD = splits("org_data/{split}.{side}.txt", "src-tgt", {"train": 9, "dev": 4, "test": 3})
LAYOUTS: Mapping[str, Layout] = {
    "tatoeba-en-de": tatoeba("deu", "de"),
    "tatoeba-de-en": tatoeba("deu", "de"),
    "tatoeba-en-fr": tatoeba("fra", "fr"),
    "tatoeba-zh-en": tatoeba("cmn", "zh"),
    "multi30k-en-de": multi30k("en-de", "test_2016_flickr"),
    "multi30k-de-en": multi30k("de-en", "test_2016_flickr"),
    "multi30k-flickr2017-en-fr": multi30k("en-fr", "test_2017_flickr"),
    "multi30k-mscoco2017-de-en": multi30k("de-en", "test_2017_mscoco"),
    "iwslt14-de-en": iwslt14(),
    "iwslt14-en-de": iwslt14(),
    "iwslt15-en-vi": IWSLT15,
    "iwslt15-vi-en": IWSLT15,
    "wmt14-en-de": wmt14("de"),
    "wmt14-de-en": wmt14("de"),
    "wmt14-en-fr": wmt14("fr"),
    "wmt14-fr-en": wmt14("fr"),
    "wmt16-en-de": wmt16("de", GERMAN_2016),
    "wmt16-de-en": wmt16("de", GERMAN_2016),
    "wmt16-en-ro": wmt16("ro", ROMANIAN_2016),
    "wmt16-ro-en": wmt16("ro", ROMANIAN_2016),
    "wmt16-dev-test-en-cs": SETS_2016,
    "wmt16-dev-test-de-en": SETS_2016,
    "cnn-dailymail": cnn_dailymail(),
    "xsum": xsum(),
    "gigaword": Layout({"download": GIGAWORD}, GIVEN),
    "opus100-en-de": opus100("de-en"),
    "opus100-en-no": opus100("en-no"),
    "opus100-fr-en": opus100("en-fr"),
    "opus-Books-v1-en-de": opus("Books", "de-en"),
    "opus-JRC-Acquis-v3.0-en-fr": opus("JRC-Acquis", "en-fr"),
    "opus-Tatoeba-v2023-04-12-pt_BR-en": opus("Tatoeba", "en-pt_BR"),
}
"""By the whole name of the corpus."""
