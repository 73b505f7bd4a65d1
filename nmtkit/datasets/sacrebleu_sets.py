"""Published test sets from sacrebleu by name, such as wmt14/en-de."""

import socket

from sacrebleu.dataset import DATASETS

from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.core.registry import suggest_names
from nmtkit.data.text.files.lines import read_lines

TIMEOUT = 30.0
"""Server timeout in seconds."""


def load_sacrebleu_set(name: str) -> tuple[list[str], list[list[str]]]:
    """Returns sources and lists of references of a set such as "wmt14/en-de" or "wmt14/full/en-de".

    The set is downloaded on first use and cached in ~/.sacrebleu or $SACREBLEU.
    """
    test_set, _, pair = name.rpartition("/")
    if name in DATASETS:
        test_set, pair = name, ""
    if test_set not in DATASETS:
        raise DataError(
            f"unknown test set {name!r} (a name consists of a set and a language pair, such as "
            "wmt14/en-de): " + suggest_names(test_set or name, sorted(DATASETS))
        )
    pairs = sorted(DATASETS[test_set].langpairs)
    if pair not in pairs:
        if pair:
            fault = f"has no language pair {pair!r}: {suggest_names(pair, pairs)}"
        else:
            fault = f"needs a language pair, for example {test_set}/{pairs[0]}"
        raise DataError(f"{test_set} {fault}")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)
    try:
        source = DATASETS[test_set].get_source_file(pair)  # type: ignore[no-untyped-call]  # sacrebleu has no types
        references = DATASETS[test_set].get_reference_files(pair)  # type: ignore[no-untyped-call]  # sacrebleu has no types
    except (
        Exception,
        SystemExit,
    ) as fault:  # sacrebleu raises errors of several libraries, and sometimes exits
        reason = f" ({fault})" if isinstance(fault, Exception) else ""
        raise NmtkitError(
            f"{name}: cannot be downloaded{reason}; without a network, create it on another "
            f"machine with `sacrebleu -t {test_set} -l {pair} --echo src` and `--echo ref`, and "
            "pass the files with --source and --ref"
        ) from fault
    finally:
        socket.setdefaulttimeout(before)
    return list(read_lines(source)), [list(read_lines(path)) for path in references]
