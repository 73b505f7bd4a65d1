"""The archives of every corpus of the catalogue that has an address, small, as their publishers lay them out.

What stands here is written down by hand from the publishers' layouts, not made from the catalogue, so that a wrong
member's name in the catalogue is found.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from published import gzipped, tarred, zipped

Lines = list[str]


@dataclass(frozen=True)
class Layout:
    """The files of a corpus, and the pairs that should come out of them."""

    files: Mapping[str, Path]
    """By the end of their address."""
    read: Mapping[str, int]
    """Pairs of each split that the corpus gives; "" where it gives none."""


def lines(language: str, what: str, count: int) -> Lines:
    """Sentences of which number n says so in every language."""
    return [f"In {language} this is {what} number {number} ." for number in range(count)]


def both(src: str, tgt: str, what: str, count: int) -> dict[str, Lines]:
    """The same for two languages."""
    return {src: lines(src, what, count), tgt: lines(tgt, what, count)}


def sgm(kind: str, text: Lines) -> Lines:
    """A set of the Workshop on Machine Translation, three segments a document."""
    out = [f'<{kind}set setid="newstest" srclang="any" trglang="any">']
    for start in range(0, len(text), 3):
        out += [f'<doc sysid="ref" docid="paper.{start}" genre="news" origlang="en">', "<p>"]
        out += [f'<seg id="{number}">{line}</seg>' for number, line in enumerate(text[start : start + 3], start=1)]
        out += ["</p>", "</doc>"]
    return [*out, f"</{kind}set>"]


def xml(language: str, text: Lines) -> Lines:
    """A test set of IWSLT."""
    out = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>", f'<refset setid="iwslt" srclang="{language}">']
    out += ['<doc docid="535" genre="lectures">', "<url>http://www.example.org/535</url>", "<talkid>535</talkid>"]
    out += [f'<seg id="{number}"> {line} </seg>' for number, line in enumerate(text, start=1)]
    return [*out, "</doc>", "</refset>", "</mteval>"]


def talks(language: str, count: int) -> Lines:
    """The training text of IWSLT: talks of three sentences."""
    out: Lines = []
    for talk in range(count):
        out += [f"<url>http://www.example.org/{talk}</url>", "<keywords>talks, words</keywords>"]
        out += ["<speaker>Ada Okafor</speaker>", f"<talkid>{talk}</talkid>", f"<title>Talk in {language}</title>"]
        out += [f"<description>About {talk} in {language}.</description>", "<reviewer></reviewer>"]
        out += [f" {line}" for line in lines(language, f"talk {talk} sentence", 3)]
    return out


def tatoeba(folder: Path, code: str, language: str) -> Layout:
    text = "".join(
        f"{en}\t{other}\tCC-BY 2.0 (France) Attribution: tatoeba.org #{number} (a) & #{number + 9} (b)\n"
        for number, (en, other) in enumerate(zip(*both("en", language, "pair", 600).values(), strict=True))
    )
    name = f"{code}-eng.zip"
    return Layout({name: zipped(folder / name, {"_about.txt": "** Info **", f"{code}.txt": text})}, {"": 600})


def multi30k(folder: Path, src: str, tgt: str, test: str) -> Layout:
    files = {}
    for name, count in (("train", 9), ("val", 4), (test, 3)):
        for language, text in both(src, tgt, name, count).items():
            files[f"{name}.{language}.gz"] = gzipped(folder / f"{name}.{language}.gz", text)
    return Layout(files, {"train": 9, "valid": 4, "test": 3})


def iwslt14(folder: Path) -> Layout:
    members: dict[str, Lines] = {"de-en/README": ["Talks."]}
    for language in ("de", "en"):
        members[f"de-en/train.tags.de-en.{language}"] = talks(language, 100)
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            members[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = xml(language, lines(language, name, 4))
    return Layout({"de-en.tgz": tarred(folder / "de-en.tgz", members)}, {"": 300, "test": 20})


def iwslt15(folder: Path) -> Layout:
    files = {}
    for name, count in (("train", 9), ("tst2012", 4), ("tst2013", 3)):
        for language, text in both("en", "vi", f"{name} &apos;s", count).items():
            path = files[f"{name}.{language}"] = folder / f"{name}.{language}"
            path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return Layout(files, {"train": 9, "valid": 4, "test": 3})


def wmt_dev(folder: Path) -> Path:
    """The archive of all development and test sets up to 2019, as far as it matters here."""
    members: dict[str, Lines] = {}
    for year in range(2009, 2014):
        for language in ("cs", "de", "en", "fr"):
            members[f"dev/newstest{year}.{language}"] = lines(language, f"news of {year}", 4)
    for other in ("cs", "de", "fr"):  # in 2014 either language is there as a source and as a reference
        for language in (other, "en"):
            for kind in ("src", "ref"):
                text = sgm(kind, lines(language, "news of 2014", 5))
                members[f"dev/newstest2014-{other}en-{kind}.{language}.sgm"] = text
    for name, others in (
        ("newstest2015", ("cs", "de")),
        ("newsdev2016", ("ro",)),
        ("newstest2016", ("cs", "de", "ro")),
    ):
        for other in others:
            for src, tgt in ((other, "en"), ("en", other)):
                members[f"dev/{name}-{src}{tgt}-src.{src}.sgm"] = sgm("src", lines(src, name, 4))
                members[f"dev/{name}-{src}{tgt}-ref.{tgt}.sgm"] = sgm("ref", lines(tgt, name, 4))
    return tarred(folder / "dev.tgz", members)


def wmt14(folder: Path, other: str) -> Layout:
    def sides(name: str, what: str) -> dict[str, Lines]:
        return {f"{name}.{language}": text for language, text in both(other, "en", what, 5).items()}

    packed = {
        "training-parallel-europarl-v7.tgz": sides(f"training/europarl-v7.{other}-en", "parliament"),
        "training-parallel-commoncrawl.tgz": {
            **sides(f"commoncrawl.{other}-en", "crawl"),
            f"commoncrawl.{other}-en.annotation": ["http://www.example.org/"] * 5,
        },
        "training-parallel-nc-v9.tgz": sides(f"training/news-commentary-v9.{other}-en", "commentary"),
    }
    files = {name: tarred(folder / name, members) for name, members in packed.items()}
    if other == "fr":
        name = "training-parallel-un.tgz"
        files[name] = tarred(folder / name, sides("un/undoc.2000.fr-en", "united"))
        giga = both("fr", "en", "giga", 5)
        names = {f"giga-fren.release2.fixed.{language}.gz": text for language, text in giga.items()}
        inside = {name: gzipped(folder / name, text).read_bytes() for name, text in names.items()}
        files["training-giga-fren.tar"] = tarred(folder / "training-giga-fren.tar", inside)
    train = 5 * len(files)
    files["dev.tgz"] = wmt_dev(folder)
    return Layout(files, {"train": train, "valid": 4, "test": 5})


def wmt16_german(folder: Path) -> Layout:
    packed = {
        "training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
        "training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
        "training-parallel-nc-v11.tgz": "training-parallel-nc-v11/news-commentary-v11.de-en",
    }
    files = {"dev.tgz": wmt_dev(folder)}
    for name, inside in packed.items():
        texts = both("de", "en", inside.replace("/", " "), 5)
        files[name] = tarred(folder / name, {f"{inside}.{language}": text for language, text in texts.items()})
    return Layout(files, {"train": 15, "valid": 4, "test": 4})


def wmt16_romanian(folder: Path) -> Layout:
    prefixes = {
        "training-parallel-ep-v8.tgz": "training-parallel-ep-v8/europarl-v8.ro-en",
        "en-ro.txt.zip": "SETIMES.en-ro",
    }
    files = {"dev.tgz": wmt_dev(folder)}
    for name, prefix in prefixes.items():
        members = {f"{prefix}.{language}": text for language, text in both("ro", "en", "balkan", 5).items()}
        files[name] = (zipped if name.endswith(".zip") else tarred)(folder / name, members)
    return Layout(files, {"train": 10, "valid": 4, "test": 4})


def wmt16_sets(folder: Path) -> Layout:
    return Layout({"dev.tgz": wmt_dev(folder)}, {"train": 25, "valid": 4, "test": 4})


def cnn_dailymail(folder: Path) -> Layout:
    splits = {"train": range(6), "val": range(6, 8), "test": range(8, 11)}
    members: dict[str, dict[str, Lines]] = {"cnn": {}, "dailymail": {}}
    files = {}
    for split, numbers in splits.items():
        urls = [f"http://web.example.org/web/2015/http://www.example.org/{number}.html" for number in numbers]
        files[f"all_{split}.txt"] = folder / f"all_{split}.txt"
        files[f"all_{split}.txt"].write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")
        for number, url in zip(numbers, urls, strict=True):
            publisher = "cnn" if number % 2 else "dailymail"
            name = f"{publisher}/stories/{hashlib.sha1(url.encode()).hexdigest()}.story"
            text = [f"Article {number} begins .", "", f"It ends , says number {number} .", "", "@highlight", ""]
            members[publisher][name] = [*text, f"The point of number {number}"]
    for publisher, content in members.items():
        files[f"{publisher}_stories.tgz"] = tarred(folder / f"{publisher}_stories.tgz", content)
    return Layout(files, {"train": 6, "valid": 2, "test": 3})


def xsum(folder: Path) -> Layout:
    ids = {"train": ["100", "101", "102", "103"], "validation": ["200", "201"], "test": ["300", "301", "302"]}
    sections = "[SN]URL[SN]\nhttp://x.example.org/{0}\n\n[SN]TITLE[SN]\nTitle {0}\n\n[SN]FIRST-SENTENCE[SN]\n"
    rest = "Point of number {0} .\n\n[SN]RESTBODY[SN]\nShare this with\nThe text of number {0} .\nIts end .\n"
    members = {
        f"bbc-summary-data/{one}.summary": (sections + rest).format(one) for some in ids.values() for one in some
    }
    splits = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
    (folder / splits).write_text(json.dumps(ids), encoding="utf-8")
    archive = "XSUM-EMNLP18-Summary-Data-Original.tar.gz"
    return Layout(
        {archive: tarred(folder / archive, members), splits: folder / splits}, {"train": 4, "valid": 2, "test": 3}
    )


def splits(src: str, tgt: str, form: str) -> dict[str, Lines]:
    """The three splits of a corpus, by names with {split} and {side}."""
    counts = {"train": 9, "dev": 4, "test": 3}
    return {
        form.format(split=split, side=side): text
        for split, count in counts.items()
        for side, text in both(src, tgt, split, count).items()
    }


def gigaword(folder: Path) -> Layout:
    members = splits("src", "tgt", "org_data/{split}.{side}.txt")
    return Layout({"download": zipped(folder / "ggw_data.zip", members)}, {"train": 9, "valid": 4, "test": 3})


def opus100(folder: Path, pair: str) -> Layout:
    form = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{{split}}.{{side}}"
    name = f"opus-100-corpus-{pair}-v1.0.tar.gz"
    files = {name: tarred(folder / name, splits(*pair.split("-"), form))}
    return Layout(files, {"train": 9, "valid": 4, "test": 3})


def opus(folder: Path, corpus: str, pair: str) -> Layout:
    members: dict[str, Lines] = {"README": ["A corpus."], "LICENSE": ["Free."]}
    for language, text in both(*pair.split("-"), "line", 600).items():
        members[f"{corpus}.{pair}.{language}"] = text
    return Layout({f"{pair}.txt.zip": zipped(folder / f"{pair}.txt.zip", members)}, {"": 600})


GERMAN = partial(tatoeba, code="deu", language="de")
LAYOUTS: Mapping[str, Callable[[Path], Layout]] = {
    "tatoeba-en-de": GERMAN,
    "tatoeba-de-en": GERMAN,
    "tatoeba-en-fr": partial(tatoeba, code="fra", language="fr"),
    "tatoeba-zh-en": partial(tatoeba, code="cmn", language="zh"),
    "multi30k-en-de": partial(multi30k, src="en", tgt="de", test="test_2016_flickr"),
    "multi30k-de-en": partial(multi30k, src="de", tgt="en", test="test_2016_flickr"),
    "multi30k-flickr2017-en-fr": partial(multi30k, src="en", tgt="fr", test="test_2017_flickr"),
    "multi30k-mscoco2017-de-en": partial(multi30k, src="de", tgt="en", test="test_2017_mscoco"),
    "iwslt14-de-en": iwslt14,
    "iwslt14-en-de": iwslt14,
    "iwslt15-en-vi": iwslt15,
    "iwslt15-vi-en": iwslt15,
    "wmt14-en-de": partial(wmt14, other="de"),
    "wmt14-de-en": partial(wmt14, other="de"),
    "wmt14-en-fr": partial(wmt14, other="fr"),
    "wmt14-fr-en": partial(wmt14, other="fr"),
    "wmt16-en-de": wmt16_german,
    "wmt16-de-en": wmt16_german,
    "wmt16-en-ro": wmt16_romanian,
    "wmt16-ro-en": wmt16_romanian,
    "wmt16-dev-test-en-cs": wmt16_sets,
    "wmt16-dev-test-de-en": wmt16_sets,
    "cnn-dailymail": cnn_dailymail,
    "xsum": xsum,
    "gigaword": gigaword,
    "opus100-en-de": partial(opus100, pair="de-en"),
    "opus100-en-no": partial(opus100, pair="en-no"),
    "opus100-fr-en": partial(opus100, pair="en-fr"),
    "opus-Books-v1-en-de": partial(opus, corpus="Books", pair="de-en"),
    "opus-JRC-Acquis-v3.0-en-fr": partial(opus, corpus="JRC-Acquis", pair="en-fr"),
    "opus-Tatoeba-v2023-04-12-pt_BR-en": partial(opus, corpus="Tatoeba", pair="en-pt_BR"),
}
"""What makes the files of a corpus, by its whole name."""
