"""Tasks in a project's own tests: inside TestCase, drain() runs them in the test's transaction."""

from django.test import TestCase, override_settings

from sqlqueue.models import Result
from sqlqueue.tasks.interface import TaskResultStatus
from sqlqueue.testing import drain
from tests.tasks.declared import QUICK, TASKS, samples
from tests.tasks.declaring import default_task_backend


@override_settings(TASKS=TASKS, SQLQUEUE=QUICK)
class InATestCase(TestCase):
    def test_tasks_run_and_their_results_are_seen(self) -> None:
        good, bad = samples.later.enqueue("a"), samples.fail.enqueue("b")
        assert drain() == 2
        assert default_task_backend.get_result(good.id).return_value == "A"
        assert default_task_backend.get_result(bad.id).status == TaskResultStatus.FAILED

    def test_a_database_error_in_a_task_does_not_break_the_test(self) -> None:
        broken, good = samples.breaks_its_transaction.enqueue(), samples.note.enqueue("after")
        assert drain() == 2
        broken.refresh()
        good.refresh()
        assert (broken.status, good.status) == (TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL)
        assert "nowhere" in broken.errors[0].traceback
        assert Result.objects.count() == 2
