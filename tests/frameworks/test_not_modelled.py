"""What a framework does not show is said in the report."""

import pytest

from windtunnel import checks
from windtunnel.trace.operation import Kind, Lane, Note, Signature, Site
from windtunnel.trace.trace import Trace


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ((("what", "loop"), ("name", "jit_solve")), "jit_solve contains a loop"),
        ((("what", "shape"), ("name", "step"), ("assumed", 32)), "taken to be the batch size, 32"),
        ((("what", "program"), ("name", "old")), "old ran, but what it computes is not known"),
        ((("what", "compile"), ("name", "Net")), "torch.compile compiled nothing: Net and all else ran eagerly"),
        ((("what", "backward"),), "derived from the forward pass"),
    ],
)
def test_a_gap_is_one_finding_that_names_it(detail, words):
    trace = Trace()
    lane, name = trace.lanes.number(Lane(-1, 0)), trace.signatures.number(Signature("not-modelled"))
    for _ in range(2):
        trace.notes.append(Note("not-modelled", Site("train.py", 7), detail))
        trace.rows.append((Kind.NOTE, lane, name, 0, 0, 0, 0, len(trace.notes) - 1))
    (finding,) = checks.run(trace, ["not-modelled"])
    assert words in finding.message
    assert (finding.severity, finding.site.line, finding.times) == ("info", 7, 2)
