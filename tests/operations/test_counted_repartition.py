"""What a change of a topic's partitions costs in each of its steps: publishers wait for some of these statements.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

import pytest

from sqlqueue import publish_many
from sqlqueue.database.log import forget_layouts
from sqlqueue.log.layout_changes import TRANSACTIONS
from sqlqueue.operations.repartition import Repartition, begin
from tests.counting import Cost, Costs, counted
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("steady")]

# The rows of MySQL's gate are turned to the new generation twice: before the keys go over, and when no publisher has to
# ask the slots any more.
BEGUN: Costs = {"": Cost(6, 3, 66), "sqlite": Cost(5, 4, 0), "postgresql": Cost(8, 3, 3)}
SLOTTED = [Cost(51, 16, 256), Cost(20, 4, 64), Cost(10, 2, 2), Cost(34, 16, 256), Cost(4, 1, 64)]
STEPS = {"sqlite": [], "mariadb": SLOTTED, "mysql": SLOTTED, "postgresql": [Cost(15, 2, 2)]}


def test_each_step_of_a_change(database_name: str) -> None:
    """MySQL turns the 256 rows of the gate and the 64 slots of the topic's keys, 16 in a transaction."""
    forget_layouts()
    publish_many("t", range(100))
    with counted() as counter:
        begin(LOG, "t", 4)
    counter.check(BEGUN)
    repartition, expected = Repartition(LOG), list(STEPS[database_name])
    while True:
        with counted() as counter:
            left = repartition.step()
        if left is None:
            break
        if left.stage == TRANSACTIONS:
            return  # PostgreSQL's autovacuum has the table
        counter.check(expected.pop(0))
    assert not expected
