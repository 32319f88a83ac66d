"""The rows of all kernel tables, found by an operator's name."""

from __future__ import annotations

from understudy.seam.torch.operators.plan import Plan
from understudy.seam.torch.scratch import libraries, native
from understudy.seam.torch.scratch.need import Row
from understudy.seam.torch.scratch.silent import plain_name
from understudy.seam.torch.tags import VERSION

ROWS: dict[str, Row] = {
    name: row for row in (*native.ROWS, *libraries.ROWS) if row.until > VERSION for name in row.operators
}


def row(plan: Plan) -> Row | None:
    """The row of an operator; None where it has none, or launches no kernel."""
    return ROWS.get(plain_name(plan.name)) if plan.kernel and plan.builtin else None
