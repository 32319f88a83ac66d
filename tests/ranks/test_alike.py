"""Whether two ranks of one class did the same."""

from windtunnel.ranks.alike import difference
from windtunnel.ranks.fold import Fold
from windtunnel.trace.operation import Kind, Lane, Signature, Site
from windtunnel.trace.trace import Trace

FOLD = Fold(8, 8)


def trace(*operations, device=0, peak=1024):
    """A rank's trace: (kind, name, shape, line, detail) a row; times differ by device."""
    made = Trace()
    lane = made.lanes.number(Lane(device, 0))
    for at, (kind, name, shape, line, detail) in enumerate(operations):
        signature = made.signatures.number(Signature(name, (shape,), ("float32",), 1, detail=detail))
        site = made.sites.number(Site("train.py", line))
        made.rows.append((kind, lane, signature, site, at, at + device, at + 5 + device, 64))
    made.facts["devices"] = [{"peak_allocated_bytes": peak, "peak_reserved_bytes": peak}]
    return made


PRODUCT = (Kind.KERNEL, "aten::mm", (8, 8), 3, ())
REDUCTION = (Kind.COLLECTIVE, "c10d::allreduce_", (8,), 4, (("ranks", 8), ("group", "0")))


def test_ranks_that_do_the_same_on_other_gpus_at_other_times_are_alike():
    assert difference(FOLD, (0, 7), (trace(PRODUCT, REDUCTION), trace(PRODUCT, REDUCTION, device=7))) is None


def test_another_size_is_a_difference_with_both_lines():
    note = difference(FOLD, (0, 7), (trace(PRODUCT), trace((Kind.KERNEL, "aten::mm", (16, 8), 9, ()))))
    detail = dict(note.detail)
    assert note.code == "ranks-differ"
    assert (detail["does"], detail["line"]) == ("aten::mm of [8, 8]", 3)
    assert (detail["other_does"], detail["other_line"]) == ("aten::mm of [16, 8]", 9)


def test_more_work_of_one_rank_is_a_difference():
    note = difference(FOLD, (0, 7), (trace(PRODUCT), trace(PRODUCT, PRODUCT)))
    assert dict(note.detail)["does"] == "nothing more"
    assert note.site.line == 3


def test_how_often_a_library_polls_is_no_difference_and_how_often_the_program_sleeps_is():
    poll, nap = ((Kind.HOST, name, (), 7, ()) for name in ("time.sleep of a library", "time.sleep"))
    assert difference(FOLD, (0, 7), (trace(PRODUCT), trace(poll, poll, PRODUCT))) is None
    assert dict(difference(FOLD, (0, 7), (trace(PRODUCT), trace(nap, PRODUCT))).detail)["other_line"] == 7


def test_what_l2_holds_of_an_operand_is_no_difference_and_its_strides_are():
    first, other = ((Kind.KERNEL, "aten::copy_", (16, 256), 5, (("reused", found),)) for found in ("96:8", "96:4"))
    assert difference(FOLD, (0, 7), (trace(first, PRODUCT), trace(other, PRODUCT))) is None
    strided = (*first[:4], (("strided", 1), ("reused", "96:8")))
    assert dict(difference(FOLD, (0, 7), (trace(first), trace(strided))).detail)["line"] == 5


def test_memory_is_compared():
    note = difference(FOLD, (0, 7), (trace(PRODUCT), trace(PRODUCT, peak=4096)))
    assert dict(note.detail)["does"] == "a peak of 1.00 KiB"


def test_groups_are_compared_by_their_order_and_not_by_their_names():
    other = (*REDUCTION[:4], (("ranks", 8), ("group", "17")))
    assert difference(FOLD, (0, 7), (trace(REDUCTION), trace(other))) is None
    assert difference(FOLD, (0, 7), (trace(REDUCTION, other), trace(REDUCTION, REDUCTION))) is not None


def test_partners_are_compared_by_their_place():
    fold = Fold(8, 8).with_group([0, 4])

    def message(peer):
        return (Kind.COLLECTIVE, "nccl:send", (8,), 5, (("ranks", 2), ("group", "1"), ("peer", peer)))

    assert difference(fold, (0, 3), (trace(message(4)), trace(message(7)))) is None
    assert difference(fold, (0, 3), (trace(message(4)), trace(message(1)))) is not None


def test_work_without_a_line_is_found_after_the_last_line_that_is_known():
    nameless = Trace()
    for made in (nameless,):
        lane, site = made.lanes.number(Lane(0, 0)), made.sites.number(Site("train.py", 7))
        made.rows.append((Kind.COPY, lane, made.signatures.number(Signature("copy")), site, 0, 0, 1, 8))
        made.rows.append((Kind.KERNEL, lane, made.signatures.number(Signature("aten::add")), 0, 1, 1, 2, 8))
    shorter = Trace()
    lane, site = shorter.lanes.number(Lane(0, 0)), shorter.sites.number(Site("train.py", 7))
    shorter.rows.append((Kind.COPY, lane, shorter.signatures.number(Signature("copy")), site, 0, 0, 1, 8))
    note = difference(FOLD, (0, 7), (nameless, shorter))
    assert note.site.line == 7
    assert (dict(note.detail)["does"], dict(note.detail)["other_does"]) == ("aten::add", "nothing more")
