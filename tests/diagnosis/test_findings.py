"""The types of the data doctor: counting, the first few places, the table of kinds."""

from nmtkit.corpus.faults import DUPLICATE, ENCODING, KINDS, MARKUP, FaultLocation
from nmtkit.diagnosis.findings import EXAMPLES, Diagnosis, SplitDiagnosis


def test_the_first_places_are_kept_and_all_are_counted() -> None:
    split = SplitDiagnosis("train")
    for line in range(1, 21):
        split.find(ENCODING, FaultLocation("a.en", line, 3, "x"))
    split.find(ENCODING, FaultLocation("a.en", 30), 100)
    finding = split.findings["encoding"]
    assert finding.count == 120
    assert [place.line for place in finding.places] == list(range(1, EXAMPLES + 1))


def test_the_worst_come_first_and_otherwise_the_order_of_the_splits() -> None:
    diagnosis = Diagnosis({name: SplitDiagnosis(name) for name in ("train", "valid")})
    for name, kind in (("train", MARKUP), ("train", DUPLICATE), ("valid", DUPLICATE), ("valid", ENCODING)):
        diagnosis.splits[name].find(kind, FaultLocation("f", 1))
    order = [(name, finding.kind.name) for name, finding in diagnosis.findings()]
    assert order == [("valid", "encoding"), ("train", "duplicate"), ("valid", "duplicate"), ("train", "markup")]


def test_the_table_of_kinds() -> None:
    assert len(KINDS) >= 25
    for name, kind in KINDS.items():
        assert name == kind.name
        assert kind.severity in ("error", "warning", "note")
        assert kind.title
        assert kind.remedy.endswith(".")
        assert not (kind.drops and kind.mends)
